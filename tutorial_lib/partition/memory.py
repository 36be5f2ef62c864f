"""Amounts of memory as text, and the memory that this process may use."""

import re

import psutil

from tutorial_lib.data.memory import free_memory
from tutorial_lib.errors import InputError


def parse_memory(value: int | str | None) -> int | None:
    """Return the bytes of ``12GB``, ``1.5GiB``, ``800M`` or a number. None stays None."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s?(?:([KMGT])(i?))?B?", str(value).strip(), re.IGNORECASE)
    unit = 1024 if found and found[3] else 1000
    size = int(float(found[1]) * unit ** " KMGT".index((found[2] or " ").upper())) if found else 0
    if size == 0:
        raise InputError(f"{value!r} is not an amount of memory", "Write it like 12GB, 1.5GiB or 800MB.")
    return size


def memory_for_us() -> int:
    """Return the bytes that this process uses, plus 80 % of the free memory of the computer or its container."""
    return psutil.Process().memory_info().rss + int(0.8 * free_memory())
