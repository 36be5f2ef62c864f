"""The programs behind emulated machines, which ``emulated`` starts.

    client --starts--> supervisor: user namespace (if needed) and PID namespace; removes the folder of the machines
                         `- daemon, PID 1: owns the network bridge ``br0`` with one veth link per machine
                              |- machine-0: own mounts, /dev/shm, host name, network, PIDs
                              `- machine-1: ...

Standard input carries the request. When this input ends, the daemon exits, and the kernel kills all processes in the
PID namespace. If the client first writes a time (seconds since the epoch), the machines run until then.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_ROOT

from tutorial_lib.files import JsonObject
from tutorial_lib.launcher.backends import namespaces as ns

BURST_BYTES = 256 * 1024  # token bucket; smaller ones cannot reach 1 Gbit/s at a 100 or 250 Hz kernel tick
QUEUE_SECONDS = 0.4  # how long a packet may wait for the link before it is dropped
FASTEST_LINK = 1_250_000_000  # bytes per second. Faster rates would not fit into the message to the kernel


def _index_of(ip: IPRoute, interface: str) -> int:
    return ip.link_lookup(ifname=interface)[0]


def _bring_up(ip: IPRoute, interface: str, rate: int | None = None, **options: object) -> None:
    """Set a network interface up, and limit the bytes per second that leave through it. None removes the limit."""
    index = _index_of(ip, interface)
    ip.link("set", index=index, state="up", **options)
    with contextlib.suppress(NetlinkError):  # there was no limit
        ip.tc("del", index=index, handle=0x10000, parent=TC_H_ROOT)
    if rate is not None and rate <= FASTEST_LINK:
        limit = int(rate * QUEUE_SECONDS) + BURST_BYTES
        ip.tc("add", "tbf", index, 0x10000, rate=rate, burst=BURST_BYTES, limit=limit)


def change_link(daemon: int, machine: int, port: str, action: str, rate: int | None) -> None:
    """Cut or mend a link at its port of the bridge, or change its rate. The machine's interface stays up."""
    ns.enter(daemon, "user", "net")
    with IPRoute() as ip:
        if action != "wire":
            ip.link("set", index=_index_of(ip, port), master=_index_of(ip, "br0") if action == "mend" else 0)
            return
        _bring_up(ip, port, rate)
    ns.enter(machine, "net")
    with IPRoute() as ip:
        _bring_up(ip, "eth0", rate)


def _send_reply(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")  # print can write the end of the line later


def _fork(body: Callable[[], object]) -> int:
    """Run ``body`` in a child process, which prints its error for the client."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except Exception as error:
            step = "configure the network: " if isinstance(error, NetlinkError) else ""
            _send_reply(error=f"{step}{getattr(error, 'strerror', None) or error!r}")
        finally:
            os._exit(0)
    return pid


def _mount_disk(disk: str, layers: Iterable[tuple[str, bool]]) -> None:
    """Mount folders in the mount namespace of a machine. The private ones are created in ``disk``."""
    opened = []
    for path, is_private in layers:  # opened before a mount hides one
        source = f"{disk}{path}" if is_private else path
        if is_private:
            os.makedirs(source, exist_ok=True)
            os.chmod(source, os.stat(path).st_mode & 0o7777)
        opened.append((path, is_private, os.open(source, os.O_PATH)))
    for path, is_private, source in opened:
        os.makedirs(path, exist_ok=True)
        ns.mount(f"/proc/self/fd/{source}", path, "", ns.MS_BIND | ns.MS_REC)
        os.close(source)
        if not is_private:  # a user namespace may not drop the other flags of a mount
            flags = os.statvfs(path).f_flag & (ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
            ns.mount("", path, "", flags | ns.MS_REMOUNT | ns.MS_BIND | ns.MS_RDONLY)


def _run_machine(request: JsonObject, name: str) -> None:
    """Configure a machine as its PID 1, and stay. SIGCHLD is ignored, so the kernel reaps the machine's orphans."""
    pid = int(os.readlink("/proc/self"))  # this /proc is still that of the client, and so is the ID
    socket.sethostname(name)
    ns.unshare("mnt")
    ns.private_mounts_with_proc()
    size = f",size={request['shm_bytes']}" if request["shm_bytes"] else ""
    ns.mount("tmpfs", "/dev/shm", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, f"mode=1777{size}")
    ns.mount(f"{request['folder']}/hosts", "/etc/hosts", "", ns.MS_BIND)
    if name in request["layers"]:
        _mount_disk(f"{request['folder']}/{name}", request["layers"][name])
    _send_reply(**{name: pid})
    while True:
        signal.pause()


def _start_machine(request: JsonObject, name: str, bridge: IPRoute) -> None:
    """Create a machine's network and its first process in new namespaces."""
    net_fd, pid_fd = (os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid"))
    port = f"to-{name}"
    ns.unshare("net", "uts", "ipc", "pid")
    with IPRoute() as ip:
        _bring_up(ip, "lo")
        ip.link("add", ifname="eth0", kind="veth", peer={"ifname": port, "net_ns_fd": net_fd})
        ip.addr("add", index=_index_of(ip, "eth0"), address=request["machines"][name], prefixlen=24)
        _bring_up(ip, "eth0", request["rate"])
    _bring_up(bridge, port, request["rate"], master=_index_of(bridge, "br0"))
    _fork(lambda: _run_machine(request, name))
    for fd in (net_fd, pid_fd):
        ns.enter_and_close(fd)


def _run_daemon(request: JsonObject) -> None:
    """Create the machines, and stay until the client ends or the machines have lived long enough."""
    ns.die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps all children
    hosts = {"localhost": "127.0.0.1", **request["machines"]}
    Path(request["folder"], "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
    _send_reply(daemon=int(os.readlink("/proc/self")), folder=request["folder"])
    ns.unshare("net")
    with IPRoute() as bridge:
        bridge.link("add", ifname="br0", kind="bridge")
        _bring_up(bridge, "br0")
        for name in request["machines"]:
            _start_machine(request, name, bridge)
    time.sleep(max(0.0, float(sys.stdin.read() or 0) - time.time()))


def main() -> None:
    """Enter the namespaces, fork the daemon, wait for its end, and remove the files of the machines."""
    request = json.loads(sys.stdin.readline())
    if "action" in request:
        change_link(**request)
        return
    options = {"prefix": f"tutorial_lib-{os.getuid()}-machines-", "dir": os.environ.get("TMPDIR", "/var/tmp")}
    with tempfile.TemporaryDirectory(**options, ignore_cleanup_errors=True) as folder:
        request["folder"] = folder
        try:
            try:
                ns.unshare("pid")  # root needs no user namespace, and keeps its rights on files of others without one
            except PermissionError:
                ns.new_user_namespace()
                ns.unshare("pid")
            daemon = _fork(lambda: _run_daemon(request))
        except OSError as error:
            _send_reply(error=error.strerror)
        else:
            signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
            os.closerange(0, 2)
            os.waitpid(daemon, 0)
    if request["registration"]:
        os.unlink(request["registration"])
