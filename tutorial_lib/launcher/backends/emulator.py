"""The daemon of emulated machines, ``python -m tutorial_lib.launcher.backends.emulator PLAN``.

    client --starts--> supervisor: user namespace (if needed) and PID namespace; removes the folder of the machines
                         `- daemon, PID 1: bridge ``br0`` with one veth link per machine; answers requests
                              |- machine-0: own mounts, /dev/shm, host name, network, PIDs
                              `- machine-1: ...

Standard input is a SEQPACKET socket to the client, on which requests arrive as JSON. The socket is a life line. When
the client closes it or dies, the daemon exits, and the kernel kills all processes in the PID namespace. The request
``stay`` replaces the life line with a listening socket and a time limit.
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
import sys
import time
from collections.abc import Callable
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_ROOT

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends import namespaces as ns
from tutorial_lib.launcher.backends.disks import mount_disk
from tutorial_lib.launcher.backends.emulated import MESSAGE_BYTES, parse_wire, peer_of

BURST_BYTES = 256 * 1024  # token bucket; smaller ones cannot reach 1 Gbit/s at a 100 or 250 Hz kernel tick
QUEUE_SECONDS = 0.4  # how long a packet may wait for the link before it is dropped


def _index_of(ip: IPRoute, card: str) -> int:
    return ip.link_lookup(ifname=card)[0]


def _set_up(ip: IPRoute, card: str, wire: str | None = None, **options: Any) -> None:
    """Set a network card up and limit its rate."""
    ip.link("set", index=_index_of(ip, card), state="up", **options)
    _limit_rate(ip, card, wire)


def _limit_rate(ip: IPRoute, card: str, wire: str | None) -> None:
    """Limit the rate at which packets leave through a network card."""
    index, rate = _index_of(ip, card), parse_wire(wire)
    with contextlib.suppress(NetlinkError):  # there was no limit
        ip.tc("del", index=index, handle=0x10000, parent=TC_H_ROOT)
    if rate:
        limit = int(rate * QUEUE_SECONDS) + BURST_BYTES
        ip.tc("add", "tbf", index, 0x10000, rate=rate, burst=BURST_BYTES, limit=limit)


def _describe_error(error: Exception) -> bytes:
    """Return the answer to a request that failed."""
    text = f"configure the network: {error}" if isinstance(error, NetlinkError) else getattr(error, "strerror", None)
    message, remedy = (error.message, error.remedy) if isinstance(error, InputError) else (text or repr(error), "")
    return json.dumps({"error": message, "remedy": remedy}).encode()


def _fork(body: Callable[[], object], errors: int) -> int:
    """Run ``body`` in a child process, which writes its error to the file ``errors``."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except Exception as error:
            os.write(errors, _describe_error(error))
        finally:
            os._exit(0)
    return pid


def _run_machine(plan: dict[str, Any], machine: dict[str, Any], ready: int) -> None:
    """Configure a machine as its PID 1, and stay. SIGCHLD is ignored, so the kernel reaps the machine's orphans."""
    pid = int(os.readlink("/proc/self"))  # this /proc is still that of the client, and so is the ID
    socket.sethostname(machine["name"])
    ns.unshare("mnt")
    ns.private_mounts_with_proc()
    size = f",size={plan['shm_bytes']}" if plan["shm_bytes"] else ""
    ns.mount("tmpfs", "/dev/shm", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, f"mode=1777{size}")
    with open("/dev/shm/hosts", "w") as hosts:
        hosts.write("127.0.0.1 localhost\n" + "".join(f"{m['address']} {m['name']}\n" for m in plan["machines"]))
    ns.mount("/dev/shm/hosts", "/etc/hosts", "", ns.MS_BIND)
    os.unlink("/dev/shm/hosts")  # the bind mount keeps the file
    if machine["has_disk"]:
        mount_disk(f"{plan['folder']}/{machine['name']}", plan["layers"])
    os.write(ready, json.dumps({"pid": pid}).encode())
    while True:
        signal.pause()


