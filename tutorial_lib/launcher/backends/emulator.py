"""The programs behind emulated machines, ``python -m tutorial_lib.launcher.backends.emulator``.

    client --starts--> supervisor: user namespace (if needed) and PID namespace; removes the folder of the machines
                         `- daemon, PID 1: owns the network bridge ``br0`` with one veth link per machine
                              |- machine-0: own mounts, /dev/shm, host name, network, PIDs
                              `- machine-1: ...

Standard input has a plan, and is a life line. When the client closes it or dies, the daemon exits, and the kernel kills
all processes in the PID namespace. If the client writes a time before (seconds since the epoch), the machines stay
until then. Another plan changes the link of a running machine, see ``change_link``.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_ROOT

from tutorial_lib.launcher.backends import namespaces as ns
from tutorial_lib.launcher.backends.disks import mount_disk

BURST_BYTES = 256 * 1024  # token bucket; smaller ones cannot reach 1 Gbit/s at a 100 or 250 Hz kernel tick
QUEUE_SECONDS = 0.4  # how long a packet may wait for the link before it is dropped
FASTEST_LINK = 1_250_000_000  # bytes per second. Faster rates would not fit into the message to the kernel


def _index_of(ip: IPRoute, card: str) -> int:
    return ip.link_lookup(ifname=card)[0]


def _set_up(ip: IPRoute, card: str, rate: int | None = None, **options: Any) -> None:
    """Set a network card up and limit its rate."""
    ip.link("set", index=_index_of(ip, card), state="up", **options)
    _limit_rate(ip, card, rate)


def _limit_rate(ip: IPRoute, card: str, rate: int | None) -> None:
    """Limit the bytes per second that leave through a network card. None removes the limit."""
    index = _index_of(ip, card)
    with contextlib.suppress(NetlinkError):  # there was no limit
        ip.tc("del", index=index, handle=0x10000, parent=TC_H_ROOT)
    if rate is not None and rate <= FASTEST_LINK:
        limit = int(rate * QUEUE_SECONDS) + BURST_BYTES
        ip.tc("add", "tbf", index, 0x10000, rate=rate, burst=BURST_BYTES, limit=limit)


def change_link(daemon: int, machine: int, port: str, do: str, rate: int | None) -> None:
    """Cut or mend a link at its port of the bridge, or change its rate. The machine's card stays up.

    Args:
        daemon, machine: process IDs of the daemon, and of the first process of the machine.
        do: ``cut``, ``mend`` or ``wire``.
        rate: bytes per second, or None for no limit.
    """
    ns.enter(daemon, "user", "net")
    with IPRoute() as ip:
        if do == "wire":
            _limit_rate(ip, port, rate)
        else:
            ip.link("set", index=_index_of(ip, port), master=_index_of(ip, "br0") if do == "mend" else 0)
    if do == "wire":
        ns.enter(machine, "net")
        with IPRoute() as ip:
            _limit_rate(ip, "eth0", rate)


def _fork(body: Callable[[], object]) -> int:
    """Run ``body`` in a child process, which prints its error for the client."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except Exception as error:
            _print_error(error)
        finally:
            os._exit(0)
    return pid


def _print_error(error: Exception) -> None:
    text = f"configure the network: {error}" if isinstance(error, NetlinkError) else getattr(error, "strerror", None)
    print(json.dumps({"error": text or repr(error)}), flush=True)


def _run_machine(plan: dict[str, Any], name: str, ready: int) -> None:
    """Configure a machine as its PID 1, and stay. SIGCHLD is ignored, so the kernel reaps the machine's orphans."""
    pid = os.readlink("/proc/self")  # this /proc is still that of the client, and so is the ID
    socket.sethostname(name)
    ns.unshare("mnt")
    ns.private_mounts_with_proc()
    size = f",size={plan['shm_bytes']}" if plan["shm_bytes"] else ""
    ns.mount("tmpfs", "/dev/shm", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, f"mode=1777{size}")
    with open("/dev/shm/hosts", "w") as hosts:
        hosts.writelines(f"{address} {host}\n" for host, address in plan["hosts"].items())
    ns.mount("/dev/shm/hosts", "/etc/hosts", "", ns.MS_BIND)
    os.unlink("/dev/shm/hosts")  # the bind mount keeps the file
    if name in plan["separate"]:
        mount_disk(f"{plan['folder']}/{name}", plan["layers"])
    os.write(ready, pid.encode())
    os.close(ready)
    while True:
        signal.pause()


def _create_machine(plan: dict[str, Any], name: str, port: str, bridge: IPRoute) -> int:
    """Create a machine's network and its first process in new namespaces. Returns the process ID for the client."""
    network, pids = (os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid"))
    ns.unshare("net", "uts", "ipc", "pid")
    with IPRoute() as ip:
        _set_up(ip, "lo")
        ip.link("add", ifname="eth0", kind="veth", peer={"ifname": port, "net_ns_fd": network})
        ip.addr("add", index=_index_of(ip, "eth0"), address=plan["hosts"][name], prefixlen=24)
        _set_up(ip, "eth0", plan["rate"])
    _set_up(bridge, port, plan["rate"], master=_index_of(bridge, "br0"))
    answer, ready = os.pipe()
    _fork(lambda: _run_machine(plan, name, ready))
    os.close(ready)
    with os.fdopen(answer) as file:
        pid = int(file.read() or os._exit(1))  # the first process has printed its error
    for fd in (network, pids):
        ns.setns(fd)
        os.close(fd)
    return pid


def _run_daemon(plan: dict[str, Any]) -> None:
    """Create the machines, and stay until the client ends or the machines have lived long enough."""
    ns.die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps all children
    ns.unshare("net")
    with IPRoute() as bridge:
        bridge.link("add", ifname="br0", kind="bridge")
        _set_up(bridge, "br0")
        pids = {name: _create_machine(plan, name, f"to-{name}", bridge) for name in plan["machines"]}
    print(json.dumps({"pid": int(os.readlink("/proc/self")), "pids": pids}), flush=True)
    ends = float(sys.stdin.read() or 0)
    while time.time() < ends:
        time.sleep(1)


def main() -> None:
    """Enter the namespaces, fork the daemon, wait for its end, and remove the files of the machines."""
    plan = json.loads(sys.stdin.readline())
    if "do" in plan:
        return change_link(**plan)
    try:
        try:
            ns.unshare("pid")  # root needs no user namespace, and keeps its rights on files of other users without one
        except PermissionError:
            ns.new_user_namespace()
            ns.unshare("pid")
        daemon = _fork(lambda: _run_daemon(plan))
    except OSError as error:
        _print_error(error)
    else:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: os.kill(daemon, signal.SIGTERM))
        os.closerange(0, 2)
        os.waitpid(daemon, 0)
    shutil.rmtree(plan["folder"], ignore_errors=True)
    if plan["registration"]:
        Path(plan["registration"]).unlink()
        with contextlib.suppress(OSError):  # other sets of machines are running
            Path(plan["registration"]).parent.rmdir()
    return None


if __name__ == "__main__":
    main()
