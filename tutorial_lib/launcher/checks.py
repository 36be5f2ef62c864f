"""Checks of one machine before a job: its address, ports, limits, /dev/shm, the command, and its part of the data.

A check takes the plan and the index of the machine. It skips everything that the plan does not name. The checks run on
the machine in a new process, which imports neither torch nor dgl.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

import tutorial_lib
from tutorial_lib.errors import InputError
from tutorial_lib.job.dgl import SHM_PATTERNS, JobPlan
from tutorial_lib.job.parts import part_findings, shm_bytes_needed
from tutorial_lib.launcher.findings import FAIL, OK, SKIP, Check, Finding, verdict
from tutorial_lib.launcher.network import ipv4_addresses, listening_ports
from tutorial_lib.launcher.shm import SHM, clean_leftovers, job_files, running_jobs
from tutorial_lib.launcher.watch import disk_trouble

LEAST_OPEN_FILES = 1024
DYING_SECONDS = 3.0
FILES_AT_REST, FILES_PER_PEER = 256, 8  # measured: 20 and 5; samplers pass tensors as open files, too


def environment() -> dict[str, str]:
    """Return versions on this machine without importing the packages, and for tutorial_lib a digest of its text."""
    found = {"host": platform.node(), "executable": sys.executable, "python": platform.python_version()}
    found |= {name: version_of(name) or "not installed" for name in ("torch", "dgl")}
    return {**found, "tutorial_lib": f"{tutorial_lib.__version__} (text {package_digest()})"}


def version_of(package: str) -> str | None:
    """Return the version of an installed package without importing it, or None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def package_digest() -> str:
    """Return twelve hexadecimal digits that change with the text of tutorial_lib."""
    folder, digest = Path(tutorial_lib.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def address_findings_here(plan: JobPlan, index: int) -> Iterator[Finding]:
    """Check that this machine has the address of the plan, and that DGL finds it there."""
    machine, known = plan.machines[index], ipv4_addresses()
    interfaces = {address: name for name, addresses in known.items() for address in addresses}
    if machine.address not in interfaces:
        own = ", ".join(sorted(interfaces))
        detail = f"{machine.address} (line {index + 1}) does not belong to this machine; it has {own}"
        remedy = "Otherwise DGL takes this machine for machine 0. Correct ip_config.txt."
        for line, other in enumerate(plan.machines, start=1):
            if other.address in interfaces:
                remedy = f"It has {other.address}, of line {line}: are the lines of ip_config.txt in wrong order?"
        yield Finding("address", FAIL, detail, remedy)
        return
    interface = interfaces[machine.address].split(":")[0]  # eth0:1 is another name of eth0
    first = known.get(interface, ["another one"])[0]
    good, detail = machine.address == first, f"{machine.address} on {interface}"
    if not good:
        detail = f"{machine.address} is not the first address of {interface}, and DGL sees the first one only: {first}"
    remedy = f"Otherwise DGL takes this machine for machine 0. Use {first} in ip_config.txt, or make it the first."
    yield verdict(good, "address", detail, remedy)


def port_findings(plan: JobPlan, index: int) -> Iterator[Finding]:
    """Check the ports of the DGL servers, and on machine 0 the port of the trainers' store."""
    machine = plan.machines[index]
    wanted = {machine.port + k: f"server {k}" for k in range(plan.servers)}
    if index == 0 and plan.master_port:
        wanted[plan.master_port] = "the trainers' meeting point"
    taken = sorted(wanted.keys() & listening_ports())
    sockets = psutil.net_connections("tcp") if taken else []
    owners = {s.laddr.port: s.pid for s in sockets if s.laddr and s.status == psutil.CONN_LISTEN}
    for port in taken:
        detail = f"{port} ({wanted[port]}) is taken by process {owners.get(port) or 'of another user'}"
        yield Finding("ports", FAIL, detail, "Stop this process, wait for its end, or choose other ports.")
    if (last := max(wanted, default=0)) > 65535:
        yield Finding("ports", FAIL, f"{last} is above 65535", "Choose a smaller port in ip_config.txt.")
    elif not taken:
        yield Finding("ports", OK, f"{', '.join(map(str, wanted))} free")


def open_files(plan: JobPlan, _index: int = 0) -> Finding:
    """Check the limit of open files. A server holds some sockets for each client, and a client for each server."""
    peers = max(plan.num_clients, len(plan.machines) * plan.servers)
    needed = max(LEAST_OPEN_FILES, FILES_AT_REST + FILES_PER_PEER * peers)
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = limit == resource.RLIM_INFINITY
    detail = f"limit {'none' if unlimited else limit}, needed about {needed}"
    remedy = f"ulimit -n {needed} (for ssh: in ~/.bashrc). The hard limit in /etc/security/limits.conf is {hard_limit}."
    return verdict(unlimited or limit >= needed, "open files", detail, remedy)


def segment_findings(*_job: object) -> Iterator[Finding]:
    """Remove the files of our killed jobs from /dev/shm, and check that no other job uses it."""
    removed, running = clean_leftovers(SHM_PATTERNS, DYING_SECONDS), running_jobs()
    if running:
        detail = f"another job is running on this machine ({running[0]}); both would use the same /dev/shm"
        remedy = "Wait for its end, or use --emulate N: each emulated machine has its own /dev/shm."
        yield Finding("leftovers", FAIL, detail, remedy)
    elif files := job_files(SHM_PATTERNS):
        detail = f"/dev/shm holds {len(files)} files of another DGL job, for example {files[0]}"
        remedy = f"If fuser -v '{SHM / files[0]}' prints no process, remove them: rm "
        yield Finding("leftovers", FAIL, detail, remedy + " ".join(f"'{SHM / name}'" for name in files))
    elif removed:
        yield Finding("leftovers", OK, f"removed {len(removed)} files that a killed job left in /dev/shm")
    else:
        yield Finding("leftovers", OK, "no files of another job in /dev/shm")


def shared_memory(plan: JobPlan, index: int) -> Finding:
    """Check the size of /dev/shm. A server that fills it is killed by SIGBUS without a message."""
    free, needed = shutil.disk_usage(SHM).free, 0
    with contextlib.suppress(InputError):  # another finding reports it
        needed = shm_bytes_needed(plan, index)
    if not needed:
        return Finding("/dev/shm", SKIP, f"{free / 1e6:.0f} MB free; what is needed depends on the partition")
    job = "the servers" if plan.part_config else "a small job"
    detail = f"{free / 1e6:.0f} MB free; {job} would put about {needed / 1e6:.0f} MB there"
    size = 2 * needed // 10**9 + 1
    remedy = f"sudo mount -o remount,size={size}G /dev/shm (docker: --shm-size={size}g), or use more and smaller parts."
    return verdict(free >= needed, "/dev/shm", detail, remedy)


def command_finding(plan: JobPlan, _index: int) -> Iterator[Finding]:
    """Check that this machine has the program of the job, its script and its address file."""
    if not plan.command:
        return
    cwd, (program, *arguments) = Path(plan.cwd), plan.command
    default = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    search_path = os.path.expandvars(plan.env.get("PATH", default))
    found = shutil.which(str(cwd / program) if "/" in program else program, path=search_path)
    yield verdict(found is not None, "command", found or f"there is no program {program!r}", f"PATH is {search_path}.")
    files = [plan.ip_config]
    if Path(program).name.startswith("python") and arguments and not arguments[0].startswith("-"):
        files.append(arguments[0])
    for path in (cwd / name for name in files):
        if not path.exists():
            yield Finding("command", FAIL, f"there is no file {path}", "It must exist on every machine.")


def log_folder(plan: JobPlan, index: int) -> Iterator[Finding]:
    """Check that the log folder, or the folder in which it will be made, can be written."""
    if plan.log_dir:
        path = Path(plan.cwd) / plan.log_folder(index)
        problem = disk_trouble(next(folder for folder in [path, *path.parents] if folder.exists()))
        yield verdict(problem is None, "log folder", problem or str(path), "Choose another --out, or chmod u+w it.")


CHECKS: list[Check] = [
    address_findings_here,
    port_findings,
    open_files,
    segment_findings,  # before shared_memory, because it frees memory
    shared_memory,
    part_findings,
    command_finding,
    log_folder,
]
