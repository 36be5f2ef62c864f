"""What one machine looks at before a job: its address, ports, limits, /dev/shm, the command, its part of the data.

Runs on the machine itself, in a fresh process, and imports neither torch nor dgl. A check takes the plan and the number
of the machine in it; what the plan does not name is not looked at. No finding names the machine yet.
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
from collections.abc import Iterator
from pathlib import Path

import psutil

import tutorial_lib
from tutorial_lib.cluster.environment import search_path
from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Check, Finding, verdict
from tutorial_lib.cluster.network import ipv4_addresses
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.preflight_parts import part_findings, shm_bytes_needed
from tutorial_lib.cluster.shm import SHM, Leftovers, clean_leftovers, leftovers
from tutorial_lib.cluster.spec import read_ip_config
from tutorial_lib.errors import InputError

LEAST_OPEN_FILES = 1024
DYING_SECONDS = 3.0
FILES_AT_REST, FILES_PER_PEER = 256, 8  # seen: 20 and 5; samplers hand over tensors as open files, too


def environment() -> dict[str, str]:
    """Versions on this machine, without importing what they are versions of; of tutorial_lib, its text counts."""
    found = {"host": platform.node(), "executable": sys.executable, "python": platform.python_version()}
    found |= {name: version_of(name) or "not installed" for name in ("torch", "dgl")}
    return {**found, "tutorial_lib": f"{tutorial_lib.__version__} (text {package_digest()})"}


def version_of(package: str) -> str | None:
    """Return the version of an installed package without importing it, or None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def package_digest(folder: Path | None = None) -> str:
    """Twelve hexadecimal digits of the text of all modules of tutorial_lib: copies of a tree share their version."""
    folder = folder or Path(tutorial_lib.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def address_findings_here(plan: JobPlan, index: int) -> Iterator[Finding]:
    """The plan's address belongs to this machine, and the interface that carries it is up."""
    machine, seen = plan.machines[index], ipv4_addresses()
    own = {address: name for name, addresses in seen.items() for address in addresses}
    carrier = own.get(machine.address)
    if carrier is None:
        has = ", ".join(sorted(own)) or "none"
        detail = f"{machine.address} (line {index + 1}) does not belong to this machine; it has {has}"
        remedy = "DGL would take this machine for machine 0, without a word. Correct ip_config.txt."
        if lines := [(k, other.address) for k, other in enumerate(plan.machines, start=1) if other.address in own]:
            k, address = lines[0]
            remedy = f"It has {address}, of line {k}: are the lines of ip_config.txt in wrong order?"
        yield Finding("address", FAIL, detail, remedy)
        return
    card = carrier.split(":")[0]  # eth0:1 is eth0's, by another name
    first = seen.get(card, ["another one"])[0]
    detail = f"{machine.address} on {carrier}"
    if machine.address != first:
        detail = f"{machine.address} is not the first address of {carrier}, and DGL sees the first one only: {first}"
    remedy = f"DGL would take this machine for machine 0. Use {first} in ip_config.txt, or make it the first."
    yield verdict(machine.address == first, "address", detail, remedy)
    up = psutil.net_if_stats()[card].isup  # gloo and NCCL are told its name
    yield verdict(up, "interface", f"{card} is {'up' if up else 'down'}", f"ip link set {card} up")


def port_findings(plan: JobPlan, index: int) -> Iterator[Finding]:
    """The ports of the DGL servers, and on machine 0 the one where the trainers meet."""
    machine = plan.machines[index]
    wanted = [(machine.address, machine.port + k, f"server {k}") for k in range(plan.servers)]
    if index == 0 and plan.master_port:
        wanted.append(("0.0.0.0", plan.master_port, "the trainers' meeting point"))
    yield from (taken := [finding for entry in wanted if (finding := port_finding(*entry)) is not None])
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
            if error.errno != errno.EADDRINUSE:
                raise
    owner, stop = "a process of another user", ""
    with contextlib.suppress(psutil.Error, OSError, StopIteration):
        pid = next(c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid)
        owner, stop = f"process {pid} ({' '.join(psutil.Process(pid).cmdline())[:80]})", f" or stop process {pid}"
    remedy = f"Wait for it to end{stop}, or choose other ports."
    return Finding("ports", FAIL, f"{port} ({purpose}) is taken by {owner}", remedy)


def open_files(plan: JobPlan, _index: int = 0) -> Finding:
    """A server holds some sockets for each client, a client for each server."""
    peers = max(plan.num_clients, len(plan.machines) * plan.servers)
    needed = max(LEAST_OPEN_FILES, FILES_AT_REST + FILES_PER_PEER * peers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    remedy = f"ulimit -n {needed} (for ssh: in ~/.bashrc, or /etc/security/limits.conf)"
    if hard != infinite and hard < needed:
        remedy += f"; an administrator must first raise the hard limit, {hard}"
    detail = f"limit {'none' if soft == infinite else soft}, needed about {needed}"
    return verdict(soft == infinite or soft >= needed, "open files", detail, remedy)


def segment_findings(*_job: object) -> Iterator[Finding]:
    """DGL's files in /dev/shm from before: those of a dead job of ours are removed. Others DGL would write into."""
    removed, deadline = clean_leftovers(), time.monotonic() + DYING_SECONDS
    while (found := leftovers()).dead and time.monotonic() < deadline:  # its processes are still ending
        time.sleep(0.1)
        removed += clean_leftovers()
    if removed:
        yield Finding("leftovers", OK, f"removed {len(removed)} files that a killed job left in /dev/shm")
    yield from (problems := list(leftover_problems(found)))
    if not removed and not problems:
        yield Finding("leftovers", OK, "no files of another job in /dev/shm")


def leftover_problems(found: Leftovers) -> Iterator[Finding]:
    """A fail for each running job, for one that is still ending, and for files of unknown origin."""
    for job in found.dead if not found.users else []:
        detail = f"{len(job.files)} files of a job that was killed (process {job.pid}) are in /dev/shm"
        yield Finding("leftovers", FAIL, detail, "Its last process has ended only now: start again.")
    for job in found.live:
        detail = f"another job is running on this machine (process {job.pid}); both would use the same /dev/shm"
        remedy = "Wait for it to end, or use --emulate N: each emulated machine has its own /dev/shm."
        yield Finding("leftovers", FAIL, detail, remedy)
    if used := ", ".join(map(str, sorted(set(found.users.values())))):
        detail = f"a DGL job that was not started by tutorial_lib uses /dev/shm: process {used}"
        yield Finding("leftovers", FAIL, detail, "Wait for it to end, or stop it.")
    if idle := [name for name in found.foreign if name not in found.users]:
        detail = f"/dev/shm holds {len(idle)} files of another DGL job, for example {idle[0]}"
        remedy = "If no DGL job is running any more, remove them: rm " + " ".join(f"'{SHM / name}'" for name in idle)
        yield Finding("leftovers", FAIL, detail, remedy)


def shared_memory(plan: JobPlan, index: int) -> Finding:
    """A server that fills /dev/shm is killed by SIGBUS, without a message."""
    free = shutil.disk_usage(SHM).free
    detail = f"{free / 1e6:.0f} MB free"
    if not plan.part_config and not plan.shm_of_trainers:
        return Finding("/dev/shm", SKIP, f"{detail}; what is needed depends on the partition")
    try:
        needed = shm_bytes_needed(plan, index)
    except InputError:
        return Finding("/dev/shm", SKIP, f"{detail}; the partition cannot be read")
    who = "the servers" if plan.part_config else "a small job"
    detail += f"; {who} would put about {needed / 1e6:.0f} MB there"
    size = 2 * needed // 10**9 + 1
    remedy = f"sudo mount -o remount,size={size}G /dev/shm (docker: --shm-size={size}g), or more and smaller parts."
    if plan.shm_of_trainers:
        remedy += " Or take a smaller --scale, or --emulate 1: an emulated machine has its own."
    return verdict(free >= needed, "/dev/shm", detail, remedy)


def command_finding(plan: JobPlan, _index: int) -> Iterator[Finding]:
    """The working directory, the program that the command names, and its script."""
    if not plan.command:
        return
    cwd, everywhere = Path(plan.cwd), "It must exist on every machine."
    program, *arguments = plan.command
    path = search_path()
    found = shutil.which(str(cwd / program) if "/" in program else program, path=path)
    script = next((word for word in arguments if not word.startswith("-")), "")
    if not cwd.is_dir():
        yield Finding("command", FAIL, f"the working directory {cwd} does not exist", everywhere)
    elif found is None:
        yield Finding("command", FAIL, f"there is no program {program!r} on this machine", f"Looked for in {path}")
    elif Path(program).name.startswith("python") and arguments[:1] == [script] and not (cwd / script).exists():
        yield Finding("command", FAIL, f"there is no script {cwd / script}", everywhere)
    else:
        yield Finding("command", OK, found)


def ip_config_finding(plan: JobPlan, _index: int = 0) -> Iterator[Finding]:
    """DGL reads the addresses from this file on every machine."""
    if not plan.ip_config:
        return
    try:
        listed = [(m.address, m.port) for m in read_ip_config(Path(plan.cwd, plan.ip_config))]
    except InputError as error:
        yield Finding("ip_config", FAIL, error.message, error.remedy or "It must exist on every machine.")
        return
    wanted = [(m.address, m.port) for m in plan.machines]
    lists, expected = (", ".join(f"{address}:{port}" for address, port in pairs) for pairs in (listed, wanted))
    remedy = f"This machine has another file; it should list {expected}"
    yield verdict(listed == wanted, "ip_config", f"{plan.ip_config} lists {lists}", remedy)


def log_folder(plan: JobPlan, index: int) -> Iterator[Finding]:
    """The log folder, or the folder that it will be made in, can be written."""
    if plan.log_dir:
        path = Path(plan.cwd) / plan.log_folder(index)
        there = next(folder for folder in [path, *path.parents] if folder.exists())
        good, detail = there.is_dir() and os.access(there, os.W_OK | os.X_OK), str(path)
        if not good:
            detail = f"cannot write {path}: {there} is {'not writable' if there.is_dir() else 'a file'}"
        yield verdict(good, "log folder", detail, "Choose another --out, or chmod u+w it.")


CHECKS: list[Check] = [
    address_findings_here,
    port_findings,
    open_files,
    segment_findings,  # before the size: what is cleaned up is free again
    shared_memory,
    part_findings,
    command_finding,
    ip_config_finding,
    log_folder,
]
