"""Checks of a machine before a job, which its agent makes: address, ports, limits, /dev/shm, command and logs."""

import contextlib
import importlib
import importlib.metadata
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from tutorial_lib.launcher.environment import search_path, user_environment
from tutorial_lib.launcher.findings import FAIL, OK, Finding, Findings, made, verdict
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.network import ipv4_addresses, listening_ports
from tutorial_lib.launcher.shm import SHM, clean_leftovers, job_files, running_jobs
from tutorial_lib.launcher.watch import disk_trouble

LEAST_OPEN_FILES = 1024
DYING_SECONDS = 3.0
FILES_AT_REST, FILES_PER_PEER = 256, 16  # measured: 20 and 5, and samplers pass tensors as open files


def check_machine(spec: JobSpec, index: int) -> Findings:
    """Run all checks of machine ``index``, and those of the job. Parts of the job that are not given are skipped."""
    own: list[Callable[..., Finding | Iterable[Finding]]] = [check_address, check_ports, check_open_files, check_shm]
    found = made([*own, check_command, check_log_folder], spec, index)
    for name, arguments in spec.checks:
        module, _, function = name.partition(":")
        found += made([getattr(importlib.import_module(module), function)], index, **arguments)
    return found


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of packages, which are not imported."""
    found = {"python": platform.python_version()}
    for package in packages:
        found[package] = version_of(package) or f"not installed for {sys.executable}"
    return found


def version_of(package: str) -> str | None:
    """Return the version of an installed package without importing it, or None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def check_address(spec: JobSpec, index: int) -> Finding:
    """Check that this machine has its address, as the first one of an interface. DGL sees only the first one."""
    wanted, known = spec.machines[index].address, ipv4_addresses()
    interfaces = {address: name for name, addresses in known.items() for address in addresses}
    if wanted not in interfaces:
        remedy = "Otherwise DGL takes this machine for machine 0. Correct ip_config.txt."
        for line, other in enumerate(spec.machines, start=1):
            if other.address in interfaces:
                remedy = f"It has {other.address}, of line {line}: are the lines of ip_config.txt in wrong order?"
        detail = f"{wanted} (line {index + 1}) does not belong to this machine; it has {', '.join(sorted(interfaces))}"
        return Finding("address", FAIL, detail, remedy)
    interface = interfaces[wanted].split(":")[0]  # eth0:1 is another name of eth0
    first = known.get(interface, [wanted])[0]
    if wanted != first:
        remedy = f"Otherwise DGL takes this machine for machine 0. Use {first} in ip_config.txt, or make it the first."
        detail = f"{wanted} is not the first address of {interface}, and DGL sees the first one only: {first}"
        return Finding("address", FAIL, detail, remedy)
    return Finding("address", OK, f"{wanted} on {interface}")


def check_ports(spec: JobSpec, index: int) -> Iterator[Finding]:
    """Check the ports on which roles listen, and on machine 0 the port where the ranks meet."""
    port = spec.machines[index].port
    wanted = {port + k: f"{role.name} {k}" for role in spec.roles if role.listens for k in range(role.count)}
    if index == 0 and spec.master_port:
        wanted[spec.master_port] = "the meeting point of the ranks"
    taken = sorted(wanted.keys() & listening_ports())
    sockets = psutil.net_connections("tcp") if taken else []
    owners = {s.laddr.port: s.pid for s in sockets if s.laddr and s.status == psutil.CONN_LISTEN}
    for number in taken:
        detail = f"{number} ({wanted[number]}) is taken by process {owners.get(number) or 'of another user'}"
        yield Finding("ports", FAIL, detail, "Stop this process, wait for its end, or choose other ports.")
    if (last := max(wanted, default=0)) > 65535:
        yield Finding("ports", FAIL, f"{last} is above 65535", "Choose a smaller port in ip_config.txt.")
    elif wanted and not taken:
        yield Finding("ports", OK, f"{', '.join(map(str, wanted))} free")


def check_open_files(spec: JobSpec, _index: int) -> Finding:
    """Check the limit of open files. A process holds some sockets for each process of the other roles."""
    peers = len(spec.machines) * sum(role.count for role in spec.roles)
    needed = max(LEAST_OPEN_FILES, FILES_AT_REST + FILES_PER_PEER * peers)
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = limit == resource.RLIM_INFINITY
    detail = f"limit {'none' if unlimited else limit}, needed about {needed}"
    remedy = f"ulimit -n {needed} (for ssh: in ~/.bashrc). The hard limit in /etc/security/limits.conf is {hard_limit}."
    return verdict(unlimited or limit >= needed, "open files", detail, remedy)


def check_shm(spec: JobSpec, _index: int) -> Finding:
    """Remove the files of our killed jobs from /dev/shm, and check that no other job uses it."""
    removed, running = clean_leftovers(spec.shm_patterns, DYING_SECONDS), running_jobs()
    if running:
        detail = f"another job is running on this machine ({running[0]}); both would use the same /dev/shm"
        remedy = "Wait for its end, or use --emulate N: each emulated machine has its own /dev/shm."
        return Finding("leftovers", FAIL, detail, remedy)
    if files := job_files(spec.shm_patterns):
        detail = f"/dev/shm holds {len(files)} files of another job, for example {files[0]}"
        remedy = f"If fuser -v '{SHM / files[0]}' prints no process, remove them: rm "
        return Finding("leftovers", FAIL, detail, remedy + " ".join(f"'{SHM / name}'" for name in files))
    if removed:
        return Finding("leftovers", OK, f"removed {len(removed)} files that a killed job left in /dev/shm")
    return Finding("leftovers", OK, "no files of another job in /dev/shm")


def check_command(spec: JobSpec, _index: int) -> Iterator[Finding]:
    """Check that this machine has the working directory, the programs of the job and their scripts."""
    cwd, path = Path(spec.cwd), user_environment(spec).get("PATH", search_path())
    if spec.cwd and not cwd.is_dir():
        yield Finding("command", FAIL, f"there is no folder {cwd}", "The working directory must exist everywhere.")
        return
    for program, *arguments in {tuple(role.command or spec.template or ()) for role in spec.roles} - {()}:
        found = shutil.which(str(cwd / program) if "/" in program else program, path=path)
        yield verdict(found is not None, "command", found or f"there is no program {program!r}", f"PATH is {path}.")
        if Path(program).name.startswith("python") and arguments and not arguments[0].startswith("-"):
            script = cwd / arguments[0]
            if not script.exists():
                yield Finding("command", FAIL, f"there is no file {script}", "It must exist on every machine.")


def check_log_folder(spec: JobSpec, index: int) -> Iterator[Finding]:
    """Check that the log folder, or the folder in which it will be made, can be written."""
    if spec.log_dir:
        path = Path(spec.cwd) / spec.log_folder(index)
        problem = disk_trouble(next(folder for folder in [path, *path.parents] if folder.exists()))
        yield verdict(problem is None, "log folder", problem or str(path), "Choose another --out, or chmod u+w it.")
