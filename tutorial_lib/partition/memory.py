"""Amounts of memory as text, and the memory that this process may use."""

from __future__ import annotations

import math
import re

import psutil

from tutorial_lib.data.memory import free_memory
from tutorial_lib.errors import InputError

SHARE_OF_FREE = 0.8
UNITS = ("", "K", "M", "G", "T")


def parse_memory(value: int | str | None) -> int | None:
    """Return the bytes of ``12GB``, ``1.5 GiB``, ``800M``, ``12000000000`` or a number. None stays None.

    Raises:
        InputError: the value is not a positive amount of memory.
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", str(value), re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise InputError(f"{value!r} is not an amount of memory", "Write it like 12GB, 1.5GiB or 800MB.")
    parsed = math.floor(min(float(found[1]), 1e18) * (1024 if found[3] else 1000) ** UNITS.index(found[2].upper()))
    if parsed <= 0:
        raise InputError(f"{value!r} leaves no memory at all", "Write it like 12GB, 1.5GiB or 800MB.")
    return parsed


def memory_for_us() -> int:
    """Return the bytes that this process uses, plus 80 % of the free memory of the computer or its container."""
    return psutil.Process().memory_info().rss + int(SHARE_OF_FREE * free_memory())
