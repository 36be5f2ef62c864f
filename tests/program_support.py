"""Programs that solution notebooks write, and their execution as by a learner."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from solution_support import NOTEBOOKS, code_cells

RANKS = Path(__file__).parent / "programs" / "ranks.py"


def read_program(lesson: str, name: str) -> str:
    """Return the program that the solution notebook of a lesson writes to scripts/NAME."""
    start = f"%%writefile scripts/{name}\n"
    cells = code_cells(NOTEBOOKS / "solutions", lesson)
    (source,) = [cell.removeprefix(start) for cell in cells if cell.startswith(start)]
    return source + "\n"


def edit(source: str, *changes: tuple[str, str]) -> str:
    """Return a program after replacements of text that it must contain."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


def copy_scripts(folder: Path) -> Path:
    """Copy the programs of the lessons."""
    ignored = shutil.ignore_patterns("exercise_*", "out", "__pycache__")
    scripts = Path(shutil.copytree(NOTEBOOKS / "scripts", folder / "scripts", ignore=ignored))
    (scripts / "out").mkdir()
    return scripts


def run_program(scripts: Path, name: str, source: str, ranks: int, *words: str, check: bool = False) -> Path:
    """Write and run a program, which must succeed if ``check``. With 0 ranks it is a single process."""
    path = scripts / name
    path.write_text(source)
    launcher = [str(RANKS), str(ranks)] if ranks else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *launcher, str(path), *words]
    subprocess.run(command, env=environment, capture_output=True, timeout=200, check=check)
    return path
