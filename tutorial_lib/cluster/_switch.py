"""The process behind emulated machines: makes the namespaces and the network, then waits.

    coordinator --starts--> switch: user namespace (only when not root), new pid namespace
                              `- pid 1: bridge `br0`, one veth cable per machine
                                   |- machine-0: own mounts, /dev/shm, host name, network, pids
                                   `- machine-1: ...

It runs as ``python -m tutorial_lib.cluster._switch`` with a Unix socket to the coordinator as standard
input. It first reads the plan (JSON), then each machine sends its number with the open namespace files, through which
``namespaces`` puts processes into it; what fails comes as JSON. The socket is also the life line: when the coordinator
goes away, for whatever reason, the socket ends, pid 1 exits, and the kernel kills everything in its pid namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_ROOT

from tutorial_lib.cluster import namespaces as ns
from tutorial_lib.cluster.disks import mount_disk

NAMESPACES = ("mnt", "net", "uts", "ipc", "pid")
BURST_BYTES = 256 * 1024  # token bucket; smaller ones cannot reach 1 Gbit/s at a 100 or 250 Hz kernel tick
PLAN_SECONDS = 20.0
QUEUE_SECONDS = 0.4  # how long a packet may wait for the wire before it is dropped
PRIVATE = ns.MS_NOSUID | ns.MS_NODEV


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    """What the kernel's answer to pyroute2 is about."""
    try:
        yield
    except Exception as error:
        raise OSError(getattr(error, "code", 0), f"{what}: {error}") from None


def _link(ip: IPRoute, name: str) -> int:
    return ip.link_lookup(ifname=name)[0]


def _up(ip: IPRoute, name: str, bytes_per_second: int | None = None, **options: Any) -> None:
    """Set a network interface up, and limit what leaves through it."""
    ip.link("set", index=_link(ip, name), state="up", **options)
    _shape(ip, name, bytes_per_second)


def _shape(ip: IPRoute, name: str, bytes_per_second: int | None) -> None:
    """Limit what leaves through a network interface (token bucket filter); None: no limit any more."""
    index = _link(ip, name)
    with contextlib.suppress(NetlinkError):  # there was none
        ip.tc("del", index=index, handle=0x10000, parent=TC_H_ROOT)
    if bytes_per_second:
        with _step("limit the rate of the wire (tbf)"):
            limit = int(bytes_per_second * QUEUE_SECONDS) + BURST_BYTES
            ip.tc("add", "tbf", index, 0x10000, rate=bytes_per_second, burst=BURST_BYTES, limit=limit)


def _configure_machine(plan: dict[str, Any], machine: dict[str, Any]) -> None:
    """Inside the machine: address, wire rate, host name, /dev/shm, /etc/hosts, private disk."""
    socket.sethostname(machine["name"])
    ns.private_mounts_with_proc()
    with contextlib.suppress(OSError):  # so that /sys/class/net shows this machine's cards; a container may refuse
        groups = os.open("/sys/fs/cgroup", os.O_PATH)  # hidden by the mount, then shown again: they count OOM kills
        ns.mount("sysfs", "/sys", "sysfs", PRIVATE, "", "mount /sys")
        ns.mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", "", ns.MS_BIND | ns.MS_REC, "", "show the control groups")
        os.close(groups)
    size = f",size={plan['shm_bytes']}" if plan["shm_bytes"] else ""
    ns.mount("tmpfs", "/dev/shm", "tmpfs", PRIVATE, f"mode=1777{size}", "mount a private /dev/shm")
    # Unlinked right away: the bind mount keeps the file, and /dev/shm is shown empty.
    with open("/dev/shm/hosts", "w") as hosts:
        hosts.write("127.0.0.1 localhost\n" + "".join(f"{m['address']} {m['name']}\n" for m in plan["machines"]))
    ns.mount("/dev/shm/hosts", "/etc/hosts", "", ns.MS_BIND, "", "mount /etc/hosts")
    os.unlink("/dev/shm/hosts")
    if machine["disk"]:
        mount_disk(machine["disk"], plan["layers"])
    with IPRoute() as ip:
        _up(ip, "lo")
        ip.addr("add", index=_link(ip, "eth0"), address=machine["address"], prefixlen=24)
        _up(ip, "eth0", plan["bytes_per_second"])


