"""Checks that would have prevented a failure later, each with its remedy: of this computer, and of machines.

Of this computer: Python, packages, libraries, variables, read from files (``import_dgl`` alone tries the real thing);
and limits, /dev/shm, ports, as each machine looks at them before a job. Of machines: that whole preflight.

In a notebook: ``from tutorial_lib.tools.doctor import examine`` and then ``examine()`` as the last line of a cell.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing.pool
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.cluster.checks import open_files, port_findings, segment_findings, shared_memory, version_of
from tutorial_lib.cluster.emulated import MASTER_PORT
from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Check, Finding, Findings, made, verdict
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.preflight import address_findings, examine_cluster
from tutorial_lib.cluster.spec import Machine, read_ip_config
from tutorial_lib.compat.stack import built_for
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, RealMachines

REMAKE = "Remove .venv and run make again, or: pip install -r requirements.lock && pip install --no-deps -e ."
EXPECTED = {"dgl": "2.1.0", "torch": "2.2.1", "torchdata": "0.7.1", "numpy": "1."}
# What each tested stack has besides torch; torchdata is for GraphBolt only, which the modern one has not.
STACKS = {"2.2.1": EXPECTED, "2.13": {"dgl": "2.1.0", "torch": "2.13.", "torchdata": "", "numpy": "2."}}
NAMES = {"2.2.1": "default", "2.13": "modern"}
LEAST_TORCH = (2, 0)
NUMPY_2_TORCH = (2, 3)  # torch built before it cannot exchange arrays with numpy 2
# Modules that dgl imports and whose packages its wheel does not ask for.
UNDECLARED = {"pandas": "pandas", "yaml": "pyyaml", "pydantic": "pydantic", "packaging": "packaging"}
IMPORT_SECONDS, RESOLVE_SECONDS = 60, 3.0
IMPORT = """
from tutorial_lib.compat.stack import graphbolt_problem, import_dgl
import_dgl().graph(([0, 1], [1, 0])).in_degrees()
print("without" if graphbolt_problem() else "with")
"""
SMALL_JOB = JobPlan([Machine("", "0.0.0.0")], [], "", "", "", "", MASTER_PORT, shm_of_trainers=1 << 30)
PORTS_HERE = "matters only where this computer is in an ip_config.txt; emulated machines have their own ports"
SHM_HERE = "matters for lesson 02 and --machines 1, emulated machines have their own"
EMULATED_SECONDS, SSH_SECONDS = 30.0, 60.0


def _folder(name: str) -> Path:
    """Where a package is installed, without importing it; one that does not exist if it is not."""
    try:
        return Path(str(importlib.metadata.distribution(name).locate_file(name)))
    except importlib.metadata.PackageNotFoundError:
        return Path("/nonexistent")


def _torch() -> str | None:
    """Version of torch without its build (+cpu); None where it is not installed."""
    version = version_of("torch")
    return version and version.split("+")[0]


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])


def python() -> Finding:
    """DGL 2.1.0 runs on 3.13 with the wheel for 3.12 and a torch without GraphBolt, see ``scripts/make_venv.sh``."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    good = (3, 10) <= sys.version_info[:2] <= (3, 13)
    remedy = "The course was tested with Python 3.10 to 3.13. Install another (uv python install 3.11), run make again."
    return verdict(good, "python", found, remedy)


def packages() -> Iterator[Finding]:
    """The versions that ``import dgl`` itself depends on, and which of the tested stacks this is, by its torch."""
    torch, numpy = _torch(), version_of("numpy")
    known = next((known for known in STACKS if f"{torch}.".startswith(f"{known}.")), None)
    of_no_stack = {  # what is known to fail then; the rest may work
        "torch": (_numbers(torch) < LEAST_TORCH, "DGL 2.1.0 is for torch 2."),
        "torchdata": (False, ""),
        "numpy": (_numbers(torch) < NUMPY_2_TORCH and _numbers(numpy) >= (2,), f"torch {torch} needs numpy 1."),
    }
    for name, prefix in (STACKS[known] if known else EXPECTED).items():
        found, untested = version_of(name), known is None and name in of_no_stack
        if found is None:
            yield Finding(name, FAIL, "not installed", REMAKE)
            continue
        bad, why = of_no_stack[name] if untested else (not found.startswith(prefix), f"Expected {prefix}*.")
        if untested and not bad:
            yield Finding(name, SKIP, f"{found}: of no stack that was tested here (torch {' or '.join(STACKS)})")
        else:
            yield verdict(not bad, name, found, f"{why} {REMAKE}")
    lacks = "" if torch in built_for([str(_folder("dgl"))]) else ", without GraphBolt"
    if torch is None:
        yield Finding("stack", SKIP, "torch is not installed")
    elif known is None:
        yield Finding("stack", SKIP, f"torch {torch}{lacks}: not tested; `make run` and `make run STACK=modern` are")
    else:
        yield Finding("stack", OK, f"{NAMES[known]} (torch {torch}{lacks})")


