"""Functions from the cells of lessons, and right answers from notebooks/solutions, the only place that has them."""

import ast
import functools
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
IMPORTS = (ast.Import, ast.ImportFrom)
# A magic, a command, or a command of which the lines are kept.
NO_PYTHON = re.compile(r"^([ \t]*)(?:%|!|\w+ = !).*$", re.MULTILINE)


def assert_not_yet(printed: str, complaint: str) -> None:
    """Check that an answer was refused with this complaint, a pattern. Exceptions need their prefix."""
    assert re.match(r"Exercise \d: not yet\.", printed)
    assert re.search(complaint, printed), printed
    assert ("Your code raised" in printed) == complaint.startswith("Your code raised"), printed


def answer_tests(
    check: Callable[..., None],
    right: Sequence[Any] | Mapping[str, Any],
    wrong: Mapping[str, tuple[Any, str]],
    through: str = "",
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return two tests of a checker: it accepts the right answers, and refuses the wrong ones with a complaint.

    Args:
        right: the answers, with or without names.
        wrong: name -> (answer, pattern of the complaint).
        through: a fixture with a function that runs or writes an answer and returns the arguments of ``check`` as a
            tuple. Without it, ``check`` gets the answer.
    """

    def printed(answer: Any, request: pytest.FixtureRequest) -> str:
        capsys = request.getfixturevalue("capsys")
        given = request.getfixturevalue(through)(answer) if through else (answer,)
        capsys.readouterr()  # of the preparation
        check(*given)
        return capsys.readouterr().out

    names = list(right) if isinstance(right, Mapping) else None
    answers = list(right.values()) if isinstance(right, Mapping) else right

    @pytest.mark.parametrize("answer", answers, ids=names)
    def accepts(answer: Any, request: pytest.FixtureRequest) -> None:
        assert re.fullmatch(r"Exercise \d: correct\n", text := printed(answer, request)), text

    @pytest.mark.parametrize(("answer", "complaint"), wrong.values(), ids=wrong.keys())
    def refuses(answer: Any, complaint: str, request: pytest.FixtureRequest) -> None:
        assert_not_yet(printed(answer, request), complaint)

    return accepts, refuses


def code_cells(folder: Path, lesson: str) -> list[str]:
    (path,) = folder.glob(f"{lesson}_*.ipynb")
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def read_program(lesson: str, name: str) -> str:
    """Return the program that the solution notebook of a lesson writes to scripts/NAME."""
    start = f"%%writefile scripts/{name}\n"
    (source,) = [cell for cell in code_cells(NOTEBOOKS / "solutions", lesson) if cell.startswith(start)]
    return source.removeprefix(start) + "\n"


def _code_of(folder: Path, lesson: str) -> list[ast.stmt]:
    python = [cell for cell in code_cells(folder, lesson) if not cell.startswith("%%")]  # a program is a file's content
    return [node for cell in python for node in ast.parse(NO_PYTHON.sub(r"\1pass", cell)).body]


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
    return getattr(node, "name", "")


@functools.cache
def solutions(lesson: str) -> SimpleNamespace:
    """Return the functions, classes and constants of a lesson's solution without running other code.

    Args:
        lesson: its number, as in ``"07"``.
    """
    code = _code_of(NOTEBOOKS / "solutions", lesson)
    kinds = (ast.FunctionDef, ast.ClassDef, *IMPORTS)
    kept = [node for node in code if isinstance(node, kinds) or _name(node).isupper()]
    names: dict[str, object] = {}
    exec(compile(ast.Module(kept, []), f"solution {lesson}", "exec"), names)
    return SimpleNamespace(**names)


def copy_scripts(folder: Path) -> Path:
    """Copy the programs of the lessons to a folder, and return their new folder."""
    ignored = shutil.ignore_patterns("exercise_*", "out", "__pycache__")
    scripts = Path(shutil.copytree(NOTEBOOKS / "scripts", folder / "scripts", ignore=ignored))
    (scripts / "out").mkdir()
    return scripts
