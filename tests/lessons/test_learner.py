"""Lessons in one folder, with pieces of a second author who knew only docstrings and public tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbval_support import FOLDER, make_lesson_folder
from test_pieces import PIECES, fill

ROOT = Path(__file__).resolve().parents[2]
SECOND = Path(__file__).parent / "second"
PIECE = re.compile(r"%%writefile scripts/mine/(\w+)\.py\n")
NOT_YET = re.compile(r"(\w+)\.py: not yet\. 0 of (\d+) tests pass\.\n.*", re.DOTALL)
LESSONS = "0[0-4]_*.ipynb"  # "0[0-8]_*.ipynb" takes twelve minutes more beside two other tests
LATER = {"cluster", "parallel", "ranks", "pitfalls", "graphbolt_loader", "held_out", "ranking", "link"}
LATER |= {"job", "train", "cache", "job_sbatch", "own_ids", "own_graph", "checkpoint", "watchdog"}
LATER |= {"row_table", "embeddings", "typed", "rgcn", "hetero", "my_finale"}
# Cells that print a free choice of the learner: sampled neighbors, the order of an epoch, the rows of each rank
FREE = re.compile(r"sample_csc\(.*generator\)|sample_blocks\(sample_plain|random_epoch\(torch|no average., 3\)")
CORRECT = (
    "\\1.py: correct. All \\2 tests pass.\n"
    'The lessons use your \\1.py. restore("\\1") brings the course\'s file back.\n'
)


def write_lesson(path: Path, folder: Path) -> Path:
    """Write a lesson with the pieces of a learner and the outputs that they must give."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code" and (found := PIECE.match(cell.source)):
            cell.source = found[0] + fill(found[1], (SECOND / f"{found[1]}.py").read_text())
        if cell.cell_type == "code" and FREE.search(cell.source):  # the assertions of the cell remain
            cell.metadata["tags"] = sorted({*cell.metadata.get("tags", []), "nbval-ignore-output"})
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = NOT_YET.sub(CORRECT, output.text)
    nbformat.write(notebook, folder / path.name)
    return folder / path.name


@pytest.mark.cluster
@pytest.mark.whole_run
@pytest.mark.timeout(2700)
def test_lessons_give_same_results_with_second_solution(emulation, tmp_path):
    """The lessons run in their order, and each uses the pieces of earlier lessons."""
    folder = make_lesson_folder()
    (folder / ".copied.json").write_text("{}")  # as in the folder of make lab, so that check copies the pieces
    lessons = [write_lesson(path, tmp_path) for path in sorted((ROOT / "notebooks").glob(LESSONS))]
    paths = [ROOT, *(ROOT / name for name in ("tests", "tests/helpers", "notebooks", "scripts"))]
    # Kernels would inherit PYTHONPATH, and find the course's pieces in notebooks/ before those of their folder.
    start = "import sys, pytest; sys.path[:0] = sys.argv.pop(1).split(':'); sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, ":".join(map(str, paths))]
    command += ["-q", "-p", "conftest", "-c", str(ROOT / "pyproject.toml")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment[FOLDER] = str(folder)
    done = subprocess.run([*command, *lessons], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10_000:]
    mine = sorted((folder / "scripts" / "mine").glob("*.py"))
    assert {path.stem for path in mine} == {*PIECES} - LATER
    assert [path.read_text() for path in mine] == [(folder / "scripts" / path.name).read_text() for path in mine]