def graphbolt() -> Finding:
    """DGL looks for a library named after the torch version, and fails to import without it (dmlc/dgl #7157).

    It also imports ``torchdata.datapipes``, which torchdata 0.10 took out. With tutorial_lib, DGL then loads without
    GraphBolt, see ``compat.stack``; nothing else in DGL needs it.
    """
    torch, known = _torch(), built_for([str(_folder("dgl"))])
    if torch is None or version_of("dgl") is None:
        return Finding("graphbolt", SKIP, "torch or dgl is not installed")
    if torch not in known:
        problem = f"no library for torch {torch} (there is one for {', '.join(known)})"
    elif not (_folder("torchdata") / "datapipes").is_dir():
        problem = "torchdata has no datapipes"
    else:
        return Finding("graphbolt", OK, f"library for torch {torch} and torchdata's datapipes found")
    needed = "lesson 08 and use_graphbolt=True need it, nothing else does"
    return Finding("graphbolt", SKIP, f"{problem}: DGL is loaded without GraphBolt; {needed}")


def undeclared() -> Finding:
    """What dgl imports without asking pip for it."""
    missing = [package for module, package in UNDECLARED.items() if importlib.util.find_spec(module) is None]
    detail = f"{', '.join(missing)} not installed" if missing else f"{', '.join(UNDECLARED.values())} found"
    return verdict(not missing, "other packages", detail, f"dgl imports them without declaring them. {REMAKE}")


def variables() -> Finding:
    """What an earlier job or another tutorial may have left in the shell."""
    backend, mode = os.environ.get("DGLBACKEND", "pytorch"), os.environ.get("DGL_DIST_MODE", "standalone")
    if backend != "pytorch":
        return Finding("variables", FAIL, f"DGLBACKEND is {backend}; DistDGL is for pytorch only", "unset DGLBACKEND")
    if mode != "standalone":
        remedy = "Your own Python would wait for servers: unset DGL_DIST_MODE DGL_ROLE"
        return Finding("variables", FAIL, f"DGL_DIST_MODE is {mode}", remedy)
    stray = sorted(name for name in os.environ if name.startswith("DGL_"))
    note = f"{', '.join(stray)} set in your shell; a job sets its own" if stray else "no DGL_* is set"
    return Finding("variables", OK, note)


def gpus() -> Finding:
    """Whether the builds of torch and dgl can use the GPUs that are here. Without GPUs, everything runs on CPUs."""
    count, dgl = len(gpu_devices()), version_of("dgl")
    if not count:
        return Finding("gpus", SKIP, "this computer has none that a driver shows; everything runs on the CPUs")
    about, many = _folder("torch") / "version.py", f"{count} GPU{'s' if count > 1 else ''}"
    match = about.exists() and re.search(r"^cuda\b[^=]*= *'([^']+)'", about.read_text(), flags=re.MULTILINE)
    if not match:
        remedy = "Install the CUDA build of the same torch version."
        return Finding("gpus", FAIL, f"{many}, but torch is not there or a build without CUDA", remedy)
    status, builds = OK, f"{many}, torch for CUDA {match[1]}, dgl {dgl}"
    if dgl is None or "+cu" not in dgl:
        status = SKIP
        builds = f"{many}, torch for CUDA {match[1]}, but PyPI's dgl is a CPU build: no graph can be put on a GPU"
    return Finding("gpus", status, f"{builds}; train --device cuda samples on the CPU")


def gpu_devices() -> list[str]:
    """Names of the NVIDIA devices that the driver made."""
    return sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))


def import_dgl(code: str = IMPORT, seconds: float = IMPORT_SECONDS) -> Finding:
    """The real thing, in a child: it may fail in many ways, crash, or hang."""
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return Finding("import dgl", FAIL, f"did not end within {seconds:g} s", f"Try it by hand: {sys.executable}")
    if done.returncode == 0:
        return Finding("import dgl", OK, f"works, with dgl.distributed, {done.stdout.split()[-1]} dgl.graphbolt")
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
    return Finding("import dgl", FAIL, said[-1] if said else how, REMAKE)


