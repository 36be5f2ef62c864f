"""Write the pieces of the course's program into the lessons (with holes) and into the solutions (complete).

    python scripts/make_holes.py [--check]

``notebooks/scripts/<piece>.py`` is the only source. A cell of a lesson that starts with
``%%writefile scripts/mine/<piece>.py`` lists its holes in its metadata, such as
``"holes": ["mean_of_neighbors", "GraphSAGE.forward"]``. The body of a hole is replaced by ``...``. A cell of a solution
starts with ``%%writefile scripts/mine/<piece>_solution.py`` and has no holes. --check writes nothing, names the stale
notebooks, and exits with 1 if one is stale.

In a batch script (``<piece>.sbatch``), a hole is the lines between ``# hole: NAME`` and ``# end of hole``.
"""

import argparse
import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
CELL = re.compile(r"(%%writefile scripts/mine/(\w+?)(_solution)?(\.py|\.sbatch))\s")
HOLE, HOLE_OF_A_SCRIPT = "...  # your code here", "# your lines here"


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module by name, and the methods of its classes as ``Class.method``."""
    by_name, nodes = {}, [("", node) for node in ast.parse(source).body]
    for prefix, node in nodes:
        if isinstance(node, ast.ClassDef):
            nodes += [(f"{node.name}.", child) for child in node.body]
        elif isinstance(node, ast.FunctionDef):
            by_name[prefix + node.name] = node
    return by_name


def body_lines(function: ast.FunctionDef) -> tuple[int, int]:
    """Return the numbers of the first and the last line below the docstring.

    Raises:
        ValueError: the function has no docstring, or no body below it.
    """
    if ast.get_docstring(function) is None or len(function.body) < 2:
        raise ValueError(f"{function.name} cannot be a hole, because it needs a docstring and a body")
    last = function.body[-1].end_lineno
    assert function.body[0].end_lineno is not None
    assert last is not None
    return function.body[0].end_lineno + 1, last


def marked_lines(script: str) -> dict[str, tuple[int, int]]:
    """Return the numbers of the first and the last line of each hole of a batch script."""
    spans, name, first = {}, "", 0
    for number, line in enumerate(script.splitlines(), 1):
        if found := re.match(r"# hole: (\w+)$", line):
            name, first = found[1], number + 1
        elif line == "# end of hole":
            spans[name] = first, number - 1
    return spans


def hole_lines(source: str, holes: list[str]) -> list[tuple[int, int]]:
    """Return the numbers of the first and the last line of some holes of a piece.

    Raises:
        ValueError: the piece has no hole of this name, or its function has no docstring.
    """
    spans, known = marked_lines(source), {} if source.startswith("#!") else functions(source)
    if missing := set(holes) - {*spans, *known}:
        raise ValueError(f"the piece has no function {', '.join(sorted(missing))}, only {', '.join(known or spans)}")
    return [spans[name] if name in spans else body_lines(known[name]) for name in holes]


def make_holes(source: str, holes: list[str]) -> str:
    """Return the source of a piece, where ``...`` (in a script, a comment) replaces the bodies and comments of holes.

    Raises:
        ValueError: the piece has no hole of this name, or its function has no docstring.
    """
    lines = source.splitlines()
    for first, last in sorted(hole_lines(source, holes), reverse=True):
        indent = re.match(" *", next(line for line in lines[first - 1 :] if line))[0]
        lines[first - 1 : last] = [indent + (HOLE_OF_A_SCRIPT if source.startswith("#!") else HOLE)]
    return "\n".join(lines)


def expected_source(cell: dict[str, Any]) -> str | None:
    """Return the expected source of a cell, or None if it writes no piece."""
    source = "".join(cell["source"])
    header = CELL.match(source + "\n")
    if not header:
        return None
    piece = (NOTEBOOKS / "scripts" / f"{header[2]}{header[4]}").read_text().rstrip("\n")
    holes = cell["metadata"].get("holes", [])
    if bool(holes) == bool(header[3]):
        raise ValueError(f"{header[1]}: a cell of a lesson lists its holes, and a cell of a solution has none")
    return f"{header[1]}\n" + make_holes(piece, holes)


def main() -> int:
    """Write all notebooks, or check them. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a notebook is stale")
    options = parser.parse_args()
    stale = []
    for path in sorted([*NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("solutions/*.ipynb")]):
        notebook = json.loads(path.read_text())
        for cell in notebook["cells"]:
            expected = expected_source(cell)
            if expected is not None and "".join(cell["source"]) != expected:
                cell["source"] = expected.splitlines(keepends=True)
                stale.append(path)
        if path in stale and not options.check:
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    state = "stale, run python scripts/make_holes.py" if options.check else "written"
    for path in dict.fromkeys(stale):
        print(f"{path.relative_to(NOTEBOOKS)}: {state}")
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
