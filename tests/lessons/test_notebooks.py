"""The format of committed notebooks. nbval compares their outputs (see nbval_support.py)."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import comment_markers, get_sanitize_patterns, metadata_tags

import lesson_table

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_LINES = 30
MOST_LINES_OF_A_PROGRAM = 80  # a cell that writes one
MOST_LINES_OF_A_PIECE = 120
LONGER = {"train": 150}  # the final program of the course
MOST_CELLS, MOST_IMPORTS, MOST_HELPERS = 65, 10, 3
NEEDS = {"cpu", "gpu", "namespaces", "slurm", "ssh"}
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:tmp|root|home|work)/\S*")


def complaints(path: Path) -> list[str]:
    """Return the problems of a notebook, one line each."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = _metadata(notebook.metadata)
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"not executed in order on a fresh kernel: execution counts {counts}")
    if not any(mime.startswith("image/") for cell in code for out in cell.outputs for mime in out.get("data", {})):
        found.append("no picture among the outputs")
    for number, cell in enumerate(notebook.cells):
        found += [f"cell {number}: {problem}" for problem in _cell(cell)]
    return found


def too_much(path: Path) -> list[str]:
    """Return the exceeded limits of a lesson: cells, imports, and names from ``notebooks/support``."""
    cells = nbformat.read(path, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code" and not cell.source.startswith("%%writefile")]
    imports = max(len(re.findall(r"^(?:import|from) ", source, re.M)) for source in code)
    helpers = {name for source in code for name in re.findall(r"^(?:import|from) support\.?(\w*)", source, re.M)}
    found = {
        f"{len(cells)} cells, at most {MOST_CELLS}": len(cells) > MOST_CELLS,
        f"{imports} imports in a cell, at most {MOST_IMPORTS}": imports > MOST_IMPORTS,
        f"{sorted(helpers)}, at most {MOST_HELPERS} beside pictures and checkers": (
            len(helpers - {"plots", "exercises"}) > MOST_HELPERS
        ),
    }
    return [text for text, wrong in found.items() if wrong]


def _metadata(metadata: dict[str, Any]) -> list[str]:
    found = []
    if (kernel := metadata.get("kernelspec", {}).get("name")) != "python3":
        found.append(f"kernelspec is {kernel!r}, expected 'python3'")
    tutorial = metadata.get("tutorial", {})
    for key in ("level", "minutes"):
        value = tutorial.get(key)
        if type(value) is not int or value < 1:
            found.append(f"metadata tutorial.{key} is {value!r}, expected a whole number from 1 up")
    needs = tutorial.get("needs")
    if not (isinstance(needs, list) and needs and set(needs) <= NEEDS):
        found.append(f"metadata tutorial.needs is {needs!r}, expected a list of {', '.join(sorted(NEEDS))}")
    return found


def _cell(cell: dict[str, Any]) -> list[str]:
    found = []
    program = re.match(r"%%writefile scripts/(\w+)\.py\n", cell.source)
    most = LONGER.get(program[1], MOST_LINES_OF_A_PROGRAM) if program else MOST_LINES
    if cell.source.startswith("%%writefile scripts/mine/"):
        most = MOST_LINES_OF_A_PIECE
    if (lines := len(cell.source.splitlines())) > most:
        found.append(f"{lines} lines, at most {most}")
    tags = cell.metadata.get("tags", [])
    outputs = cell.get("outputs", [])
    if "raises-exception" not in tags:
        found += [f"error output: {out.ename}: {out.evalue}" for out in outputs if out.output_type == "error"]
    for text in (cell.source, *(text for out in outputs for text in _texts(out))):
        found += [f"path of a machine: {path}" for path in MACHINE_PATH.findall(text)]
    # nbval silently ignores unknown markers, so a misspelled marker has no effect.
    markers = set(re.findall(r"^\s*#+\s*(NBVAL\w*|PYTEST_VALIDATE\w*)", cell.source, re.M))
    markers |= {tag for tag in tags if tag.startswith("nbval")}
    found += [f"nbval does not know {m}" for m in sorted(markers - set(comment_markers) - set(metadata_tags))]
    return found


def _texts(output: dict[str, Any]) -> list[str]:
    """Return all texts of an output, without base64 pictures."""
    data = [str(value) for mime, value in output.get("data", {}).items() if not re.match(r"image/(?!svg)", mime)]
    return [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", []), *data]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_follows_the_rules(path):
    assert complaints(path) == []
    assert too_much(path) == []


WRITTEN = [path for path in NOTEBOOKS if "writing" in json.loads(path.read_text())["metadata"]["tutorial"]]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_lesson_with_pieces_keeps_its_limits(path):
    size, notebook = lesson_table.measure(path), nbformat.read(path, as_version=4)
    about = notebook.metadata.tutorial
    assert (about.minutes, about.writing) == (size.reading, size.writing)
    assert f"{size.reading} minutes to read and run, {size.writing} to write" in notebook.cells[0].source
    assert size.reading <= 60
    assert size.predictions >= 3
    limits = {"cells": 40, "longest_code": 25, "longest_piece": 120, "longest_text": 120}
    assert {name: getattr(size, name) for name in limits if getattr(size, name) > limits[name]} == {}


def test_exceeded_limits_are_reported(tmp_path):
    source = "\n".join([*(f"from support.{name} import x" for name in "abcd"), *["import os"] * 7])
    cells = [new_code_cell(source), *[new_markdown_cell("text")] * MOST_CELLS]
    nbformat.write(new_notebook(cells=cells), tmp_path / "much.ipynb")
    found = too_much(tmp_path / "much.ipynb")
    assert [text.split()[0] for text in found] == ["66", "11", "['a',"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_programs_in_cells_equal_their_files(path):
    """The last text that a cell writes to scripts/NAME equals this file. Exercises are skipped."""
    cells = nbformat.read(path, as_version=4).cells
    written = dict(
        found.groups() for cell in cells if (found := re.match(r"%%writefile (scripts/\S+)\n(.*)", cell.source, re.S))
    )
    for name, source in written.items():
        if not name.startswith(("scripts/exercise_", "scripts/mine/")):
            assert (ROOT / "notebooks" / name).read_text().rstrip("\n") == source.rstrip("\n"), name


GLOSSARY = ROOT / "notebooks" / "GLOSSARY.md"
ALL_NOTEBOOKS = [*NOTEBOOKS, *(ROOT / "notebooks" / "solutions").glob("*.ipynb")]
TERM_LINK = re.compile(r"\]\(((?:\.\./)?GLOSSARY\.md)#([^)\s]*)\)")


def terms(glossary: str) -> list[str]:
    """Return the anchors of headings, which are lower-case because GitHub and JupyterLab then agree."""
    return [heading.replace(" ", "-") for heading in re.findall(r"^## (.+)$", glossary, re.M)]


@pytest.mark.parametrize("path", ALL_NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_linked_terms_are_in_the_glossary(path):
    known = terms(GLOSSARY.read_text())
    for cell in nbformat.read(path, as_version=4).cells:
        for file, term in TERM_LINK.findall(cell.source):
            assert (path.parent / file).exists(), file
            assert term in known, f"GLOSSARY.md has no heading for #{term}"


def test_glossary_is_sorted_and_names_lessons():
    text = GLOSSARY.read_text()
    assert terms(text) == sorted(set(terms(text)))
    assert text.count("\n## ") == len(terms(text))
    assert re.findall(r"\n## .*[A-Z].*", text) == []
    for entry in text.split("\n## ")[1:]:
        lessons = re.findall(r"\]\((\d\d_\w+\.ipynb)\)", entry)
        assert lessons, entry
        assert all((ROOT / "notebooks" / lesson).exists() for lesson in lessons), lessons


def make_notebook(path: Path) -> nbformat.NotebookNode:
    """Return a small valid notebook and write it to ``path``."""
    picture = new_output("display_data", data={"image/png": "iVBO/tmp/Rw0KGgo=", "text/plain": "<Figure>"})
    cells = [
        new_markdown_cell("# A lesson"),
        new_code_cell("print(1)", execution_count=1, outputs=[new_output("stream", text="1\n")]),
        new_code_cell("picture()", execution_count=2, outputs=[picture]),
    ]
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "tutorial": {"level": 1, "minutes": 5, "needs": ["cpu"]},
    }
    notebook = new_notebook(cells=cells, metadata=metadata)
    nbformat.write(notebook, path)
    return notebook


ERROR = new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"])
BROKEN = {
    "not executed": (lambda nb: nb.cells[1].update(execution_count=None), "not executed in order.*\\[None, 2\\]"),
    "error": (lambda nb: nb.cells[1].outputs.append(ERROR), "cell 1: error output: ValueError: no"),
    "long code": (lambda nb: nb.cells[1].update(source="x = 1\n" * 31), "cell 1: 31 lines, at most 30"),
    "long text": (lambda nb: nb.cells[0].update(source="word\n" * 31), "cell 0: 31 lines, at most 30"),
    "minutes as text": (lambda nb: nb.metadata.tutorial.update(minutes="5"), "tutorial.minutes is '5'"),
    "unknown need": (lambda nb: nb.metadata.tutorial.update(needs=["tpu"]), "tutorial.needs is \\['tpu'\\]"),
    "kernel": (lambda nb: nb.metadata.kernelspec.update(name="venv"), "kernelspec is 'venv'"),
    "no picture": (lambda nb: nb.cells[2].update(outputs=[]), "no picture"),
    "path in text": (lambda nb: nb.cells[0].update(source="see /root/notes"), "cell 0: path of a machine: /root/notes"),
    "path in stream": (
        lambda nb: nb.cells[1].outputs[0].update(text="saved to /root/a.txt"),
        "cell 1: path of a machine: /root/a.txt",
    ),
    "path in result": (
        lambda nb: nb.cells[2].outputs[0].data.update({"text/plain": "PosixPath('/tmp/x')"}),
        "cell 2: path of a machine: /tmp/x",
    ),
    "misspelt marker": (
        lambda nb: nb.cells[1].update(source="# NBVAL_IGNORE_OUTPUTS\nprint(1)"),
        "nbval does not know NBVAL_IGNORE_OUTPUTS",
    ),
    "misspelt tag": (lambda nb: nb.cells[1].metadata.update(tags=["nbval-skipp"]), "nbval does not know nbval-skipp"),
}


@pytest.mark.parametrize(("breaks", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_checker_reports_each_problem(breaks, complaint, tmp_path):
    notebook = make_notebook(tmp_path / "broken.ipynb")
    breaks(notebook)
    nbformat.write(notebook, tmp_path / "broken.ipynb")
    found = complaints(tmp_path / "broken.ipynb")
    assert len(found) == 1, found
    assert re.search(complaint, found[0])


def test_checker_accepts_valid_notebook_and_expected_error(tmp_path):
    notebook = make_notebook(tmp_path / "good.ipynb")
    assert complaints(tmp_path / "good.ipynb") == []
    notebook.cells[1].outputs.append(ERROR)
    notebook.cells[1].metadata.tags = ["raises-exception"]
    nbformat.write(notebook, tmp_path / "raises.ipynb")
    assert complaints(tmp_path / "raises.ipynb") == []


def test_nbval_reads_every_line_of_the_sanitize_file():
    text = (ROOT / "tests" / "nbval_sanitize.cfg").read_text()
    patterns = get_sanitize_patterns(text)
    meant = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(meant) == 2 * len(patterns)
    assert all(re.compile(regex) for regex, _ in patterns)


@pytest.mark.whole_run
def test_single_lesson_runs_in_temporary_folder():
    # An earlier version wrote the programs of the lesson and of the exercises into notebooks/scripts.
    words = ["-m", "pytest", "--collect-only", "--trace-config", "notebooks/01_standalone_distgraph.ipynb"]
    printed = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert "PLUGIN registered: <module 'nbval_support'" in printed.stdout


def run_nbval(pytester: pytest.Pytester, source: str, text: str) -> pytest.RunResult:
    """Run nbval with our plugin in a new pytest, on an idle cell and a cell whose stored output is ``text``."""
    outputs = [new_output("stream", text=text)] if text else []
    cells = [new_code_cell(source, execution_count=1, outputs=outputs), new_code_cell("pass", execution_count=2)]
    nbformat.write(new_notebook(cells=cells), pytester.path / "x.ipynb")
    plugin = f"import sys\nsys.path.insert(0, {str(ROOT / 'tests' / 'helpers')!r})\npytest_plugins = ['nbval_support']"
    pytester.makeconftest(plugin)
    (pytester.path / "light_imports.py").write_text((ROOT / "tests" / "helpers" / "light_imports.py").read_text())
    return pytester.runpytest_subprocess("-p", "light_imports", "--nbval", "--nbval-current-env", timeout=60)


@pytest.mark.whole_run
def test_dead_kernel_is_detected(pytester):
    result = run_nbval(pytester, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*the kernel died in this cell (exit status -9*", "*Kernel dead on test start*"])
    assert result.duration < 30  # nbval alone: 2000


@pytest.mark.whole_run
def test_output_of_child_processes_is_compared(pytester):
    # A thread of the kernel forwards the output. On a busy computer, the output arrives after the end of the cell.
    source = "import subprocess, time\n_ = subprocess.run(['echo', 'from a child'])\ntime.sleep(1)"
    run_nbval(pytester, source, "from a child\n").assert_outcomes(passed=2)
    run_nbval(pytester, source, "").assert_outcomes(passed=1, failed=1)
