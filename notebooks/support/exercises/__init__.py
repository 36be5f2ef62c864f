"""Checkers of the exercises, with one module per lesson and one ``check_...`` function per exercise.

A checker runs the learner's function on a small case and prints the actual and the expected value. A wrong answer does
not raise an exception, so "Run All" continues. In a lesson, the result of an unfinished exercise is "not yet". In
``notebooks/solutions/``, the same checker prints "correct". The tests check both.
"""

import functools
import hashlib
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
    """Raised to end a check, with the actual and the expected value."""


def exercise(number: int) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorate a check, so that it prints ``Exercise N: correct``, or ``Exercise N: not yet`` and the reason."""

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
    """Return the line of the learner's cell or file that raised or called the code that raised."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(path.parts) or frame.filename.startswith("<frozen")
        if not installed and not any(path.is_relative_to(folder) for folder in OURS):
            return f"\n  line {frame.lineno} of {path.name if path.exists() else 'your cell'}:  {frame.line}"
    return ""


def expect(what: str, got: Any, expected: Any, hint: str = "") -> None:
    """Raise ``Unfinished`` unless two values are equal. Tensors are compared by shape, dtype and elements.

    A number may also be a tensor or a NumPy scalar, and an integer may replace a float.

    Args:
        what: description of the value, such as ``"rows of node 3"``.
        hint: line that is printed after the two values.
    """
    if not _equal(got, expected):
        lines = [what, f"  got       {short(got)}", f"  expected  {short(expected)}"]
        raise Unfinished("\n".join([*lines, f"  hint: {hint}"] if hint else lines))


def expect_type(what: str, got: Any, name: str, hint: str = "") -> None:
    """Raise ``Unfinished`` unless a value has the type with this name. ``"tuple of 2"`` also checks the length."""
    length = f" of {len(got)}" if " of " in name and isinstance(got, tuple) else ""
    expect(what, type(got).__name__ + length, name, hint)


def plain(value: Any) -> Any:
    """Convert tensors and NumPy values to Python numbers and lists."""
    return value.tolist() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value


def rounded(value: Any, digits: int) -> Any:
    """Round a number, so that two ways to compute the number agree. Other values are returned unchanged."""
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


def short(value: Any, limit: int = 100) -> str:
    """Return at most ``limit`` characters. A tensor is shown with its shape, its dtype and eight numbers."""
    if isinstance(value, Tensor):
        text = f"tensor {tuple(value.shape)} {value.dtype} {value.flatten()[:8].tolist()}"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class Rows:
    """A substitute for ``DistTensor`` with shape, dtype and rows by ID. A slice must have a start and an end.

    Attributes:
        values: all rows.
        reads: the IDs of each read.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.clone()
        self.shape = tuple(values.shape)
        self.dtype = values.dtype
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, ids: Any) -> Tensor:
        ids = self._ids(ids)
        self.reads.append(ids.tolist())
        return self.values[ids]

    def _ids(self, ids: Any) -> Tensor:
        if not isinstance(ids, slice):
            return torch.as_tensor(ids).long().reshape(-1)
        if ids.start is None or ids.stop is None:
            raise TypeError("a DistTensor supports only slices with a start and an end")
        return torch.arange(ids.start, ids.stop)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'DistTensor' object has no attribute {name!r}")


def check_sealed(lesson: int, number: int, answers: dict[str, tuple[str, str]], diagnosis: dict[str, Any]) -> None:
    """Raise ``Unfinished`` for the first wrong part of a blind diagnosis.

    Args:
        answers: hash and hint of each part, so neither this file nor the message contains the right value.
    """
    for key, (expected, hint) in answers.items():
        got = diagnosis[key]
        if got is ...:
            raise Unfinished(f"{key!r} is still ...")
        text = f"lesson {lesson:02d}, exercise {number}, {key}: {plain(got)}"
        if hashlib.sha256(text.encode()).hexdigest()[:12] != expected:
            raise Unfinished(f"{key!r} is wrong\n  got       {got!r}\n  hint: {hint}")


def sealed_exercise(lesson: int, number: int, answers: dict[str, tuple[str, str]]) -> Callable[[dict[str, Any]], None]:
    """Return the checker of a blind diagnosis (``check_sealed``)."""
    return exercise(number)(functools.partial(check_sealed, lesson, number, answers))
