"""Run the commands of ``tutorial_lib`` and read their run folders."""

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest
from progress_support import find_processes, ranks_past, read_events, wait_until

from tutorial_lib.data import Dataset

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH_OF_ALL = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
MARK = "TUTORIAL_TEST_SESSION"  # set in all processes of a test with nothing_left


def ordinary_user() -> tuple[str, dict[str, Any]]:
    """Return an interpreter and options for subprocess, of user 65534 if the tests run as root.

    If this user cannot read our interpreter, an interpreter of the system replaces it, with ``PYTHONPATH_OF_ALL``.
    """
    if os.geteuid() != 0:
        return sys.executable, {}
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{version}", "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([path, "-c", ""], capture_output=True, cwd="/", **nobody).returncode == 0:
                return path, nobody
    pytest.skip("needs a Python interpreter that user 65534 may run")


def load_script(name: str) -> ModuleType:
    """Import scripts/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def tutorial(*arguments: str, code: int = 0, timeout: float = 600, **options: Any) -> subprocess.CompletedProcess:
    """Run ``python -m tutorial_lib ...`` and check its exit code."""
    command = [sys.executable, "-m", "tutorial_lib", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def train(out: Path, root: Path, *arguments: str) -> dict:
    """Run ``train`` with these options and return its result."""
    tutorial("train", *arguments, "--out", str(out), "--root", str(root))
    return json.loads((out / "result.json").read_text())


def launch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    """Run ``launch`` and return its output, also if it fails."""
    command = [sys.executable, "-m", "tutorial_lib", "launch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd)


def run_program(scripts: Path, program: str, part: Any, more: str, *options: str, start: tuple = ()) -> dict[str, Any]:
    """Run a program of the lessons alone or, with options of ``launch``, on two machines. Return its results."""
    folder, base = scripts.parent, ["--part_config", str(part.config), "--ip_config", "ip_config.txt"]
    words = [f"scripts/{program}", "--graph_name", part.graph_name, *base, *more.split(), "--out", "result.json"]
    if options:
        base += ["--emulate", "2", "--num_omp_threads", "1", "--out", f"logs-{len(list(folder.glob('logs-*')))}"]
        done = launch(*base, *options, shlex.join(["python3", *words]), cwd=folder)
    else:
        environment = {**os.environ, "TMPDIR": str(folder)}  # torchrun leaves a folder there
        command = [sys.executable, *start, *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())


def check_predictions(out: Path, result: dict, dataset: Dataset) -> None:
    """Check that the predictions, in the order of the data set, have exactly the reported accuracies."""
    predictions = np.load(out / "predictions.npy")
    labels = dataset.target_data["label"].numpy()
    assert predictions.shape == labels.shape
    assert predictions.dtype == np.int64
    for name in ("val", "test"):
        mask = dataset.target_data[f"{name}_mask"].numpy()
        assert (predictions[mask] == labels[mask]).mean() == pytest.approx(result[f"{name}_accuracy"], abs=1e-12)


def read_losses(out: Path) -> list[float]:
    """Return the loss of each epoch of a complete run."""
    result = json.loads((out / "result.json").read_text())
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(len(result["epochs"])))
    return [epoch["loss"] for epoch in result["epochs"]]


def wait_for_event(run: Path, kind: str, command: subprocess.Popen, count: int = 1, seconds: float = 120) -> int:
    """Wait until a run has at least ``count`` events of this kind, and return their number."""

    def enough_events() -> int:
        return number if (number := sum(event["kind"] == kind for event in read_events(run))) >= count else 0

    return wait_until(enough_events, f"{count} {kind} event(s)", seconds, command)


def restore_default_signals() -> None:
    """Stop ignoring SIGINT and SIGHUP, which a background shell and nohup do for all child processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start_and_kill(
    arguments: list[str], out: Path, epoch: int, kill: Callable[[subprocess.Popen], None], code: int | None = None
) -> str:
    """Start a run, call ``kill`` in the middle of an epoch, and return the output when the run has ended.

    The exit code must be ``code``, or not 0 if ``code`` is None.
    """
    command = [sys.executable, "-m", "tutorial_lib", "train", *arguments, "--out", str(out)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: ranks_past(out, epoch, 5), f"step 5 of epoch {epoch}", 120, run)
    kill(run)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == code if code is not None else run.returncode != 0, printed
    return printed


def kill_trainer(rank: int) -> Callable[[subprocess.Popen], None]:
    """Return a function for ``start_and_kill`` that kills this rank, the only trainer of its machine."""
    return lambda _run: [trainer.kill() for trainer in find_trainers(rank)]


def find_trainers(machine: int) -> list[psutil.Process]:
    """Return the trainers of a machine in the job of this test."""
    found = find_processes(Path("/"))
    return [psutil.Process(one.pid) for one in found if (one.machine, one.role) == (f"machine-{machine}", "trainer")]
