"""Run All completes, twice in one kernel and without optional programs, which are named."""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbval_support import make_lesson_folder, programs_of, why_not_runnable
from solution_support import NOTEBOOKS

from scripts import anatomy_tools
from support.lessons import programs
from tutorial_lib.launcher.backends import persistent

PRESENT = ["sh", "bash", "env", "ls", "find", "grep", "cat", "sort", "wc", "cut", "rm", "xargs", "hostname"]
PRESENT += ["awk", "head", "sleep", "touch"]  # the last four: the batch script in lesson 16
LESSONS = {
    "09_anatomy_of_a_cluster": ["ps", "ss"],
    "12_finale_ogbn_products": ["sshd", "rsync"],
    "16_real_clusters": ["Slurm"],
    "solutions/16_real_clusters": ["Slurm"],
}


def link(folder: Path, names: list[str]) -> None:
    """Make programs of this computer available in a folder of PATH."""
    for name in names:
        if (path := shutil.which(name, path=os.defpath)) is None:
            pytest.skip(f"this computer has no {name}")
        (folder / name).symlink_to(path)


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set PATH to our environment and basic programs, and return its first folder, which is empty."""
    (first := tmp_path / "first").mkdir()
    (basic := tmp_path / "bin").mkdir()
    link(basic, [*PRESENT, "ssh-keygen"])
    monkeypatch.setenv("PATH", os.pathsep.join([str(first), str(Path(sys.executable).parent), str(basic)]))
    monkeypatch.setattr(programs, "_reported", set())
    return first


def run_all(notebook: nbformat.NotebookNode, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the cells in the folder of a lesson and return their output. Errors are raised."""
    monkeypatch.setenv("TUTORIAL_DATASET", "synthetic-products")
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    resources = {"metadata": {"path": str(make_lesson_folder())}}
    before = set(persistent.running_names())
    try:
        NotebookClient(notebook, timeout=400, kernel_name="python3", resources=resources).execute()
    finally:
        for name in set(persistent.running_names()) - before:  # of a lesson that did not reach its end
            persistent.stop_machines(name)
    return "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", []))


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_lesson_runs_twice_in_one_kernel(monkeypatch):
    """This lesson starts ranks."""
    notebook = nbformat.read(NOTEBOOKS / "05_data_parallel_by_hand.ipynb", as_version=4)
    if (reason := why_not_runnable(notebook.metadata.tutorial.needs)) is not None:
        pytest.skip(reason)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    again = copy.deepcopy(notebook.cells)
    for number, cell in enumerate(again):
        cell["id"] = f"again-{number}"
    notebook.cells += again
    run_all(notebook, monkeypatch)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_runs_without_the_programs(lesson, emulation, bare_path, monkeypatch):
    notebook = nbformat.read(NOTEBOOKS / f"{lesson}.ipynb", as_version=4)
    assert programs_of(notebook) == set(LESSONS[lesson])
    # Lesson 09 ends four jobs in a cell that needs none of the programs, and that takes longest.
    notebook.cells = [cell for cell in notebook.cells if "for name, seconds, extra in (" not in cell.source]
    # After the last cell that depends on a program, only the cell that stops the machines matters here.
    last = max(k for k, cell in enumerate(notebook.cells) if "# needs: " in cell.source or "available(" in cell.source)
    notebook.cells[last + 1 :] = [cell for cell in notebook.cells[last + 1 :] if "machines stop" in cell.source]
    printed = run_all(notebook, monkeypatch)
    for program in LESSONS[lesson]:
        assert printed.count(f"This computer has no {program} (sudo apt install ") == 1


REFUSES = """#!/bin/sh
echo "Permission Denied: Try running again with elevated permissions by going 'sudo env \\"PATH=$PATH\\" !!'" >&2
exit 1
"""


@pytest.mark.timeout(600)
def test_lesson_shows_stack_without_py_spy(emulation, monkeypatch, bare_path):
    """Run lesson 09 up to the first stack of a waiting job."""
    link(bare_path, ["ps", "pgrep", "ss"])
    (bare_path / "py-spy").write_text(REFUSES)
    (bare_path / "py-spy").chmod(0o755)
    notebook = nbformat.read(NOTEBOOKS / "09_anatomy_of_a_cluster.ipynb", as_version=4)
    first = next(k for k, cell in enumerate(notebook.cells) if "trainer_stack =" in cell.source)
    notebook.cells[first + 1 :] = notebook.cells[-2:-1]  # the end: machines stop
    assert "machines stop" in notebook.cells[-1].source
    printed = run_all(notebook, monkeypatch)
    assert "py-spy was refused, so the process printed its stack itself: Permission Denied" in printed
    assert printed.count("in wait_for_senders") >= 2


def test_wait_ends_when_process_fails(tmp_path):
    """The error contains the end of the log."""
    (log := tmp_path / "server-1.log").write_text("PermissionError: .dgl\n")
    process = subprocess.Popen(["sh", "-c", "exit 3"])
    with pytest.raises(RuntimeError, match=r"server-1.log ended with exit code 3.*\nPermissionError: .dgl"):
        anatomy_tools.wait_until(lambda: False, {log: process}, 20)


def test_slurm_needs_root(monkeypatch, capsys):
    monkeypatch.setattr(programs, "find_program", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(programs, "_reported", set())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [programs.available("Slurm") for _ in range(2)] == [False, False]
    assert capsys.readouterr().out.count("Slurm on emulated machines needs root, so the cells") == 1
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert programs.available("Slurm")


def test_server_programs_are_found_outside_path(tmp_path, monkeypatch):
    for name in ("bin", "sbin"):
        (tmp_path / name).mkdir()
    (tmp_path / "sbin" / "sshd").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert programs.find_program("sshd") == str(tmp_path / "sbin" / "sshd")
    assert programs.find_program("no-such-program") is None