def _machine_main(line: socket.socket, plan: dict[str, Any], index: int) -> None:
    """Pid 1 of a machine: it sends the namespaces, and reaps the orphans that are handed to it."""
    _configure_machine(plan, plan["machines"][index])
    names = ["user", *NAMESPACES] if plan["user_namespace"] else NAMESPACES
    fds = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
    socket.send_fds(line, [str(index).encode()], fds)
    for fd in fds:
        os.close(fd)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1.0)


def _start_machine(line: socket.socket, plan: dict[str, Any], index: int) -> None:
    """Make a machine's namespaces, lay the cable from its eth0 to the bridge, and fork its pid 1."""
    with IPRoute() as ip:  # its socket stays in the network namespace in which it was opened, that of the bridge
        flags = ns.CLONE_NEWNS | ns.CLONE_NEWNET | ns.CLONE_NEWUTS | ns.CLONE_NEWIPC | ns.CLONE_NEWPID
        ns.unshare(flags, "create mount, network, host name, ipc and pid namespaces")
        port = f"port{index}"
        ip.link("add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_pid": os.getpid()})
        _up(ip, port, plan["bytes_per_second"], master=_link(ip, "br0"))
    os.waitpid(_fork(line, lambda: _machine_main(line, plan, index)), 0)


def _fork(line: socket.socket, body: Callable[[], None]) -> int:
    """Run ``body`` in a child; an error of it goes up the line."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except Exception as error:
            _send_error(line, error)
        finally:
            os._exit(code)
    return pid


def _send_error(line: socket.socket, error: Exception) -> None:
    code = getattr(error, "errno", None) or getattr(error, "code", None) or 0
    text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    line.sendall(json.dumps({"errno": code, "step": text}).encode())


def _switch_main(line: socket.socket, plan: dict[str, Any]) -> None:
    """Pid 1 of the emulation."""
    ns.die_with_parent()
    ns.private_mounts_with_proc()
    ns.unshare(ns.CLONE_NEWNET, "create a network namespace")
    with IPRoute() as ip:
        _up(ip, "lo")
        with _step("create a network bridge"):
            ip.link("add", ifname="br0", kind="bridge")
        _up(ip, "br0")
    numbers = range(len(plan["machines"]))
    machines = [_fork(line, lambda index=index: _start_machine(line, plan, index)) for index in numbers]
    while order := line.recv(4096):  # ends when the coordinator closes its end or dies
        worker = _fork(line, lambda order=order: _obey(machines, **json.loads(order)))  # it may enter another network
        if os.waitpid(worker, 0)[1] == 0:
            line.sendall(b"k")


def _obey(machines: list[int], do: str, machine: int, bytes_per_second: int | None) -> None:
    """Do something to a cable: ``cut`` and ``mend`` it at the bridge, or ``wire``, a rate for both of its ends.

    When it is cut, the machine's own card stays up: like a cut somewhere on the way, nobody is told.
    """
    port = f"port{machine}"
    with IPRoute() as ip:
        if do != "wire":
            ip.link("set", index=_link(ip, port), master=_link(ip, "br0") if do == "mend" else 0)
            return
        _shape(ip, port, bytes_per_second)
    with open(f"/proc/{machines[machine]}/ns/net") as network:
        ns.setns(network.fileno(), ns.CLONE_NEWNET, "enter the machine's network")
    with IPRoute() as ip:
        _shape(ip, "eth0", bytes_per_second)


def main() -> None:
    """Read the plan, enter the namespaces, become pid 1 of the emulation."""
    line = socket.socket(fileno=os.dup(0))
    line.settimeout(PLAN_SECONDS)
    plan = json.loads(line.recv(1 << 20))
    line.settimeout(None)  # from now on it is the life line: it ends when the coordinator does
    try:
        if plan["user_namespace"]:
            ns.new_user_namespace()
        ns.unshare(ns.CLONE_NEWNS | ns.CLONE_NEWPID, "create mount and pid namespaces")
    except OSError as error:
        _send_error(line, error)
        sys.exit(1)
    pid = _fork(line, lambda: _switch_main(line, plan))
    line.close()
    os.close(0)
    os.waitpid(pid, 0)
    if plan["disks"]:  # the coordinator may have been killed
        shutil.rmtree(plan["disks"], ignore_errors=True)


if __name__ == "__main__":
    main()
