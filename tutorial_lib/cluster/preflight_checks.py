"""What one machine looks at before a job: its address, ports, limits, /dev/shm, the command, its part of the data.

Runs on the machine itself, in a fresh process, and imports neither torch nor dgl.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

import tutorial_lib
from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding, verdict
from tutorial_lib.cluster.plan import JobPlan, trainer_env
from tutorial_lib.cluster.preflight_parts import BadFile, part_findings, shm_bytes_needed
from tutorial_lib.cluster.shm import SHM, Leftovers, clean_leftovers, leftovers
from tutorial_lib.cluster.spec import read_ip_config
from tutorial_lib.errors import InputError

LEAST_OPEN_FILES = 1024
DYING_SECONDS = 3.0
FILES_AT_REST, FILES_PER_PEER = 256, 8  # seen: 20 and 5; samplers hand over tensors as open files, too


def examine_machine(plan: JobPlan, index: int, checksum_seconds: float = 10.0) -> list[Finding]:
    """Every check of machine ``index`` of the plan, run on that machine; no finding names the machine yet."""
    checks: list[Callable[[], Iterable[Finding]]] = [
        lambda: address_findings_here(plan, index),
        lambda: port_findings(plan, index),
        lambda: [open_files(plan)],
        segment_findings,  # before the size: what is cleaned up is free again
        lambda: [shared_memory(plan, index)],
        lambda: part_findings(plan, index, checksum_seconds),
        lambda: [command_finding(plan, index)],
        lambda: [ip_config_finding(plan)],
        lambda: [log_folder(plan, index)],
    ]
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except (psutil.Error, PermissionError) as error:  # what this machine does not let us see may be in order
            findings.append(Finding("preflight", SKIP, f"a check could not be made: {type(error).__name__}: {error}"))
        except Exception as error:  # anything else would be found again in the middle of the job, by its servers
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"({Path(frame.filename).name}:{frame.lineno}, {frame.name})"
            detail = f"a check broke off: {type(error).__name__}: {error} {place}"
            findings.append(Finding("preflight", FAIL, detail, "Look at what that line reads on this machine."))
    return findings


def environment() -> dict[str, str]:
    """Versions on this machine, without importing what they are versions of."""
    found = {"host": platform.node(), "executable": sys.executable, "python": platform.python_version()}
    for name in ("torch", "dgl"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {**found, "tutorial_lib": tutorial_lib.__version__, "digest": package_digest()}


def package_digest(folder: Path | None = None) -> str:
    """Twelve hexadecimal digits of the text of all modules of tutorial_lib: copies of a tree share their version."""
    folder = folder or Path(tutorial_lib.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def ipv4_addresses() -> dict[str, list[str]]:
    """IPv4 addresses by interface. DGL (``local_ip4_addr_list``) sees the first one of each only."""
    found = {name: [e.address for e in es if e.family == socket.AF_INET] for name, es in psutil.net_if_addrs().items()}
    return {name: addresses for name, addresses in found.items() if addresses}


def address_findings_here(plan: JobPlan, index: int) -> Iterator[Finding]:
    """The plan's address belongs to this machine, and the interface that carries it is up."""
    machine, seen = plan.machines[index], ipv4_addresses()
    own = {address: name for name, addresses in seen.items() for address in addresses}
    carrier = own.get(machine.address)
    if carrier is None:
        detail = f"{machine.address} (line {index + 1}) does not belong to this machine; it has "
        remedy = "DGL would take this machine for machine 0, without a word. Correct ip_config.txt."
        for k, other in enumerate(plan.machines):
            if other.address in own:
                remedy = f"It has {other.address}, of line {k + 1}: are the lines of ip_config.txt in wrong order?"
                break
        yield Finding("address", FAIL, detail + (", ".join(sorted(own)) or "none"), remedy)
        return
    first = seen.get(carrier.split(":")[0], ["another one"])[0]  # eth0:1 is eth0's, by another name
    detail = f"{machine.address} is not the first address of {carrier}, and DGL sees the first one only: {first}"
    remedy = f"DGL would take this machine for machine 0. Use {first} in ip_config.txt, or make it the first."
    good = machine.address == first
    yield verdict(good, "address", f"{machine.address} on {carrier}" if good else detail, remedy)
    yield _interface(machine.interface or carrier, carrier, machine.address)


