"""What a job needs from this computer: limits, /dev/shm, ports, names, ssh and what was not asked for."""

from __future__ import annotations

import ipaddress
import os
import resource
import shutil
import socket
import threading
from collections.abc import Iterator

from tutorial_lib.cluster.emulated import MASTER_PORT
from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding, verdict
from tutorial_lib.cluster.preflight_checks import port_finding
from tutorial_lib.cluster.shm import SHM
from tutorial_lib.cluster.spec import DEFAULT_PORT

OPEN_FILES, OPEN_FILES_LEAST = 4096, 1024
FREE_SHM = 1 << 30
RESOLVE_SECONDS = 3.0


def open_files() -> Iterator[Finding]:
    """Samplers hand tensors over as open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = (
        f"Samplers pass tensors as open files: ulimit -n {OPEN_FILES} (an administrator may raise the limit {hard})"
    )
    good = soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_LEAST
    yield verdict(good, "open files", f"limit {soft if soft != resource.RLIM_INFINITY else 'none'}", remedy)


def shared_memory() -> Iterator[Finding]:
    """A server that fills /dev/shm is killed by SIGBUS, without a message."""
    try:
        usage = os.statvfs(SHM)
    except OSError as error:
        yield Finding("/dev/shm", FAIL, str(error.strerror), "DGL servers share their part through /dev/shm.")
        return
    free = usage.f_bavail * usage.f_frsize
    remedy = "Make it larger: sudo mount -o remount,size=4G /dev/shm (docker: --shm-size=4g)"
    yield verdict(free >= FREE_SHM, "/dev/shm", f"{free / 1e9:.1f} GB free", remedy)


def ports() -> Iterator[Finding]:
    """The ports of a job whose machines include this computer; nothing else needs these two."""
    uses = [(DEFAULT_PORT, "DGL's servers"), (MASTER_PORT, "the trainers' meeting point")]
    taken = [finding.detail for port, use in uses if (finding := port_finding("0.0.0.0", port, use)) is not None]
    if taken:
        note = "matters only where this computer is in an ip_config.txt; emulated machines have their own ports"
        yield Finding("ports", SKIP, f"{'; '.join(taken)}; {note}")
    else:
        yield Finding("ports", OK, f"{DEFAULT_PORT} and {MASTER_PORT} free")


def host_name() -> Iterator[Finding]:
    """Gloo alone binds the address of the host name; a job names the interface, so this explains, and fails nothing."""
    name, answer = socket.gethostname(), []

    def resolve() -> None:
        try:
            answer.append(str(ipaddress.ip_address(socket.gethostbyname(name))))
        except (OSError, ValueError, UnicodeError):
            answer.append("")

    thread = threading.Thread(target=resolve, daemon=True)  # a name server may keep us waiting
    thread.start()
    thread.join(RESOLVE_SECONDS)
    status, instead = OK, "gloo is told the interface instead"
    if not answer:
        status, detail = SKIP, f"{name}: no answer from the name service within {RESOLVE_SECONDS:g} s"
    elif not answer[0]:
        detail = f"{name} has no address; {instead}"
    elif ipaddress.ip_address(answer[0]).is_loopback:
        detail = f"{name} is {answer[0]}, which no other machine reaches; {instead}"
    else:
        detail = f"{name} is {answer[0]}"
    yield Finding("host name", status, detail)


def ssh_client() -> Iterator[Finding]:
    """Real machines are reached with the user's own ssh."""
    found = shutil.which("ssh")
    missing = "no ssh client; needed for real machines (--ip_config) only: sudo apt install openssh-client"
    yield Finding("ssh", OK, found) if found else Finding("ssh", SKIP, missing)
