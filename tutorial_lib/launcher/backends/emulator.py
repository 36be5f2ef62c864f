"""The daemon of emulated machines, ``python -m tutorial_lib.launcher.backends.emulator``.

    client --starts--> supervisor: user namespace (if needed) and PID namespace; removes the folder of the machines
                         `- daemon, PID 1: bridge ``br0`` with one veth cable per machine; answers requests
                              |- machine-0: own mounts, /dev/shm, host name, network, PIDs
                              `- machine-1: ...

Standard input is a SEQPACKET socket to the client, on which a plan and then requests arrive as JSON. The socket is a
life line. When the client closes it or dies, the daemon exits, and the kernel kills all processes in the PID namespace.
The request ``stay`` replaces the life line with a listening socket and a time limit.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_ROOT

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends import namespaces as ns
from tutorial_lib.launcher.backends.disks import mount_disk
from tutorial_lib.launcher.backends.emulated import MESSAGE_BYTES, parse_wire, peer_of

NAMESPACES = ("user", "mnt", "net", "uts", "ipc", "pid")  # in the order in which a process enters them
BURST_BYTES = 256 * 1024  # token bucket; smaller ones cannot reach 1 Gbit/s at a 100 or 250 Hz kernel tick
QUEUE_SECONDS = 0.4  # how long a packet may wait for the wire before it is dropped
PLAN_SECONDS, SEND_SECONDS = 20.0, 5.0


@contextlib.contextmanager
def _step(name: str) -> Iterator[None]:
    """Name the refused step in an error of pyroute2."""
    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, f"{name}: {error}") from None


def _set_up(ip: IPRoute, card: str, wire: str | None = None, **options: Any) -> None:
    """Set a network card up and limit its rate."""
    ip.link("set", index=_index_of(ip, card), state="up", **options)
    _limit_rate(ip, card, wire)


def _index_of(ip: IPRoute, card: str) -> int:
    return ip.link_lookup(ifname=card)[0]


def _limit_rate(ip: IPRoute, card: str, wire: str | None) -> None:
    """Limit the rate at which packets leave through a network card."""
    index, rate = _index_of(ip, card), parse_wire(wire)
    with contextlib.suppress(NetlinkError):  # there was no limit
        ip.tc("del", index=index, handle=0x10000, parent=TC_H_ROOT)
    if rate:
        with _step("limit the rate of the wire (tbf)"):
            limit = int(rate * QUEUE_SECONDS) + BURST_BYTES
            ip.tc("add", "tbf", index, 0x10000, rate=rate, burst=BURST_BYTES, limit=limit)


def _fork(body: Callable[[], object], status: int) -> int:
    """Run ``body`` in a child process, which writes its error to the file ``status``."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except Exception as error:
            _write_error(error, status)
        finally:
            os._exit(0)
    return pid


def _write_error(error: Exception, status: int) -> None:
    text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    os.write(status, json.dumps({"errno": getattr(error, "errno", None) or 0, "error": text}).encode() + b"\n")


def _run_machine(plan: dict[str, Any], machine: dict[str, Any], bridge: int, status: int) -> None:
    """Configure a machine as its PID 1, and stay. SIGCHLD is ignored, so the kernel reaps the machine's orphans."""
    flags = ns.CLONE_NEWNS | ns.CLONE_NEWNET | ns.CLONE_NEWUTS | ns.CLONE_NEWIPC
    ns.unshare(flags, "create mount, network, host name and ipc namespaces")
    socket.sethostname(machine["name"])
    ns.private_mounts_with_proc()
    flags = ns.MS_NOSUID | ns.MS_NODEV
    with contextlib.suppress(OSError):  # /sys/class/net then shows the machine's cards; a container may refuse
        groups = os.open("/sys/fs/cgroup", os.O_PATH)  # hidden by the mount, then shown again: they count OOM kills
        ns.mount("sysfs", "/sys", "sysfs", flags, "", "mount /sys")
        ns.mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", "", ns.MS_BIND | ns.MS_REC, "", "show the control groups")
        os.close(groups)
    size = f",size={plan['shm_bytes']}" if plan["shm_bytes"] else ""
    ns.mount("tmpfs", "/dev/shm", "tmpfs", flags, f"mode=1777{size}", "mount a private /dev/shm")
    with open("/dev/shm/hosts", "w") as hosts:
        hosts.write("127.0.0.1 localhost\n" + "".join(f"{m['address']} {m['name']}\n" for m in plan["machines"]))
    ns.mount("/dev/shm/hosts", "/etc/hosts", "", ns.MS_BIND, "", "mount /etc/hosts")
    os.unlink("/dev/shm/hosts")  # the bind mount keeps the file
    if machine["has_disk"]:
        mount_disk(f"{plan['folder']}/{machine['name']}", plan["layers"])
    with IPRoute() as ip, _step("connect the machine to the network"):
        _set_up(ip, "lo")
        ip.link("add", ifname="eth0", kind="veth", peer={"ifname": machine["port"], "net_ns_fd": bridge})
        ip.addr("add", index=_index_of(ip, "eth0"), address=machine["address"], prefixlen=24)
        _set_up(ip, "eth0", machine["wire"])
    os.write(status, b"{}\n")
    while True:
        signal.pause()


