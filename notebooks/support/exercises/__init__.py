"""Checkers of the exercises: one module per lesson, one ``check_...`` function per exercise.

A checker runs the reader's function on a small case and says what it got and what it expected. It never raises for
a wrong answer, so that "Run All" goes on. In a lesson, the stub gives "not yet"; in ``notebooks/solutions/`` the same
checker says "correct". The tests hold both to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Unfinished(Exception):
    """A checker raises it inside ``checked`` to say what it got and expected."""


def expect(what: str, got: Any, expected: Any, hint: str = "") -> None:
    """Go on if two values are equal (tensors: shape, dtype and every element), else end the check.

    Args:
        what: what was looked at, in a few words: ``"rows of node 3"``.
        hint: one line on where to look; shown after the two values.
    """
    if not _equal(got, expected):
        lines = [what, f"  got       {_short(got)}", f"  expected  {_short(expected)}"]
        raise Unfinished("\n".join([*lines, f"  hint: {hint}"] if hint else lines))


def checked(exercise: str, check: Callable[[], None]) -> None:
    """Run a check and print ``exercise: correct``, or ``exercise: not yet`` and why."""
    try:
        check()
    except Unfinished as unfinished:
        print(f"{exercise}: not yet. {unfinished}")
    except Exception as error:
        print(f"{exercise}: not yet. Your code raised {type(error).__name__}: {error}")
    else:
        print(f"{exercise}: correct")


def _equal(got: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return isinstance(got, torch.Tensor) and got.dtype == expected.dtype and torch.equal(got, expected)
    return type(got) is type(expected) and got == expected


def _short(value: Any, limit: int = 100) -> str:
    text = (
        f"tensor {tuple(value.shape)} {value.dtype} {value.flatten()[:8].tolist()}"
        if (isinstance(value, torch.Tensor))
        else repr(value)
    )
    return text if len(text) <= limit else text[: limit - 3] + "..."
