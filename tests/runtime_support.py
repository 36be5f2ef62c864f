"""Fixtures for tests that start real processes: small data, its partitions, and a look at what is left behind."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable
from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.partition import Partition, partition_dataset

MARK = "TUTORIAL_TEST_SESSION"
GONE_SECONDS = 5.0


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """With TUTORIAL_NO_SKIP (in CI), a test that would skip fails: there, everything it needs must be there."""
    report = (yield).get_result()
    if report.skipped and os.environ.get("TUTORIAL_NO_SKIP") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although TUTORIAL_NO_SKIP is set: {report.longrepr[2]}"


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of caches and partitions, shared by the session."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def small_dataset(data_root: Path) -> Dataset:
    """``synthetic-products`` with about 12,000 nodes."""
    return load_dataset("synthetic-products", scale=0.005, root=data_root)


@pytest.fixture(scope="session")
def partition_of(small_dataset: Dataset, data_root: Path) -> Callable[[int], Partition]:
    """``partition_of(k)``: the small data set in k parts."""
    return lambda parts: partition_dataset(small_dataset, parts, data_root / f"{parts}-parts", method="metis")


@pytest.fixture(scope="session")
def emulation() -> None:
    """Skips where the host does not allow emulated machines, with the reason that it gives."""
    try:
        with EmulatedCluster(1):
            pass
    except EmulationUnavailable as error:
        pytest.skip(error.message)


def marked_processes(mark: str) -> set[str]:
    """Processes on this host, also in other namespaces, that inherited a mark from the test; not the test's own."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.add(f"{process.pid} {' '.join(process.cmdline())[-100:]}")
    return found


def files_and_interfaces() -> tuple[set[str], set[str]]:
    """What a job could leave on this host: shared memory, torchrun's folders; network interfaces."""
    folders = {path.name for path in Path(tempfile.gettempdir()).glob("torchelastic_*")}
    shm = set(os.listdir("/dev/shm"))
    if not os.environ.get("TUTORIAL_NO_SKIP"):  # elsewhere, other programs may make semaphores meanwhile
        shm = {name for name in shm if not name.startswith("sem.")}
    return shm | folders, set(psutil.net_if_addrs())


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test when a process, a file or a network interface is left a few seconds after it."""
    resource_tracker.ensure_running()  # multiprocessing's own process, one for the whole session
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before = (set(), *files_and_interfaces())
    yield
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        now = (marked_processes(mark), *files_and_interfaces())
        left = [sorted(new - old) for new, old in zip(now, before, strict=True)]
        if not any(left):
            return
        assert time.monotonic() < deadline, f"left behind (processes, files, interfaces): {left}"
        time.sleep(0.1)
