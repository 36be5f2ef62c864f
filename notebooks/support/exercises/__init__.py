"""Checkers of the exercises: one module per lesson, one ``check_...`` function per exercise.

A checker runs the reader's function on a small case and says what it got and what it expected. It never raises for
a wrong answer, so that "Run All" goes on. In a lesson, the stub gives "not yet"; in ``notebooks/solutions/`` the same
checker says "correct". The tests hold both to it.
"""

import functools
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tutorial_lib

OURS = [Path(__file__).parents[1], Path(tutorial_lib.__file__).parent, Path(sysconfig.get_path("stdlib"))]


class Unfinished(Exception):
    """Ends a check: what it got and expected."""


def exercise(number: int) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Make a checker of a function that raises: print ``Exercise N: correct``, or ``Exercise N: not yet`` and why."""

    def checker(check: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(check)
        def checked(answer: Any) -> None:
            try:
                check(answer)
            except Unfinished as unfinished:
                print(f"Exercise {number}: not yet. {unfinished}")
            except Exception as error:
                print(f"Exercise {number}: not yet. Your code raised {type(error).__name__}: {error}{_where(error)}")
            else:
                print(f"Exercise {number}: correct")

        return checked

    return checker


def _where(error: Exception) -> str:
    """The line of the learner's own cell or file in which an exception came up, or from which it was called."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(path.parts) or frame.filename.startswith("<frozen")
        if not installed and not any(path.is_relative_to(folder) for folder in OURS):
            return f"\n  line {frame.lineno} of {path.name if path.exists() else 'your cell'}:  {frame.line}"
    return ""


def expect(what: str, got: Any, expected: Any, hint: str = "") -> None:
    """Go on if two values are equal (tensors: shape, dtype and every element), else end the check.

    A number may also come out of a tensor or out of numpy, and a whole number may stand for a float.

    Args:
        what: what was looked at, in a few words: ``"rows of node 3"``.
        hint: one line on where to look; shown after the two values.
    """
    if not _equal(got, expected):
        lines = [what, f"  got       {_short(got)}", f"  expected  {_short(expected)}"]
        raise Unfinished("\n".join([*lines, f"  hint: {hint}"] if hint else lines))


def expect_type(what: str, got: Any, name: str, hint: str = "") -> None:
    """Go on if a value is of the type with this name; ``"tuple of 2"`` also says how long it is."""
    length = f" of {len(got)}" if " of " in name and isinstance(got, tuple) else ""
    expect(what, type(got).__name__ + length, name, hint)


def plain(value: Any) -> Any:
    """Numbers and lists as Python has them, also out of a tensor or out of numpy."""
    return value.tolist() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value


def rounded(value: Any, digits: int) -> Any:
    """A number, from wherever it comes, so that two ways to compute it agree; what is none stays as it is."""
    number = plain(value)
    return round(float(number), digits) if type(number) in (int, float) else value


def _equal(got: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return isinstance(got, Tensor) and bool(got.dtype == expected.dtype and torch.equal(got, expected))
    if isinstance(got, np.generic) or (isinstance(got, Tensor) and got.dim() == 0):
        got = plain(got)
    if type(expected) is float and type(got) is int:
        return got == expected
    return type(got) is type(expected) and bool(got == expected)


def _short(value: Any, limit: int = 100) -> str:
    if isinstance(value, Tensor):
        text = f"tensor {tuple(value.shape)} {value.dtype} {value.flatten()[:8].tolist()}"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class Rows:
    """Stands in for a ``DistTensor``: shape, dtype, rows by id. A slice needs both ends and is not cut off, as there.

    Attributes:
        values: what the table holds.
        reads, writes: the ids of each read and of each write.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.clone()
        self.shape, self.dtype = tuple(values.shape), values.dtype
        self.reads: list[list[int]] = []
        self.writes: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, ids: Any) -> Tensor:
        ids = self._ids(ids)
        self.reads.append(ids.tolist())
        return self.values[ids]

    def __setitem__(self, ids: Any, rows: Any) -> None:
        ids = self._ids(ids)
        self.writes.append(ids.tolist())
        self.values[ids] = rows

    def _ids(self, ids: Any) -> Tensor:
        if not isinstance(ids, slice):
            return torch.as_tensor(ids).long().reshape(-1)
        if ids.start is None or ids.stop is None:
            raise TypeError("a DistTensor takes slices with a start and an end")
        return torch.arange(ids.start, ids.stop)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'DistTensor' object has no attribute {name!r}")
