"""notebooks/COVERAGE.md and the table of README agree with the lessons."""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = {path.name[:2]: path for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))}
STATUS = re.compile(r"run|exercise|GPU|CPU only|text only|not possible: .+")
SOURCES = re.compile(r"([1-4+](, [1-4+])*)?")
PROGRAM = re.compile(r"%%writefile scripts/(?:mine/)?(\w+)\.(?:py|sbatch)\n")
PIECE = re.compile(r"%%writefile scripts/mine/(\w+\.(?:py|sbatch))\n")


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
        elif line.startswith("|") and not line.startswith(("| item |", "|---|")):
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


def source_of(cell: dict[str, Any]) -> str:
    """Return a code cell without comments, and a piece without its holes."""
    source = "".join(cell["source"])
    if found := PIECE.match(source):
        source = found[0] + (NOTEBOOKS / "scripts" / found[1]).read_text()
    return re.sub(r"^\s*#.*\n?", "", source, flags=re.MULTILINE)


def shown_output(cell: dict[str, Any], cells: list[dict[str, Any]]) -> str:
    """Return the output of a cell. If the cell writes a program, return the output of cells that run this program or a
    program that imports it, because "Writing scripts/NAME.py" alone shows no result."""
    found = PROGRAM.match("".join(cell["source"]))
    if not found:
        return printed(cell)
    programs = {match[1]: source_of(c) for c in cells if (match := PROGRAM.match("".join(c["source"])))}
    names = {found[1]}
    for _ in programs:
        imports = re.compile(rf"^\s*(import|from) (scripts\.)?({'|'.join(names)})\b", re.MULTILINE)
        names |= {name for name, source in programs.items() if imports.search(source)}
    runs = re.compile(rf"\bscripts[/.]({'|'.join(names)})\b")
    others = [c for c in cells if not PROGRAM.match("".join(c["source"]))]
    running = [c for c in others if runs.search(source_of(c))]
    return "".join(printed(c) for c in [cell, *running]) if running else ""


@cache
def code_of(notebook: Path) -> str:
    return "\n\n".join("".join(cell["source"]) for cell in code_cells(notebook))


def test_every_table_row_is_parsed():
    assert len(rows()) > 300
    assert all(STATUS.fullmatch(row.status) for row in rows())
    assert all(SOURCES.fullmatch(row.source) for row in rows())
    assert all(row.item and len(row.code) >= 4 for row in rows())
    twice = [item for item, count in Counter((row.lesson, row.item) for row in rows()).items() if count > 1]
    assert twice == []


def test_sections_exist_in_their_lessons():
    headings = re.findall(r"^## (\d\d) \[.+\]\((.+)\)$", (NOTEBOOKS / "COVERAGE.md").read_text(), re.MULTILINE)
    assert headings == [(number, path.name) for number, path in LESSONS.items()]
    assert {row.lesson for row in rows()} == set(LESSONS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.lesson} {row.item}")
def test_lesson_contains_code_and_output(row):
    """A cell contains the code and its output. A text can be in any cell."""
    cells = json.loads(LESSONS[row.lesson].read_text())["cells"]
    if row.status == "text only" or row.status.startswith("not possible"):
        assert any(row.code in "".join(cell["source"]) for cell in cells), f"{row.code!r} is nowhere in the lesson"
        return
    code = code_cells(LESSONS[row.lesson])
    showing = [cell for cell in code if row.code in source_of(cell)]
    assert showing, f"{row.code!r} is in no code cell"
    assert any(row.output in shown_output(cell, code) for cell in showing), (
        f"{row.output!r} is printed by no cell with {row.code!r}, nor by one that runs it"
    )
    if row.status == "exercise":
        assert re.match(r"Exercise \d", row.output)
    if row.status == "GPU":
        assert "NVIDIA" in json.dumps(cells), "no cell names the GPU"
    assert row.source
    assert len(row.output) >= 3


# Names of the guide and of the tutorials that are in no column "code" or "output" of COVERAGE.md.
NAMES = "DistDataLoader BlockSampler dstdata DistributedItemSampler DGL_NUM_CLIENT set_sharing_strategy"


@pytest.mark.parametrize("name", NAMES.split())
def test_every_api_of_the_guide_occurs_in_a_lesson(name):
    """The name is in a code cell or in an output, for example in the source of a function of ``support``."""
    assert any(name in code_of(path) + outputs_of(path) for path in LESSONS.values())


@pytest.mark.parametrize("number", LESSONS)
def test_readme_table_agrees_with_lesson_metadata(number):
    name = LESSONS[number].name
    readme = (NOTEBOOKS.parent / "README.md").read_text()
    (line,) = [line for line in readme.splitlines() if f"(notebooks/{name})" in line]
    about = json.loads(LESSONS[number].read_text())["metadata"]["tutorial"]
    writing = f" + {about['writing']}" if "writing" in about else ""
    assert f"| {about['level']} | {about['minutes']}{writing} | {', '.join(about['needs'])} |" in line
    assert f"(notebooks/solutions/{name})" in line


@pytest.mark.parametrize("number", LESSONS)
def test_stubs_fail_and_solutions_pass(number):
    """Each exercise and piece is unfinished in the lesson and correct in the solution, by the committed outputs."""
    stub, solution = (outputs_of(folder / LESSONS[number].name) for folder in (NOTEBOOKS, NOTEBOOKS / "solutions"))
    # Lesson 00 shows a wrong answer and its correction first; the last word on each exercise counts.
    verdicts = dict(re.findall(r"^(Exercise \d+|\w+\.(?:py|sbatch)): (not yet|correct)", stub, flags=re.MULTILINE))
    functions = re.findall(r"^  not written yet: (.*)$", stub, flags=re.MULTILINE)
    assert len(verdicts) >= 2 or len(functions[0].split(", ")) >= 4
    assert set(verdicts.values()) == {"not yet"}
    solved = dict(re.findall(r"^(Exercise \d+|\w+\.(?:py|sbatch)): (not yet|correct)", solution, flags=re.MULTILINE))
    assert solved == dict.fromkeys(verdicts, "correct")


@cache
def outputs_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    texts = [output.get("text", "") for cell in cells for output in cell.get("outputs", [])]
    return "\n".join("".join(text) for text in texts)
