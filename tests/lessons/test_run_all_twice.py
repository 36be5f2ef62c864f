"""Run All, and then once more in the same kernel, as learners do: no lesson may need a fresh one."""

import copy
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbval_support import folder_of_a_lesson, lacking

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# One that launches jobs and one that starts ranks. The other lessons do the same.
LESSONS = ["00_start_here", "05_data_parallel_by_hand"]
pytestmark = pytest.mark.cluster


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_runs_twice_in_one_kernel(lesson, monkeypatch):
    notebook = nbformat.read(NOTEBOOKS / f"{lesson}.ipynb", as_version=4)
    if (reason := lacking(notebook.metadata.tutorial.needs)) is not None:
        pytest.skip(reason)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TUTORIAL_DATASET", "synthetic-products")
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    again = copy.deepcopy(notebook.cells)
    for number, cell in enumerate(again):
        cell["id"] = f"again-{number}"
    notebook.cells += again
    resources = {"metadata": {"path": str(folder_of_a_lesson())}}
    NotebookClient(notebook, timeout=400, kernel_name="python3", resources=resources).execute()
