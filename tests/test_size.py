"""tutorial_lib stays small, and every behavior in docs/behaviors.md has a test."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "tutorial_lib"
LINES_OF_A_FILE = 300
DATA_PLANE = ("data", "partition", "sampling", "models", "tasks", "trainer")
# Upper limits in lines. A reduction lowers them, and a new task or backend raises them (docs/architecture.md)
LINES = 10_000
LINES_OF = {"launcher": 2_800, "job": 1_200, "tools": 1_240}
LINES_OUTSIDE = {"tests": 16_000, "notebooks/support": 4_070}  # code of tutorial_lib must not move there
LINES_OF_PIECES, LINES_OF_SCRIPTS = 7_920, 2_130  # what learners write, with its public tests; the other scripts
LINES_OF_TEMPLATES = 400
LINES_OF_DATA_PLANE = 4_324
LINES_OF_A_PART = 1_400
LINES_WITH_ANY = 60


def count(folder: Path) -> int:
    """Count the lines of Python files below a folder, except files that lessons write."""
    paths = [path for path in folder.rglob("*.py") if not path.name.startswith("exercise_") and "out" not in path.parts]
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_every_file_is_short():
    found = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in LIBRARY.rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines > LINES_OF_A_FILE} == {}


def test_the_library_is_small():
    assert count(LIBRARY) <= LINES


def test_most_types_are_known():
    lines = [line for path in LIBRARY.rglob("*.py") for line in path.read_text().splitlines()]
    assert len([line for line in lines if re.search(r"\bAny\b", line)]) <= LINES_WITH_ANY


def test_control_plane_and_templates_are_small():
    assert {name: lines for name, limit in LINES_OF.items() if (lines := count(LIBRARY / name)) > limit} == {}
    assert sum(len(path.read_text().splitlines()) for path in LIBRARY.rglob("*.j2")) <= LINES_OF_TEMPLATES


def test_tests_and_notebook_code_do_not_grow():
    assert {name: lines for name, limit in LINES_OUTSIDE.items() if (lines := count(ROOT / name)) > limit} == {}
    scripts = ROOT / "notebooks" / "scripts"
    names = [path.name.removeprefix("test_") for path in (scripts / "tests").glob("test_*.py")]
    names = [name.replace("_sbatch.py", ".sbatch") for name in names]  # the batch script of lesson 16
    pieces = count(scripts / "tests") + sum(len((scripts / name).read_text().splitlines()) for name in names)
    assert pieces <= LINES_OF_PIECES
    assert count(scripts) - pieces <= LINES_OF_SCRIPTS


def test_the_data_plane_is_small():
    parts = {name: count(LIBRARY / name) for name in DATA_PLANE}
    assert max(parts.values()) <= LINES_OF_A_PART, parts
    assert sum(parts.values()) <= LINES_OF_DATA_PLANE, parts


def numbers_in_tests() -> set[str]:
    """Return the numbers at the beginning of the docstrings of tests, as in ``D5. ...``."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                start = re.match(r"(?:[DL]\d+[,.] )+", ast.get_docstring(node) or "")
                found |= set(re.findall(r"[DL]\d+", start[0])) if start else set()
    return found


def test_every_behavior_has_a_test():
    page = (ROOT / "docs" / "behaviors.md").read_text()
    rows = re.findall(r"^\| ([DL]\d+) \| [A-Z].+\. \|$", page, flags=re.MULTILINE)
    assert rows == [*(f"D{k}" for k in range(1, 24)), *(f"L{k}" for k in range(1, 39))]
    assert numbers_in_tests() == set(rows)
