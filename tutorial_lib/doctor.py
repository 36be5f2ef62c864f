"""Checks of this computer that would have prevented a failure later, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable
from tutorial_lib.cluster.shm import dgl_segments
from tutorial_lib.findings import Finding

OPEN_FILES, OPEN_FILES_LEAST = 4096, 1024
FREE_SHM = 1 << 30
REMAKE = "Remove .venv and run make again, or: pip install -r requirements.lock && pip install --no-deps -e ."


def examine(*, emulate: int | None = None) -> list[Finding]:
    """Run all checks.

    Args:
        emulate: also start this many emulated machines, run a command on each, and stop them.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [_python, _packages, _graphbolt, _open_files]
    findings = [finding for check in checks for finding in check()]
    emulation = _emulation(emulate)
    for finding in [*_shared_memory(), *_segments()]:
        if finding.status == "fail" and emulation.status == "ok":
            detail = f"{finding.detail}; matters for lesson 02 and --machines 1, emulated machines have their own"
            finding = Finding(finding.check, "skip", detail)
        findings.append(finding)
    return [*findings, emulation]


def _verdict(good: bool, check: str, detail: str, remedy: str) -> Finding:
    return Finding(check, "ok" if good else "fail", detail, "" if good else remedy)


def _python() -> Iterator[Finding]:
    found = ".".join(str(part) for part in sys.version_info[:3])
    good = (3, 10) <= sys.version_info[:2] <= (3, 12)
    yield _verdict(good, "python", found, "DGL 2.1.0 exists for Python 3.10 to 3.12; on 3.13 pip installs dgl 0.1.3.")


def _packages() -> Iterator[Finding]:
    """The versions that ``import dgl`` itself depends on."""
    expected = {"dgl": "2.1.0", "torch": "2.2.1", "torchdata": "0.7.1", "numpy": "1."}
    for name, prefix in expected.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "fail", "not installed", REMAKE)
            continue
        yield _verdict(found.startswith(prefix), name, found, f"Expected {prefix}*. {REMAKE}")


def _graphbolt() -> Iterator[Finding]:
    """DGL looks for a library named after the torch version, and fails to import without it."""
    try:
        torch = importlib.metadata.version("torch").split("+")[0]
        folder = Path(str(importlib.metadata.distribution("dgl").locate_file("dgl"))) / "graphbolt"
    except importlib.metadata.PackageNotFoundError:
        yield Finding("graphbolt", "skip", "torch or dgl is not installed")
        return
    library = folder / f"libgraphbolt_pytorch_{torch}.so"
    known = sorted(path.stem.rsplit("_", 1)[1] for path in folder.glob("libgraphbolt_pytorch_*.so"))
    detail = f"library for torch {torch} " + ("found" if library.exists() else "is missing")
    yield _verdict(library.exists(), "graphbolt", detail, f"This dgl has it for torch {', '.join(known)}. {REMAKE}")


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = (
        f"Samplers pass tensors as open files: ulimit -n {OPEN_FILES} (an administrator may raise the limit {hard})"
    )
    yield _verdict(soft >= OPEN_FILES_LEAST, "open files", f"limit {soft}", remedy)


def _shared_memory() -> Iterator[Finding]:
    """A server that fills /dev/shm is killed by SIGBUS, without a message."""
    try:
        usage = os.statvfs("/dev/shm")
    except OSError as error:
        yield Finding("/dev/shm", "fail", str(error.strerror), "DGL servers share their part through /dev/shm.")
        return
    free = usage.f_bavail * usage.f_frsize
    remedy = "Make it larger: sudo mount -o remount,size=4G /dev/shm (docker: --shm-size=4g)"
    yield _verdict(free >= FREE_SHM, "/dev/shm", f"{free / 1e9:.1f} GB free", remedy)


def _segments() -> Iterator[Finding]:
    left = dgl_segments()
    detail = f"{len(left)} files of a DGL job in /dev/shm"
    names = " ".join(f"/dev/shm/{name}" for name in left[:3]) + (" ..." if len(left) > 3 else "")
    yield _verdict(not left, "leftovers", detail, f"If no DGL job is running any more, remove them: {names}")


def _emulation(count: int | None) -> Finding:
    if count is None:
        return Finding("emulated machines", "skip", "not asked for (--emulate N tries it)")
    try:
        with EmulatedCluster(count) as cluster:
            codes = [cluster.popen(machine, ["true"]).wait(timeout=10) for machine in cluster.machines]
    except EmulationUnavailable as error:
        return Finding("emulated machines", "fail", error.message, error.remedy)
    except subprocess.TimeoutExpired:
        return Finding("emulated machines", "fail", "started, but `true` did not end on one of them within 10 s")
    return _verdict(codes == [0] * count, "emulated machines", f"{count} started and stopped", "See the message above.")
