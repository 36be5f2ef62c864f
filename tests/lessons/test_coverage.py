"""notebooks/COVERAGE.md says where each API is taught; README's table lists every lesson. Both are held to it."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = {path.name[:2]: path for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))}


OLDER = {f"{number:02}" for number in range(16)}  # rows of these lessons may still come without source and output
STATUS = re.compile(r"run|GPU|CPU only|text only|not possible: .+")


class Row(NamedTuple):
    lesson: str
    item: str
    source: str
    code: str
    output: str
    status: str


def rows() -> list[Row]:
    found, lesson = [], ""
    for line in (NOTEBOOKS / "COVERAGE.md").read_text().splitlines():
        if line.startswith("## "):
            lesson = line[3:5]
        elif line.startswith("| ") and not line.startswith("| item |"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            item, source, code, output, status = [cell.replace("\\|", "|") for cell in cells]
            found.append(Row(lesson, item, source, code.strip("`"), output.strip("`"), status))
    return found


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    texts = [
        out.get("text") or out.get("data", {}).get("text/plain") or out.get("traceback") or ""
        for out in cell["outputs"]
    ]
    return "".join("".join(text) for text in texts)


@cache
def code_of(notebook: Path) -> str:
    return "\n\n".join("".join(cell["source"]) for cell in code_cells(notebook))


def test_every_line_of_the_table_is_read():
    assert len(rows()) > 300
    assert all(STATUS.fullmatch(row.status) for row in rows())
    assert all(set(row.source) <= set("1234+, ") for row in rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.lesson} {row.item}")
def test_the_lesson_shows_it(row):
    """The code stands in a cell, and what it printed holds the output; a text stands in any cell."""
    cells = json.loads(LESSONS[row.lesson].read_text())["cells"]
    if row.status == "text only" or row.status.startswith("not possible"):
        assert any(row.code in "".join(cell["source"]) for cell in cells), f"{row.code!r} is nowhere in the lesson"
        return
    showing = [cell for cell in code_cells(LESSONS[row.lesson]) if row.code in "".join(cell["source"])]
    assert showing, f"{row.code!r} is in no code cell"
    assert any(row.output in printed(cell) for cell in showing), (
        f"{row.output!r} is printed by no cell with {row.code!r}"
    )
    if row.lesson not in OLDER:
        assert row.source
        assert row.output


def test_every_lesson_is_covered():
    assert {row.lesson for row in rows()} == set(LESSONS)


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
