"""notebooks/COVERAGE.md says where each API is taught; README's table lists every lesson. Both are held to it."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = {path.name[:2]: path for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))}


def rows() -> list[tuple[str, str, str]]:
    lines = (NOTEBOOKS / "COVERAGE.md").read_text().splitlines()
    found = [re.fullmatch(r"\| (.+) \| (\d\d) \| `(.+)` \|", line) for line in lines]
    return [match.groups() for match in found if match]


@cache
def code_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_every_line_of_the_table_is_read():
    table = [line for line in (NOTEBOOKS / "COVERAGE.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows()) == len(table) - 1  # less its heading
    assert len(rows()) > 40


@pytest.mark.parametrize(("what", "lesson", "code"), rows())
def test_the_code_stands_in_the_lesson(what, lesson, code):
    assert code in code_of(LESSONS[lesson]), f"{what}: {code!r} is in no code cell of {LESSONS[lesson].name}"


def test_every_lesson_is_covered():
    assert {lesson for _, lesson, _ in rows()} == set(LESSONS)


# Names of the guide and of the tutorials.
NAMES = [
    *("initialize", "DistGraph", "get_partition_book", "node_split", "edge_split", "sample_neighbors", "to_block"),
    *("DistDataLoader", "DistNodeDataLoader", "DistEdgeDataLoader", "MultiLayerNeighborSampler", "BlockSampler"),
    *("DistTensor", "DistEmbedding", "SparseAdagrad", "init_func", "number_of_nodes", "ndata", "edata"),
    *("srcdata", "dstdata", "init_process_group", "part_config", "partition_graph", "ip_config", "use_graphbolt"),
    *("Join", ".join()", "DistributedDataParallel", "fix_openmp", "DistributedItemSampler", "force_even"),
    *("DGL_SERVER_ID", "DGL_NUM_CLIENT", "torchrun"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_guide_occurs_in_a_lesson(name):
    """In a code cell, or in what one prints: the source of a function of ``support``, for one."""
    assert any(name in code_of(path) + outputs_of(path) for path in LESSONS.values())


def lesson_row(notebook: Path) -> str:
    """The cells of README's table that come from the notebook itself."""
    about = json.loads(notebook.read_text())["metadata"]["tutorial"]
    return f"| {about['level']} | {about['minutes']} | {', '.join(about['needs'])} |"


@pytest.mark.parametrize("number", LESSONS)
def test_readme_lists_the_lesson_with_its_own_metadata(number):
    readme = (NOTEBOOKS.parent / "README.md").read_text()
    (line,) = [line for line in readme.splitlines() if f"(notebooks/{LESSONS[number].name})" in line]
    assert lesson_row(LESSONS[number]) in line
    assert f"(notebooks/solutions/{LESSONS[number].name})" in line
    assert (NOTEBOOKS / "solutions" / LESSONS[number].name).exists()


@pytest.mark.parametrize("number", LESSONS)
def test_stubs_are_not_yet_right_and_solutions_are(number):
    """The committed outputs, which nbval compares with a fresh run: every exercise of a lesson has its solution."""
    stub, solution = (outputs_of(folder / LESSONS[number].name) for folder in (NOTEBOOKS, NOTEBOOKS / "solutions"))
    # Lesson 00 shows a wrong answer and its correction first; the last word on each exercise counts.
    verdicts = dict(re.findall(r"^(Exercise \d+): (not yet|correct)", stub, flags=re.MULTILINE))
    assert len(verdicts) >= 2
    assert set(verdicts.values()) == {"not yet"}
    solved = dict(re.findall(r"^(Exercise \d+): (not yet|correct)", solution, flags=re.MULTILINE))
    assert solved == dict.fromkeys(verdicts, "correct")


@cache
def outputs_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    texts = [output.get("text", "") for cell in cells for output in cell.get("outputs", [])]
    return "\n".join("".join(text) for text in texts)