class Emulator:
    """Creates the machines of a plan (see ``EmulatedBackend``) and answers requests, as PID 1."""

    def __init__(self, line: socket.socket, plan: dict[str, Any]) -> None:
        self.line, self.plan = line, plan
        self.machines: dict[str, dict[str, Any]] = {machine["name"]: machine for machine in plan["machines"]}
        self.stay: dict[str, Any] = {"ends": math.inf}  # the values of the request "stay"
        self.jobs: dict[socket.socket, str] = {}  # connections that use the machines for a job
        self.selector = selectors.DefaultSelector()
        self.ending = False

    def run(self) -> None:
        """Create the machines and answer requests until the end."""
        ns.die_with_parent()
        signal.signal(signal.SIGTERM, lambda *_: self._end("their daemon was told to end"))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps all children
        ns.private_mounts_with_proc()
        self._create_machines()
        self.selector.register(self.line, selectors.EVENT_READ, self._hear)
        self.line.sendall(b"{}")
        while not self.ending:
            for key, _events in self.selector.select(1.0):
                key.data(key.fileobj)
            if time.time() > self.stay["ends"]:
                self._end("their --ttl was over")

    def _create_machines(self) -> None:
        ns.unshare(ns.CLONE_NEWNET, "create a network namespace")
        self.network, own_pids = (os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid"))
        answers, status = os.pipe()
        for index, machine in enumerate(self.machines.values()):
            machine |= {"port": f"port{index}", "cut": False}
            ns.unshare(ns.CLONE_NEWPID, "create a pid namespace")
            machine["pid"] = _fork(lambda m=machine: _run_machine(self.plan, m, self.network, status), status)
            ns.setns(own_pids, ns.CLONE_NEWPID, "return to the pid namespace of the daemon")
        os.close(status)
        with os.fdopen(answers) as lines:
            for _ in self.machines:
                if error := json.loads(lines.readline()):
                    raise OSError(error["errno"], error["error"])
        with IPRoute() as ip, _step("connect the machines with a network bridge"):
            ip.link("add", ifname="br0", kind="bridge")
            _set_up(ip, "br0")
            for machine in self.machines.values():
                _set_up(ip, machine["port"], machine["wire"], master=_index_of(ip, "br0"))
        for machine in self.machines.values():
            kinds = NAMESPACES if self.plan["user_namespace"] else NAMESPACES[1:]
            machine["files"] = {kind: os.open(f"/proc/{machine['pid']}/ns/{kind}", os.O_RDONLY) for kind in kinds}

    def _accept(self, listener: socket.socket) -> None:
        connection, _address = listener.accept()
        connection.settimeout(SEND_SECONDS)
        if peer_of(connection)[1] == os.getuid():
            self.selector.register(connection, selectors.EVENT_READ, self._hear)
        else:
            connection.close()

    def _hear(self, connection: socket.socket) -> None:
        """Answer a request, or forget a connection that has ended or sends nonsense."""
        try:
            message, files, _flags, _address = socket.recv_fds(connection, MESSAGE_BYTES, 1)
            answer = self._answer(connection, json.loads(message), files)
            opened = answer.pop("files", {}).values()
            socket.send_fds(connection, [json.dumps(answer).encode()], list(opened))
        except (OSError, ValueError, LookupError):
            self.selector.unregister(connection)
            self.jobs.pop(connection, None)
            connection.close()
            self.ending |= "listener" not in self.stay  # it was the life line

    def _answer(self, connection: socket.socket, request: dict[str, Any], files: list[int]) -> dict[str, Any]:
        do, name = request.pop("do"), request.get("machine")
        try:
            if do == "describe":
                return self._describe()
            if do == "stay":
                listener = socket.socket(fileno=files[0])
                listener.listen()
                self.selector.register(listener, selectors.EVENT_READ, self._accept)
                self.stay = {**request, "listener": listener, "started": time.time()}
            elif do == "stop":
                self._end("machines stop was called")
            elif do == "use":
                self._give_to_job(connection, request["who"])
            elif name not in self.machines:
                raise InputError(f"there is no {name!r}", f"There are {', '.join(self.machines)}.")
            elif do == "open":
                return {"files": self.machines[name]["files"]}
            else:
                self._change_cable(do, self.machines[name], request.get("rate"))
        except (InputError, OSError) as error:
            return {"error": getattr(error, "message", str(error)), "remedy": getattr(error, "remedy", "")}
        return {}

    def _describe(self) -> dict[str, Any]:
        machines = self.machines.values()
        return {
            **{key: self.stay[key] for key in ("name", "started", "ends", "ssh_config")},
            "machines": list(self.machines),
            "addresses": [machine["address"] for machine in machines],
            "wires": [machine["wire"] for machine in machines],
            "cut": [machine["name"] for machine in machines if machine["cut"]],
            "job": next(iter(self.jobs.values()), None),
            "own_disks": any(machine["has_disk"] for machine in machines),
            "folder": self.plan["folder"],
        }

    def _give_to_job(self, connection: socket.socket, who: str) -> None:
        """Reserve the machines for a job until its connection ends."""
        if others := [job for other, job in self.jobs.items() if other is not connection]:
            remedy = "Wait for its end, or start other machines: python -m tutorial_lib machines start 2 --name other"
            raise InputError(f"the machines {self.stay['name']!r} are used by {others[0]}", remedy)
        self.jobs[connection] = who

    def _change_cable(self, do: str, machine: dict[str, Any], wire: str | None) -> None:
        """Cut or mend a cable at the bridge, or change its rate. The machine's own card stays up."""
        if do == "wire":
            for network, card in [(self.network, machine["port"]), (machine["files"]["net"], "eth0")]:
                ns.setns(network, ns.CLONE_NEWNET, "enter the network of the cable")
                try:
                    with IPRoute() as ip:
                        _limit_rate(ip, card, wire)
                finally:
                    ns.setns(self.network, ns.CLONE_NEWNET, "return to the network of the bridge")
            machine["wire"] = None if wire == "unshaped" else wire
            return
        with IPRoute() as ip, _step(f"{do} the cable"):
            master = 0 if do == "cut" else _index_of(ip, "br0")
            ip.link("set", index=_index_of(ip, machine["port"]), master=master)
        machine["cut"] = do == "cut"

    def _end(self, reason: str) -> None:
        """Leave the loop, and send the reason to the running job."""
        for connection in self.jobs:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"gone": reason}).encode())
        self.ending = True


def main() -> None:
    """Read the plan, enter the namespaces, fork the daemon and wait for its end."""
    line = socket.socket(fileno=os.dup(0))
    line.settimeout(PLAN_SECONDS)
    plan = json.loads(line.recv(MESSAGE_BYTES))
    line.settimeout(None)
    try:
        if plan["user_namespace"]:
            ns.new_user_namespace()
        ns.unshare(ns.CLONE_NEWNS | ns.CLONE_NEWPID, "create mount and pid namespaces")
        daemon = _fork(lambda: Emulator(line, plan).run(), line.fileno())
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: os.kill(daemon, signal.SIGTERM))
        line.close()
        os.close(0)
        os.waitpid(daemon, 0)
    except OSError as error:
        _write_error(error, line.fileno())
    shutil.rmtree(plan["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
