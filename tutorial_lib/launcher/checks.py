"""Checks of a machine before a job, which its agent makes: address, ports, /dev/shm, folders."""

import contextlib
import importlib.metadata
import pkgutil
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from tutorial_lib.errors import WaitedTooLong
from tutorial_lib.launcher.findings import FAIL, OK, Finding, Findings, run_checks, verdict
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.network import ipv4_addresses
from tutorial_lib.launcher.shm import SHM, clean_leftovers, job_files
from tutorial_lib.launcher.watch import find_disk_problem


def check_machine(spec: JobSpec, machine_index: int) -> Findings:
    """Run all checks of a machine, and those of the job. Parts of the job that are not given are skipped."""
    findings = run_checks([check_address, check_ports, check_shm, check_folders], spec, machine_index)
    for name, arguments in spec.checks:
        findings += run_checks([pkgutil.resolve_name(name)], machine_index, **arguments)
    return findings


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of packages, which are not imported."""
    versions = {"python": platform.python_version()}
    for package in packages:
        versions[package] = f"not installed for {sys.executable}"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def check_address(spec: JobSpec, machine_index: int) -> Finding:
    """Check that this machine has its address, as the first one of an interface. DGL sees only the first one."""
    address = spec.machines[machine_index].address
    interfaces = ipv4_addresses()
    visible = {addresses[0]: name for name, addresses in interfaces.items() if ":" not in name}  # eth0:1: alias of eth0
    if address in visible:
        return Finding("address", OK, f"{address} on {visible[address]}")
    shown = ", ".join(sorted(visible))
    detail = f"{address} (line {machine_index + 1}) does not belong to this machine; it has {shown}"
    if any(address in addresses for addresses in interfaces.values()):
        detail = f"{address} is not the first address of its interface, and DGL sees only {shown}"
    remedy = "Correct ip_config.txt. Otherwise DGL treats this machine as machine 0."
    for line, other in enumerate(spec.machines, start=1):
        if other.address in visible:
            remedy = f"It has {other.address}, which is in line {line}. Check the order of the lines in ip_config.txt."
    return Finding("address", FAIL, detail, remedy)


def check_ports(spec: JobSpec, machine_index: int) -> Finding:
    """Check the ports on which roles listen, and on machine 0 the port where the ranks meet."""
    port = spec.machines[machine_index].port
    purposes = {port + k: f"{role.name} {k}" for role in spec.roles if role.listens for k in range(role.count)}
    if machine_index == 0 and spec.master_port:
        purposes[spec.master_port] = "the rendezvous of the ranks"
    sockets = [connection for connection in psutil.net_connections("tcp") if connection.status == psutil.CONN_LISTEN]
    owners = {s.laddr.port: f"process {s.pid}" if s.pid else "another user" for s in sockets if s.laddr}
    problems = [f"{number} is above 65535" for number in purposes if number > 65535]
    taken = sorted(purposes.keys() & owners.keys())
    problems += [f"{number} ({purposes[number]}) is taken by {owners[number]}" for number in taken]
    detail = "; ".join(problems) or (f"{', '.join(map(str, purposes))} free" if purposes else "none needed")
    return verdict(not problems, "ports", detail, "Stop this process, wait until it ends, or choose other ports.")


def check_shm(spec: JobSpec, _index: int) -> Finding:
    """Remove the files of our killed jobs from /dev/shm, and check that no other job uses it."""
    try:
        removed = clean_leftovers(spec.shm_patterns, seconds=3.0)
    except WaitedTooLong as error:
        remedy = "Wait until it ends, end it, or use --emulate N, whose machines have a separate /dev/shm."
        return Finding("leftovers", FAIL, f"another job is running on this machine: {error.message}", remedy)
    if files := [f"'{SHM / name}'" for name in job_files(spec.shm_patterns)]:
        remedy = f"If fuser -v {files[0]} prints no process, remove them: rm {' '.join(files)}"
        return Finding("leftovers", FAIL, f"/dev/shm holds {len(files)} files of another job", remedy)
    detail = f"removed {len(removed)} files that a killed job left" if removed else "no files of another job"
    return Finding("leftovers", OK, f"{detail} in /dev/shm")


def check_folders(spec: JobSpec, machine_index: int) -> Iterator[Finding]:
    """Check that the working directory exists, and that the log folder can be written or made."""
    cwd = Path(spec.cwd)
    if spec.cwd and not cwd.is_dir():
        yield Finding("folder", FAIL, f"{cwd} does not exist", "The working directory must exist on every machine.")
    elif spec.log_dir:
        path = cwd / spec.log_folder(machine_index)
        problem = find_disk_problem(next(folder for folder in [path, *path.parents] if folder.exists()))
        yield verdict(problem is None, "log folder", problem or str(path), "Choose another --out, or chmod u+w it.")
