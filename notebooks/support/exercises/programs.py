"""Results of the programs that learners change. A result must be newer than its program."""

import json
from pathlib import Path
from typing import Any

from support.exercises import expect


def find_results(program: str, pattern: str) -> list[Path]:
    """Return the files in the folder ``out`` of a program that are newer than the program, sorted by name.

    Raises:
        Unfinished: there is no such file.
    """
    source = Path(program)
    expect(f"{program} exists", source.exists(), True, "Run the cell that begins with %%writefile.")
    written = source.stat().st_mtime
    paths = sorted(path for path in source.with_name("out").glob(pattern) if path.stat().st_mtime >= written)
    hint = "Run the program. It has failed, or you have changed it since the last run."
    expect(f"{program} has written a result", bool(paths), True, hint)
    return paths


def read_result(program: str) -> Any:
    """Return the content of ``out/PROGRAM.json``.

    Raises:
        Unfinished: the file does not exist or is older than the program.
    """
    (path,) = find_results(program, f"{Path(program).stem}.json")
    return json.loads(path.read_text())
