"""Exercises that write a program: what the solution notebook writes, run as a learner runs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from solution_support import NOTEBOOKS, code_cells

RANKS = Path(__file__).parent / "programs" / "ranks.py"


def read_program(lesson: str, name: str) -> str:
    """The program that the solution notebook of a lesson writes as scripts/NAME."""
    start = f"%%writefile scripts/{name}\n"
    cells = code_cells(NOTEBOOKS / "solutions", lesson)
    (source,) = [cell.removeprefix(start) for cell in cells if cell.startswith(start)]
    return source + "\n"


def replace_text(source: str, *changes: tuple[str, str]) -> str:
    """A program with some of its text replaced; each text must be there."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


def copy_scripts(folder: Path) -> Path:
    """A copy of the lessons' programs."""
    ignored = shutil.ignore_patterns("exercise_*", "out", "__pycache__")
    scripts = Path(shutil.copytree(NOTEBOOKS / "scripts", folder / "scripts", ignore=ignored))
    (scripts / "out").mkdir()
    return scripts


def run_program(scripts: Path, name: str, source: str, ranks: int, *words: str, check: bool = False) -> Path:
    """Write a program and run it to its end, however it ends unless ``check``; with 0 ranks as a single process."""
    path = scripts / name
    path.write_text(source)
    launcher = [str(RANKS), str(ranks)] if ranks else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *launcher, str(path), *words]
    subprocess.run(command, env=environment, capture_output=True, timeout=200, check=check)
    return path
