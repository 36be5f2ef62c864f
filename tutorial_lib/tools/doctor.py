"""Checks of this computer and of machines before a job. In a notebook, end a cell with ``examine()``."""

import multiprocessing.pool
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from tutorial_lib.errors import InputError, how_it_ended
from tutorial_lib.job.layout import Layout
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.checks import version_of
from tutorial_lib.launcher.findings import FAIL, OK, SKIP, Check, Finding, Findings, made, verdict

REINSTALL = "Remove .venv and run make again, or: pip install -r requirements.lock && pip install --no-deps -e ."
# Patterns of versions. DGL imports the last four packages without declaring them. The version of torch names the stack.
BOTH = {"python": "3.1[0-3].*", "dgl": "2.1.0", **dict.fromkeys(["pandas", "pyyaml", "pydantic", "packaging"], "?*")}
STACKS = {
    "default": {**BOTH, "torch": "2.2.1", "torchdata": "0.7.1", "numpy": "1.*"},
    "modern": {**BOTH, "torch": "2.13.*", "torchdata": "?*", "numpy": "2.*"},
    "not tested": {**BOTH, "torch": "2.*", "torchdata": "?*", "numpy": "?*"},
}
TRIAL = """import dgl
from tutorial_lib.compat.stack import graphbolt_problem
dgl.graph(([0, 1], [1, 0])).in_degrees().numpy()
print(graphbolt_problem() or "")"""
DEVICES, TRIAL_SECONDS, RESOLVE_SECONDS, MACHINE_SECONDS = Path("/dev"), 60.0, 3.0, 60.0


def packages() -> Iterator[Finding]:
    """The installed versions belong to a tested stack, or DGL may at least work with them."""
    versions = {name: (version_of(name) or "").split("+")[0] for name in STACKS["default"]}
    versions["python"], torch = platform.python_version(), versions["torch"]
    stack = next((name for name, patterns in STACKS.items() if fnmatch(torch, patterns["torch"])), "not tested")
    for name, pattern in STACKS[stack].items():
        remedy = f"Expected {pattern.replace('?*', 'any version')}. {REINSTALL}"
        yield verdict(fnmatch(versions[name], pattern), name, versions[name] or "not installed", remedy)
    yield Finding("stack", SKIP if stack == "not tested" else OK, f"{stack} (torch {torch})")


def variables() -> Finding:
    """Earlier jobs and other tutorials can leave variables in the shell."""
    needed = {"DGLBACKEND": "pytorch", "DGL_DIST_MODE": "standalone"}
    wrong = [name for name, value in needed.items() if os.environ.get(name, value) != value]
    found = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith("DGL_") or name in wrong]
    return verdict(not wrong, "variables", ", ".join(found) or "no DGL_* is set", f"unset {' '.join(wrong)} DGL_ROLE")


def gpus() -> Finding:
    """GPUs need a CUDA build of torch. To sample on GPUs, DGL needs one too."""
    count, torch, dgl = len(list(DEVICES.glob("nvidia[0-9]*"))), version_of("torch") or "", version_of("dgl")
    if not count:
        return Finding("gpus", SKIP, "none found, so everything runs on the CPUs")
    return verdict("+cpu" not in torch, "gpus", f"{count} found, torch {torch}, dgl {dgl}", "Install torch with CUDA.")


def trial_import(code: str = TRIAL, seconds: float = TRIAL_SECONDS) -> Iterator[Finding]:
    """Import DGL in a child process, because the import can crash or hang."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        yield Finding("import dgl", FAIL, f"did not end within {seconds:g} s", f"Try it by hand: {sys.executable}")
        return
    if done.returncode == 0:
        problem = done.stdout.strip().split("\n")[-1]  # dmlc/dgl #7157
        yield Finding("import dgl", OK, "works")
        yield Finding("graphbolt", SKIP if problem else OK, problem or "DGL has the library for this torch")
    else:
        message = done.stderr.strip() or how_it_ended(done.returncode)
        yield Finding("import dgl", FAIL, message.split("\n")[-1], REINSTALL)


def host_name() -> Finding:
    """Look up the address of this computer's name. Jobs do not need it because they name the network interface."""
    name = socket.gethostname()
    try:
        with multiprocessing.pool.ThreadPool(1) as pool:
            address = pool.apply_async(socket.gethostbyname, [name]).get(RESOLVE_SECONDS)
    except (OSError, ValueError, multiprocessing.TimeoutError) as error:
        return Finding("host name", SKIP, f"{name} has no address ({type(error).__name__}), and jobs need none")
    return Finding("host name", OK, f"{name} is {address}")


def programs() -> Iterator[Finding]:
    """Machines over ssh need an ssh client, and copies to machines need rsync."""
    for name, package, option in (("ssh", "openssh-client", "--ip_config"), ("rsync", "rsync", "--copy_to")):
        path = shutil.which(name)
        yield Finding(name, OK if path else SKIP, path or f"not found. {option} needs it: sudo apt install {package}")


CHECKS: list[Check] = [packages, variables, gpus, host_name, programs]


def examine(layout: Layout | None = None, part_config: Path | None = None, *, quick: bool = False) -> Findings:
    """Check this computer and the machines of a layout, by default this computer alone. No process remains.

    Each machine checks its part of ``part_config``. ``quick`` leaves out the trial import of DGL, which takes seconds.
    """
    machines = examine_machines(layout or Layout(None), part_config)
    return Findings([*made(CHECKS), *([] if quick else made([trial_import])), *machines])


def examine_machines(layout: Layout, part_config: Path | None = None) -> Findings:
    """Check the machines of a layout as before a job. A public address is not contacted unless this is allowed."""
    config = str(part_config.absolute()) if part_config else ""
    try:
        with (
            layout.cluster() as backend,
            tempfile.TemporaryDirectory() as logs,
            Agents(backend, Path(logs)) as agents,
        ):
            plan = layout.plan(backend, command=[], part_config=config or "any", ip_config="", log_dir="", cwd="")
            spec = plan.to_spec()
            found = agents.prepare(spec if config else replace(spec, checks=[]))
    except InputError as error:
        return Findings([Finding("machines", FAIL, error.message, error.remedy)])
    return Findings([Finding("machines", OK, f"{len(plan.machines)} answered"), *found])