def _interface(wanted: str, carrier: str, address: str) -> Finding:
    """Gloo and NCCL are told this name (GLOO_SOCKET_IFNAME)."""
    state = psutil.net_if_stats().get(wanted)
    if state is None:
        known = ", ".join(sorted(psutil.net_if_stats()))
        return Finding("interface", FAIL, f"there is no {wanted}; this machine has {known}", f"Use {carrier}.")
    if wanted != carrier:
        return Finding("interface", FAIL, f"{wanted} does not carry {address}; {carrier} does", f"Use {carrier}.")
    return verdict(state.isup, "interface", f"{wanted} is {'up' if state.isup else 'down'}", f"ip link set {wanted} up")


def port_findings(plan: JobPlan, index: int) -> Iterator[Finding]:
    """The ports of the DGL servers, and on machine 0 the one where the trainers meet."""
    machine = plan.machines[index]
    wanted = [(machine.address, machine.port + k, f"server {k}") for k in range(plan.servers)]
    if index == 0 and plan.master_port:
        wanted.append(("0.0.0.0", plan.master_port, "the trainers' meeting point"))
    taken = [f for f in (port_finding(*entry) for entry in wanted) if f is not None]
    yield from taken
    if not taken:
        yield Finding("ports", OK, f"{', '.join(str(port) for _, port, _ in wanted)} free")


def port_finding(address: str, port: int, purpose: str) -> Finding | None:
    """A finding for a port that is taken or cannot be tried; None for a free one."""
    if port > 65535:
        return Finding("ports", FAIL, f"{port} ({purpose}) is above 65535", "Choose a smaller port in ip_config.txt.")
    with socket.socket() as probe:
        # As the servers do it: connections that a job of a moment ago left behind do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            return None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return Finding("ports", SKIP, f"{port} ({purpose}): {address} does not belong to this machine")
            if error.errno == errno.EACCES:
                return Finding("ports", FAIL, f"{port} ({purpose}) is reserved for root", "Choose one above 1023.")
            if error.errno != errno.EADDRINUSE:
                raise
    owner = _owner_of(port)
    remedy = f"Wait for it to end{f' or stop process {owner[0]}' if owner else ''}, or choose other ports."
    by = f" by process {owner[0]} ({owner[1]})" if owner else " by a process of another user"
    return Finding("ports", FAIL, f"{port} ({purpose}) is taken{by}", remedy)


def _owner_of(port: int) -> tuple[int, str] | None:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return connection.pid, " ".join(psutil.Process(connection.pid).cmdline())[:80]
    return None