def host_name() -> Finding:
    """Gloo alone binds the address of the host name; a job names the interface, so this explains, and fails nothing."""
    name, instead = socket.gethostname(), "gloo is told the interface instead"
    try:  # a name server may keep us waiting
        with multiprocessing.pool.ThreadPool(1) as pool:
            address = pool.apply_async(socket.gethostbyname, [name]).get(RESOLVE_SECONDS)
    except multiprocessing.TimeoutError:
        return Finding("host name", SKIP, f"{name}: no answer from the name service within {RESOLVE_SECONDS:g} s")
    except (OSError, ValueError):
        return Finding("host name", OK, f"{name} has no address; {instead}")
    useless = f", which no other machine reaches; {instead}" if address.startswith("127.") else ""
    return Finding("host name", OK, f"{name} is {address}{useless}")


def ssh_client() -> Finding:
    """Real machines are reached with the user's own ssh."""
    missing = "no ssh client; needed for real machines (--ip_config) only: sudo apt install openssh-client"
    return Finding("ssh", OK if (found := shutil.which("ssh")) else SKIP, found or missing)


SOFTWARE: list[Check] = [python, packages, graphbolt, undeclared, variables, gpus]
OF_A_MACHINE: list[Check] = [open_files, segment_findings, shared_memory, port_findings]  # those that need no plan


def examine(
    *,
    emulate: int | None = None,
    on: str | None = None,
    part_config: str | Path | None = None,
    real: RealMachines | None = None,
    quick: bool = False,
) -> Findings:
    """Check this computer and, if asked, the machines of a job. Starts no job, and nothing stays running.

    Args:
        emulate: also start this many emulated machines, run the preflight of a job on each, and stop them.
        on: also run the preflight on running emulated machines of this name.
        part_config: DGL's partition description; each machine then checks its part. The path is that on the machines.
        real: also run the preflight on these machines, over ssh.
        quick: leave out the trial ``import dgl``, which takes some seconds.

    Raises:
        InputError: ``emulate`` and ``real`` together, or an address file that cannot be read.
    """
    if emulate is not None and real is not None:
        raise InputError("choose one of --emulate N and --ip_config FILE")
    if real is not None:
        read_ip_config(real.ip_config)  # a wrong argument is told at once
    found = made(SOFTWARE)
    found += [Finding("import dgl", SKIP, "not tried (quick)")] if quick else made([import_dgl])
    here = [*made(OF_A_MACHINE, SMALL_JOB, 0), *made([host_name, ssh_client])]
    machines = [Finding("emulated machines", SKIP, "not asked for (--emulate N tries it)")]
    if emulate is not None or on is not None or real is not None:
        machines = examine_machines(Layout(emulate, on=on, real=real), part_config)
    elif part_config is not None:
        detail = "which machine serves which part is not known; give --emulate or --ip_config"
        machines.append(Finding("partition", SKIP, detail))
    notes = {"ports": PORTS_HERE}
    if any(finding.check == "emulated machines" and finding.status == OK for finding in machines):
        notes.update({"/dev/shm": SHM_HERE, "leftovers": SHM_HERE})
    for finding in here:
        if finding.status == FAIL and finding.check in notes:
            finding = Finding(finding.check, SKIP, f"{finding.detail}; {notes[finding.check]}")
        found.append(finding)
    return Findings([*found, *machines])


def examine_machines(layout: Layout, part_config: str | Path | None = None) -> list[Finding]:
    """Let machines look at themselves: emulated ones, which are started and stopped, or real ones over ssh.

    A public address is not contacted unless that is allowed.

    Raises:
        InputError: a number of machines that cannot be, or an address file that cannot be read as one.
    """
    real, cluster = layout.real, layout.cluster()
    check, seconds, findings = "emulated machines", EMULATED_SECONDS, Findings()
    if real is not None:
        check, seconds = "ssh login", SSH_SECONDS
        findings += address_findings(cluster.machines, allow_public=real.allow_public)
    if findings.failed:
        return [*findings, Finding("machines", SKIP, "not contacted, as an address is not private")]
    config = "" if part_config is None else str(Path(part_config).absolute())
    try:
        with cluster:
            plan = layout.plan(cluster, command=[], part_config=config, ip_config="", log_dir="", cwd="")
            found = examine_cluster(cluster, plan, timeout=seconds)
    except InputError as error:
        return [*findings, Finding(check, FAIL, error.message, error.remedy)]
    names = ", ".join(machine.name for machine in plan.machines)
    reached = f"{len(plan.machines)} started and stopped"
    if real is not None or layout.on is not None:
        reached = f"{names} answered"
    return [*findings, Finding(check, OK, reached), *found]
