"""Fixtures for tests with real processes: small data, partitions, finished runs and a check for leftovers."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import psutil
import pytest
from commands import MARK, tutorial
from nbval.plugin import IPyNbCell
from nbval_support import why_no_emulation

from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.files import lock_folder
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.partition import Partition, partition_dataset
from tutorial_lib.tools.cli import main
from tutorial_lib.trainer.config import TrainConfig

LONG_SECONDS = 900  # time limit of a test that must begin early
GONE_SECONDS = 5.0


class FinishedRun(NamedTuple):
    """A completed run. ``options`` are the options of ``train`` without the run folder ``out``."""

    options: list[str]
    out: Path
    printed: str
    result: dict[str, Any]
    dataset: Dataset


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """With TUTORIAL_NO_SKIP, as in CI, a skipped test fails unless it needs a GPU."""
    report = (yield).get_result()
    wanted = os.environ.get("TUTORIAL_NO_SKIP") and item.get_closest_marker("gpu") is None
    if report.skipped and wanted and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although TUTORIAL_NO_SKIP is set: {report.longrepr[2]}"


@pytest.fixture(scope="session")
def data_root(session_folder: Path) -> Path:
    """Return the folder of caches and partitions, which the whole session shares."""
    folder = session_folder / "data"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def small_dataset(data_root: Path) -> Dataset:
    """``synthetic-products`` with about 12,000 nodes."""
    return load_dataset("synthetic-products", scale=0.005, root=data_root)


@pytest.fixture(scope="session")
def partition_of(small_dataset: Dataset, data_root: Path) -> Callable[[int], Partition]:
    """``partition_of(k)``: the small data set in k parts."""
    return lambda parts: partition_dataset(small_dataset, parts, data_root / f"{parts}-parts", method="kaminpar")


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of pytest-xdist share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@pytest.fixture(scope="session")
def finished_run(emulation: None, data_root: Path, session_folder: Path) -> FinishedRun:
    """A run on two machines with 25 steps per epoch and a date as the seed, which tests must not change."""
    settings = ["--wire", "1gbit", "--scale", "0.005", "--epochs", "3", "--seed", str(seed := 20251120)]
    settings += ["--batch-size", "20", "--fanouts", "5,5", "--cache", "200kB"]
    options = ["--emulate", "2", *settings, "--root", str(data_root)]
    dataset = load_dataset("synthetic-products", scale=0.005, seed=seed, root=data_root)
    return run_once(session_folder / "finished", options, dataset)


@pytest.fixture(scope="session")
def single_run(data_root: Path, small_dataset: Dataset, session_folder: Path) -> FinishedRun:
    """A run in one process. Tests read it or resume a copy of it."""
    options = ["--single-process", "--scale", "0.005", "--hidden-size", "32", "--batch-size", "20", "--fanouts", "5,5"]
    return run_once(session_folder / "single", [*options, "--epochs", "3", "--root", str(data_root)], small_dataset)


def run_once(folder: Path, options: list[str], dataset: Dataset) -> FinishedRun:
    """Train with these options unless another worker of this session has done so."""
    out, printed = folder / "run", folder / "printed.txt"
    with lock_folder(folder):
        if not printed.exists():
            printed.write_text(tutorial("train", *options, "--out", str(out)).stdout)
    return FinishedRun(options, out, printed.read_text(), json.loads((out / "result.json").read_text()), dataset)


@pytest.fixture(scope="session")
def learned_run(emulation, partition_of, session_folder: Path) -> tuple[TrainConfig, dict]:
    """Settings and result of ten epochs on two machines, after which accuracies hardly depend on the seed."""
    config = TrainConfig(epochs=10, fanouts=(5, 5), batch_size=100, hidden_size=64)
    out = session_folder / "learned" / "run"
    with lock_folder(out.parent):
        if not (out / "result.json").exists():
            run_distributed(partition_of(2), Layout(emulate=2), config, out)
    return config, json.loads((out / "result.json").read_text())


@pytest.fixture
def run_here(capsys, monkeypatch, tmp_path) -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """Run a command in the test's folder and in this process, because a new process would import torch."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments: str) -> subprocess.CompletedProcess:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as end:
            main(arguments)
        output = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(end.value.code or 0), output.out, output.err)

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def emulation() -> None:
    """Skip the test if the host does not allow emulated machines."""
    if (reason := why_no_emulation()) is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def forbid_unmarked_machines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sure that only tests with the marker ``cluster``, which ``make test-quick`` skips, start machines."""
    if request.node.get_closest_marker("cluster") is None:
        refuse = Mock(side_effect=AssertionError("a test that starts machines needs the fixture emulation"))
        monkeypatch.setattr(EmulatedBackend, "__enter__", refuse)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need emulated machines or root. Run long tests first to use all workers until the end."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "emulation" in fixtures:
            item.add_marker(pytest.mark.cluster)
        if fixtures & {"slurm", "pods", "small_disk"}:
            item.add_marker(pytest.mark.root)
    limits = [(item.path, item.get_closest_marker("timeout")) for item in items]
    longest = {path for path, limit in limits if limit is not None and limit.args[0] >= LONG_SECONDS}
    with_jobs = {item.path for item in items if item.get_closest_marker("cluster")}
    groups = (longest, {item.path for item in items if isinstance(item, IPyNbCell)}, with_jobs)
    items.sort(key=lambda item: next((k for k, paths in enumerate(groups) if item.path in paths), len(groups)))


def marked_processes(mark: str) -> set[str]:
    """Return other processes that inherited a mark from the test, in any namespace of this host."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.add(f"{process.pid} {' '.join(process.cmdline())[-100:]}")
    return found


def files_and_interfaces() -> set[str]:
    """Return files in shared memory, folders of torchrun and network interfaces, which a job could leave."""
    folders = {str(path) for path in Path(tempfile.gettempdir()).glob("torchelastic_*")}
    # The semaphores of joblib, which scikit-learn imports, are this process's own until it ends.
    shm = {name for name in os.listdir("/dev/shm") if not name.startswith(f"sem.loky-{os.getpid()}-")}
    if not os.environ.get("TUTORIAL_NO_SKIP"):  # elsewhere, other programs may make semaphores meanwhile
        shm = {name for name in shm if not name.startswith("sem.")}
    return {f"/dev/shm/{name}" for name in shm} | folders | {f"interface {name}" for name in psutil.net_if_addrs()}


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test if a process, a file or a network interface remains a few seconds after it."""
    resource_tracker.ensure_running()  # multiprocessing's own process, one for the whole session
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before = files_and_interfaces()
    yield
    deadline = time.monotonic() + GONE_SECONDS
    while left := marked_processes(mark) | (files_and_interfaces() - before):
        if time.monotonic() > deadline:
            for process in marked_processes(mark):  # otherwise, the next tests would fail, too
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(int(process.split()[0])).kill()
            pytest.fail(f"left behind (processes, files, interfaces): {sorted(left)}")
        time.sleep(0.1)
