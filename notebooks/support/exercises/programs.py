"""Exercises that change a program and run it: what the program has written, if that is newer than the program."""

import json
from pathlib import Path
from typing import Any

from support.exercises import expect


def results(program: str, pattern: str) -> list[Path]:
    """Files in the folder ``out`` beside the program that it has written since it was last changed, in order of name.

    Raises:
        Unfinished: there is none.
    """
    source = Path(program)
    expect(f"{program} is there", source.exists(), True, "run the cell that begins with %%writefile")
    written = source.stat().st_mtime
    found = sorted(path for path in source.with_name("out").glob(pattern) if path.stat().st_mtime >= written)
    hint = "run the program: it has failed, or not been started since you changed it"
    expect(f"{program} has written a result", bool(found), True, hint)
    return found


def result(program: str) -> Any:
    """What the program has written as ``out/PROGRAM.json``.

    Raises:
        Unfinished: nothing, since it was last changed.
    """
    (path,) = results(program, f"{Path(program).stem}.json")
    return json.loads(path.read_text())
