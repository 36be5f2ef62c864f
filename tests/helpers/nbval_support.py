"""Adapts nbval 0.11, the pytest plugin that runs our notebooks, to lessons that start processes.

- A cell whose kernel has died fails within about a second. nbval itself waits for --nbval-cell-timeout.
- A kernel works in a temporary folder with copies of notebooks/scripts, because lessons write programs. `!python` and
  `!torchrun` are those of the course, and no output depends on the home folder or on newer versions of packages.
- A notebook whose metadata contain "namespaces" is skipped on a host that does not allow emulated machines.
- The committed outputs are those of a computer with all programs. Therefore a notebook whose cells need a missing
  program is skipped, and one that needs Slurm gets the marker ``root``. Its cells run without these programs in
  lessons/test_run_all.py.
"""

import functools
import importlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from queue import Empty
from typing import Any

import nbval.kernel
import pytest
from nbval.plugin import IPyNbCell

from support.lessons.programs import NEEDS, why_not
from tutorial_lib.launcher.backends.emulated import EmulatedBackend, EmulationUnavailable

CHECK_EVERY = 1.0  # seconds between two checks of the kernel process

SCRIPTS = Path(__file__).resolve().parents[2] / "notebooks" / "scripts"
NO_NEWS = Path(__file__).parents[1] / "programs" / "no_news"
FOLDER = "TUTORIAL_LESSON_FOLDER"  # if set, all lessons share this folder
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []

_await_reply = nbval.kernel.RunningKernel.await_reply
_start_new_kernel = nbval.kernel.start_new_kernel


def await_reply(self: nbval.kernel.RunningKernel, msg_id: str, timeout: float | None = None) -> None:
    """Wait as nbval does, but stop as soon as the kernel process has ended."""
    end = float("inf") if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return _await_reply(self, msg_id, timeout=max(0.0, min(CHECK_EVERY, end - time.monotonic())))
        except Empty:
            if not self.is_alive():
                status = getattr(getattr(self.km.provisioner, "process", None), "returncode", None)
                text = f"the kernel died in this cell (exit status {status}, which is -N after signal N)"
                raise RuntimeError(text) from None
            if time.monotonic() >= end:
                raise


def start_new_kernel(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Start a kernel as nbval does, with the environment described above and the small data set in lesson 12."""
    environment = {**os.environ, "TUTORIAL_DATASET": "synthetic-products"}
    environment["DGLBACKEND"] = "pytorch"  # else the first import of dgl in a home folder prints which one it chose
    # Without a network, ogb sometimes prints that it cannot check for a newer version.
    environment["PYTHONPATH"] = os.pathsep.join([str(NO_NEWS), *filter(None, [environment.get("PYTHONPATH")])])
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    # With this variable, ipykernel does not capture the output of child processes.
    environment.pop("PYTEST_CURRENT_TEST", None)
    return _start_new_kernel(*args, **{**kwargs, "env": environment, "cwd": str(make_lesson_folder())})


def make_lesson_folder() -> Path:
    """Make a folder with the files of the lessons. It is removed when this process ends."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    folder = tempfile.TemporaryDirectory(prefix="lesson-")
    _FOLDERS.append(folder)
    ignored = shutil.ignore_patterns("exercise_*", "out", "mine", "__pycache__")
    scripts = shutil.copytree(SCRIPTS, Path(folder.name, "scripts"), ignore=ignored)
    (scripts / "mine").mkdir()
    return Path(folder.name)


nbval.kernel.RunningKernel.await_reply = await_reply
nbval.kernel.start_new_kernel = start_new_kernel


def pytest_configure(config: pytest.Config) -> None:
    """Find the sanitize file from any working directory, and create matplotlib's font cache, which prints a message."""
    if config.option.nbval or config.option.nbval_lax:
        importlib.import_module("matplotlib.font_manager")
    given = config.option.nbval_sanitize_with
    if given is not None and not os.path.exists(given):
        config.option.nbval_sanitize_with = str(config.rootpath / given)


@functools.cache
def why_no_emulation() -> str | None:
    """Return why this host does not allow emulated machines, or None."""
    try:
        with EmulatedBackend(1):
            return None
    except EmulationUnavailable as error:
        return error.message


def why_not_runnable(needs: Collection[str]) -> str | None:
    """Return why a notebook with these needs cannot run on this host, or None."""
    return why_no_emulation() if "namespaces" in needs else None


def programs_of(notebook: dict[str, Any]) -> set[str]:
    """Return the programs that some cells of a notebook need, as support.lessons.programs reads them."""
    sources = [cell.source for cell in notebook["cells"] if cell.cell_type == "code"]
    listed = {name for source in sources if (found := NEEDS.match(source)) for name in found[1].split(", ")}
    return listed | {name for source in sources for name in re.findall(r'\bavailable\("(\w+)"\)', source)}


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, IPyNbCell):
            programs = programs_of(item.parent.nb)
            if "Slurm" in programs:
                item.add_marker(pytest.mark.root)
            needs = item.parent.nb.metadata.get("tutorial", {}).get("needs", [])
            if reason := why_not_runnable(needs) or next(filter(None, map(why_not, sorted(programs))), None):
                item.add_marker(pytest.mark.skip(reason=reason))
