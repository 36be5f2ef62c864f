"""Checks of this computer and of machines before a job. In a notebook, end a cell with ``examine()``."""

import os
import shutil
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
from tutorial_lib.launcher.findings import FAIL, OK, SKIP, Finding, Findings, made, verdict

REINSTALL = "Remove .venv and run make again, or: pip install -r requirements.lock && pip install --no-deps -e ."
STACKS = {"default": "2.2.1", "modern": "2.13.*"}  # tested versions of torch, with DGL 2.1.0
TRIAL = """import dgl
from tutorial_lib.compat.stack import graphbolt_problem
dgl.graph(([0, 1], [1, 0])).in_degrees().numpy()
print(graphbolt_problem() or "works, and DGL has its GraphBolt library for this torch")"""  # dmlc/dgl #7157
DEVICES, MACHINE_SECONDS = Path("/dev"), 60.0


def packages() -> Iterator[Finding]:
    """DGL works with tested versions of torch, and perhaps with others. The trial import checks other packages."""
    dgl, torch = version_of("dgl"), version_of("torch") or "not installed"
    yield verdict(dgl == "2.1.0", "dgl", dgl or "not installed", f"Expected 2.1.0. {REINSTALL}")
    stack = next((name for name, tested in STACKS.items() if fnmatch(torch.split("+")[0], tested)), "not tested")
    yield verdict(torch.startswith("2."), "torch", f"{torch} (stack: {stack})", f"Expected 2.2.1. {REINSTALL}")


def variables() -> Finding:
    """Earlier jobs and other tutorials can leave variables in the shell."""
    needed = {"DGLBACKEND": "pytorch", "DGL_DIST_MODE": "standalone"}
    wrong = [name for name, value in needed.items() if os.environ.get(name, value) != value]
    found = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith("DGL_") or name in wrong]
    return verdict(not wrong, "variables", ", ".join(found) or "no DGL_* is set", f"unset {' '.join(wrong)} DGL_ROLE")


def programs() -> Iterator[Finding]:
    """Machines over ssh need an ssh client, copies to machines rsync, and GPUs a torch that was built for CUDA."""
    for name, package, option in (("ssh", "openssh-client", "--ip_config"), ("rsync", "rsync", "--copy_to")):
        path = shutil.which(name)
        yield Finding(name, OK if path else SKIP, path or f"not found. {option} needs it: sudo apt install {package}")
    count, torch = len(list(DEVICES.glob("nvidia[0-9]*"))), version_of("torch") or ""
    yield verdict(not count or "+cpu" not in torch, "gpus", f"{count} found, torch {torch}", "Install torch with CUDA.")


def trial_import(code: str = TRIAL, seconds: float = 60.0) -> Finding:
    """Import DGL in a child process, because the import can crash or hang."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return Finding("import dgl", FAIL, f"did not end within {seconds:g} s", f"Try it by hand: {sys.executable}")
    words = (done.stderr if done.returncode else done.stdout).strip() or how_it_ended(done.returncode)
    return verdict(done.returncode == 0, "import dgl", words.split("\n")[-1], REINSTALL)


def examine(layout: Layout = Layout(None), part_config: Path | None = None) -> Findings:
    """Check this computer and the machines of a layout. Each machine checks its part of ``part_config``."""
    return Findings([*made([packages, variables, programs, trial_import]), *examine_machines(layout, part_config)])


def examine_machines(layout: Layout, part_config: Path | None = None) -> Findings:
    """Check the machines of a layout as before a job. A public address is not contacted unless this is allowed."""
    config, machines = str(part_config.absolute()) if part_config else "", layout.cluster()
    try:
        with machines as backend, tempfile.TemporaryDirectory() as logs, Agents(backend, Path(logs)) as agents:
            plan = layout.plan(backend, command=[], part_config=config or "any", ip_config="", log_dir="", cwd="")
            spec = plan.to_spec()
            found = agents.prepare(spec if config else replace(spec, checks=[]))
    except InputError as error:
        return Findings([Finding("machines", FAIL, error.message, error.remedy)])
    return Findings([Finding("machines", OK, f"{len(plan.machines)} answered"), *found])