def open_files(plan: JobPlan) -> Finding:
    """A server holds some sockets for each client, a client for each server."""
    peers = max(plan.num_clients, len(plan.machines) * plan.servers)
    needed = max(LEAST_OPEN_FILES, FILES_AT_REST + FILES_PER_PEER * peers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft == resource.RLIM_INFINITY or soft >= needed
    ceiling = hard == resource.RLIM_INFINITY or hard >= needed
    remedy = f"ulimit -n {needed} (for ssh: in ~/.bashrc, or /etc/security/limits.conf)"
    if not ceiling:
        remedy += f"; an administrator must first raise the hard limit, {hard}"
    return verdict(good, "open files", f"limit {soft}, needed about {needed}", remedy)


def segment_findings() -> Iterator[Finding]:
    """DGL's files in /dev/shm from before: those of a dead job of ours are removed, others refused."""
    removed, deadline = clean_leftovers(), time.monotonic() + DYING_SECONDS
    while any(job.in_use for job in leftovers().dead) and time.monotonic() < deadline:
        time.sleep(0.1)  # processes of a job that was killed a moment ago
        removed += clean_leftovers()
    problems = list(leftover_problems(leftovers()))
    if removed:
        yield Finding("leftovers", OK, f"removed {len(removed)} files that a killed job left in /dev/shm")
    elif not problems:
        yield Finding("leftovers", OK, "no files of another job in /dev/shm")
    yield from problems


def leftover_problems(found: Leftovers) -> Iterator[Finding]:
    """A fail for each running job and for files of unknown origin: DGL would write into them."""
    for job in found.live:
        detail = f"another job is running on this machine (process {job.pid}); both would use the same /dev/shm"
        remedy = "Wait for it to end, or use --emulate N: each emulated machine has its own /dev/shm."
        yield Finding("leftovers", FAIL, detail, remedy)
    used = sorted(set(found.users.values()))
    if used:
        detail = f"a DGL job that was not started by tutorial_lib uses /dev/shm: process {', '.join(map(str, used))}"
        yield Finding("leftovers", FAIL, detail, "Wait for it to end, or stop it.")
    idle = [name for name in found.foreign if name not in found.users]
    if idle:
        detail = f"/dev/shm holds {len(idle)} files of another DGL job, for example {idle[0]}"
        remedy = "If no DGL job is running any more, remove them: rm " + " ".join(f"'{SHM / name}'" for name in idle)
        yield Finding("leftovers", FAIL, detail, remedy)


def shared_memory(plan: JobPlan, index: int) -> Finding:
    """A server that fills /dev/shm is killed by SIGBUS, without a message."""
    try:
        usage = os.statvfs(SHM)
    except OSError as error:
        return Finding("/dev/shm", FAIL, str(error.strerror), "DGL servers share their part through /dev/shm.")
    free = usage.f_bavail * usage.f_frsize
    try:
        needed = shm_bytes_needed(plan, index)
    except BadFile:
        why = "the partition cannot be read" if plan.part_config else "what is needed depends on the partition"
        return Finding("/dev/shm", SKIP, f"{free / 1e6:.0f} MB free; {why}")
    detail = f"{free / 1e6:.0f} MB free; the servers would put about {needed / 1e6:.0f} MB there"
    size = 2 * needed // 10**9 + 1
    remedy = f"sudo mount -o remount,size={size}G /dev/shm (docker: --shm-size={size}g), or more and smaller parts."
    if plan.shm_of_trainers:
        remedy += " Or take a smaller --scale, or --emulate 1: an emulated machine has its own."
    return verdict(free >= needed, "/dev/shm", detail, remedy)


def command_finding(plan: JobPlan, index: int) -> Finding:
    """The working directory, the program that the command names, and its script."""
    if not plan.command:
        return Finding("command", SKIP, "no command given")
    cwd, everywhere = Path(plan.cwd), "It must exist on every machine."
    if not cwd.is_dir():
        return Finding("command", FAIL, f"the working directory {cwd} does not exist", everywhere)
    program, *arguments = plan.command
    path = trainer_env(plan, index, "", 1)["PATH"]
    found = shutil.which(str(cwd / program) if "/" in program else program, path=path)
    if found is None:
        return Finding("command", FAIL, f"there is no program {program!r} on this machine", f"Looked for in {path}")
    script = next((word for word in arguments if not word.startswith("-")), "")
    if Path(program).name.startswith("python") and arguments[:1] == [script] and not (cwd / script).exists():
        return Finding("command", FAIL, f"there is no script {cwd / script}", everywhere)
    return Finding("command", OK, found)


def ip_config_finding(plan: JobPlan) -> Finding:
    """DGL reads the addresses from this file on every machine."""
    if not plan.ip_config:
        return Finding("ip_config", SKIP, "no address file given")
    try:
        listed = [(m.address, m.port) for m in read_ip_config(Path(plan.cwd, plan.ip_config))]
    except InputError as error:
        return Finding("ip_config", FAIL, error.message, error.remedy or "It must exist on every machine.")
    wanted = [(m.address, m.port) for m in plan.machines]
    lists = ", ".join(f"{address}:{port}" for address, port in listed)
    expected = ", ".join(f"{address}:{port}" for address, port in wanted)
    remedy = f"This machine has another file; it should list {expected}"
    return verdict(listed == wanted, "ip_config", f"{plan.ip_config} lists {lists}", remedy)


def log_folder(plan: JobPlan, index: int) -> Finding:
    """The log folder, or the folder that it will be made in, can be written."""
    if not plan.log_dir:
        return Finding("log folder", SKIP, "no log folder given")
    path = Path(plan.cwd) / plan.log_folder(index)
    there = next(folder for folder in [path, *path.parents] if folder.exists())
    good = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    detail = str(path) if good else f"cannot write {path}: {there} is {'not writable' if there.is_dir() else 'a file'}"
    return verdict(good, "log folder", detail, "Choose another --out, or chmod u+w it.")