class Emulator:
    """Creates the machines of a plan (see ``EmulatedBackend``) and answers requests, as PID 1."""

    def __init__(self, line: socket.socket, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.machines: dict[str, dict[str, Any]] = {machine["name"]: machine for machine in plan["machines"]}
        self.stay: dict[str, Any] = {"ends": math.inf}  # the values of the request "stay"
        self.job: tuple[socket.socket, str] | None = None  # connection and description of the job on the machines
        self.selector = selectors.DefaultSelector()
        self.selector.register(line, selectors.EVENT_READ, self._hear)
        self.ending = False

    def run(self) -> None:
        """Create the machines and answer requests until the end."""
        ns.die_with_parent()
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps all children
        ns.unshare("net")
        self.bridge = IPRoute()
        self.bridge.link("add", ifname="br0", kind="bridge")
        _set_up(self.bridge, "br0")
        for index, machine in enumerate(self.machines.values()):
            self._create_machine(f"port{index}", machine)
        while not self.ending and time.time() < self.stay["ends"]:
            for key, _events in self.selector.select(1.0):
                key.data(key.fileobj)

    def _create_machine(self, port: str, machine: dict[str, Any]) -> None:
        """Create a machine's network, and start its first process in new namespaces."""
        network, pids = (os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid"))
        ns.unshare("net", "uts", "ipc", "pid")
        ip = IPRoute()
        _set_up(ip, "lo")
        ip.link("add", ifname="eth0", kind="veth", peer={"ifname": port, "net_ns_fd": network})
        ip.addr("add", index=_index_of(ip, "eth0"), address=machine["address"], prefixlen=24)
        _set_up(ip, "eth0", machine["wire"])
        _set_up(self.bridge, port, machine["wire"], master=_index_of(self.bridge, "br0"))
        answer, ready = os.pipe()
        _fork(lambda: _run_machine(self.plan, machine, ready), ready)
        machine |= {"port": port, "network": ip, "cut": False, **json.loads(os.read(answer, MESSAGE_BYTES))}
        if "error" in machine:
            raise OSError(0, machine["error"])
        for fd in (network, pids):
            ns.setns(fd)
        for fd in (network, pids, answer, ready):
            os.close(fd)

    def _accept(self, listener: socket.socket) -> None:
        connection, _address = listener.accept()
        connection.setblocking(False)  # a client that does not read its answers must not block the others
        if peer_of(connection)[1] == os.getuid():
            self.selector.register(connection, selectors.EVENT_READ, self._hear)
        else:
            connection.close()

    def _hear(self, connection: socket.socket) -> None:
        """Answer a request, or forget a connection that has ended or sends nonsense."""
        try:
            message, files, _flags, _address = socket.recv_fds(connection, MESSAGE_BYTES, 1)
            request = json.loads(message)
            try:
                answer = json.dumps(self._answer(connection, files, **request) or {}).encode()
            except (InputError, OSError, NetlinkError) as error:
                answer = _describe_error(error)
            connection.send(answer)
        except (OSError, ValueError, TypeError):
            self.selector.unregister(connection)
            if self.job and self.job[0] is connection:
                self.job = None
            connection.close()
            self.ending |= "listener" not in self.stay  # it was the life line

    def _answer(
        self, connection: socket.socket, files: list[int], do: str, machine: str = "", **values: Any
    ) -> dict[str, Any] | None:
        if do == "describe":
            return self._describe()
        if do == "stay":
            listener = socket.socket(fileno=files[0])
            listener.listen()
            self.selector.register(listener, selectors.EVENT_READ, self._accept)
            self.stay = {**values, "listener": listener, "started": time.time()}
        elif do == "stop":
            self.ending = True
        elif do == "use":
            if self.job:
                remedy = "Wait for its end, or start others: python -m tutorial_lib machines start 2 --name other"
                raise InputError(f"the machines {self.stay['name']!r} are used by {self.job[1]}", remedy)
            self.job = (connection, values["who"])
        elif machine not in self.machines:
            raise InputError(f"there is no {machine!r}", f"There are {', '.join(self.machines)}.")
        else:
            self._change_link(do, self.machines[machine], **values)
        return None

    def _describe(self) -> dict[str, Any]:
        machines = self.machines.values()
        return {
            **{key: self.stay.get(key) for key in ("name", "started", "ends", "ssh_config")},
            "machines": list(self.machines),
            "addresses": [machine["address"] for machine in machines],
            "pids": [machine["pid"] for machine in machines],
            "wires": [machine["wire"] for machine in machines],
            "cut": [machine["name"] for machine in machines if machine["cut"]],
            "job": self.job and self.job[1],
            "own_disks": any(machine["has_disk"] for machine in machines),
            "folder": self.plan["folder"],
        }

    def _change_link(self, do: str, machine: dict[str, Any], rate: str | None = None) -> None:
        """Cut or mend a link at the bridge, or change its rate. The machine's card stays up."""
        if do == "wire":
            _limit_rate(self.bridge, machine["port"], rate)
            _limit_rate(machine["network"], "eth0", rate)
            machine["wire"] = None if rate == "unshaped" else rate
        else:
            master = 0 if do == "cut" else _index_of(self.bridge, "br0")
            self.bridge.link("set", index=_index_of(self.bridge, machine["port"]), master=master)
            machine["cut"] = do == "cut"

    def _end(self) -> None:
        self.ending = True


def main() -> None:
    """Enter the namespaces, fork the daemon, wait for its end, and remove the folder of the machines."""
    line, plan = socket.socket(fileno=os.dup(0)), json.loads(sys.argv[1])
    os.close(0)
    try:
        if plan["user_namespace"]:
            ns.new_user_namespace()
        ns.unshare("pid")
        daemon = _fork(Emulator(line, plan).run, line.fileno())
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: os.kill(daemon, signal.SIGTERM))
        line.close()
        os.waitpid(daemon, 0)
    except OSError as error:
        line.send(_describe_error(error))
    shutil.rmtree(plan["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
