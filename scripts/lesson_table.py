"""Print a table of the lessons with cells, words, learner's lines, predictions, minutes, and the longest cells.

    python scripts/lesson_table.py [LESSON.ipynb ...]

Reading and running takes one minute per 200 words and per 15 lines of code, plus the run time of the lesson (seconds in
its metadata). Writing takes three minutes per line that the learner writes. These are the lines in the holes of the
pieces, and the lines that a solution adds to the cells with "your code here".
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from make_holes import CELL, NOTEBOOKS, hole_lines

WORDS_A_MINUTE, LINES_A_MINUTE, MINUTES_A_LINE = 200, 15, 3


class Size(NamedTuple):
    cells: int
    words: int
    written: int  # lines that the learner writes
    predictions: int
    reading: int  # minutes of reading and running
    writing: int  # minutes
    longest_code: int
    longest_piece: int
    longest_text: int


def count_words(text: str) -> int:
    """Count the words of Markdown, without link targets and punctuation."""
    return len([word for word in re.sub(r"\]\([^)]*\)", "]", text).split() if re.search(r"\w", word)])


def code_lines(text: str) -> list[str]:
    """Return the lines that are neither empty nor comments. For sbatch, a line with #SBATCH is not a comment."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and (not line.startswith("#") or line.startswith("#SBATCH"))]


def lines_in_holes(cell: dict[str, Any]) -> int:
    """Count the lines that a learner writes into a cell with a piece."""
    header = CELL.match("".join(cell["source"]) + "\n")
    if not header:
        return 0
    source = (NOTEBOOKS / "scripts" / f"{header[2]}{header[4]}").read_text()
    lines, spans = source.splitlines(), hole_lines(source, cell["metadata"]["holes"])
    return sum(len(code_lines("\n".join(lines[first - 1 : last]))) for first, last in spans)


def lines_of_exercise(source: str, solutions: list[str]) -> int:
    """Count the lines that the solution adds to a cell with "your code here"."""
    start = source.splitlines()[0]
    for solution in solutions:
        if solution.splitlines()[:1] == [start]:
            given = code_lines(re.sub(r'"""(.|\n)*?"""', "", source))
            added = [line for line in code_lines(re.sub(r'"""(.|\n)*?"""', "", solution)) if line not in given]
            return len(added)
    return 0


def measure(path: Path) -> Size:
    """Return the size of a lesson."""
    notebook, solution = (json.loads(file.read_text()) for file in (path, path.parent / "solutions" / path.name))
    texts = {kind: [] for kind in ("code", "markdown")}
    for cell in notebook["cells"]:
        texts[cell["cell_type"]].append("".join(cell["source"]))
    solutions = ["".join(cell["source"]) for cell in solution["cells"] if cell["cell_type"] == "code"]
    pieces = [text for text in texts["code"] if CELL.match(text + "\n")]
    others = [text for text in texts["code"] if text not in pieces]
    written = sum(lines_in_holes(cell) for cell in notebook["cells"] if cell["cell_type"] == "code")
    written += sum(lines_of_exercise(text, solutions) for text in others if "your code here" in text)
    words = sum(map(count_words, texts["markdown"]))
    lines = sum(len(code_lines(text)) for text in texts["code"])
    seconds = notebook["metadata"]["tutorial"].get("seconds", 0)
    return Size(
        len(notebook["cells"]),
        words,
        written,
        len([text for text in others if re.match(r"my_estimate = \.\.\.", text)]),
        math.ceil(words / WORDS_A_MINUTE + lines / LINES_A_MINUTE + seconds / 60),
        MINUTES_A_LINE * written,
        max(len(text.splitlines()) for text in others),
        max((len(text.splitlines()) for text in pieces), default=0),
        max(map(count_words, texts["markdown"])),
    )


def main() -> None:
    """Print one row per lesson, and the sum of the lines that learners write."""
    paths = [Path(name) for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb"))
    print("| lesson | cells | words | lines | predictions | read, run | write | code cell | piece | text cell |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    sizes = {path.stem[:2]: measure(path) for path in paths}
    for number, size in sizes.items():
        print(f"| {number} | {' | '.join(map(str, size))} |")
    print(f"\nLearners write {sum(size.written for size in sizes.values())} lines.")


if __name__ == "__main__":
    main()
