"""Checkers of lesson 9, two blind diagnoses of jobs that wait forever."""

import base64
import hashlib
import json
import zlib
from typing import Any

from support.exercises import Unfinished, exercise, plain

# Packed, so a diagnosis is not spoiled by accident
FAULTS = {
    1: "eJyrVnL38fePD/Z39nYNifd083P0dVWyUlDKyVeqBQB4Twge",
    2: "eJyrVnJx94n3C/WNd/bxdPULUbJSUDJSqgUAUKgGUQ==",
}
HINTS = {
    1: {
        "variable": "The trainers have joined, and gloo cannot connect them. Which network interface do they use?",
        "right value": "ip addr on a machine lists its interfaces and their addresses.",
    },
    2: {
        "variable": "ss -tnp lists connections to port 30050 that no process has accepted (without users).",
        "right value": "The job has two machines, with one trainer and one sampler each.",
    },
}
ANSWERS = {1: ("f9b3f9f34767", "524d5c19e5d9"), 2: ("81d31b9dd65a", "0aad95935c32")}


def fault(number: int) -> dict[str, str]:
    """Return the additional variables of the first or second job."""
    return json.loads(zlib.decompress(base64.b64decode(FAULTS[number])))


def hash_of(number: int, key: str, value: Any) -> str:
    """Return the short hash of an answer."""
    return hashlib.sha256(f"lesson 09, exercise {number}, {key}: {plain(value)}".encode()).hexdigest()[:12]


def _compare(number: int, diagnosis: dict[str, Any]) -> None:
    """Raise ``Unfinished`` for the first wrong part of a diagnosis. The message does not contain the right value."""
    for (key, hint), expected in zip(HINTS[number].items(), ANSWERS[number], strict=True):
        got = diagnosis[key]
        if got is ...:
            raise Unfinished(f"{key!r} is still ...")
        if hash_of(number, key, got) != expected:
            raise Unfinished(f"{key!r} is wrong\n  got       {got!r}\n  hint: {hint}")


@exercise(1)
def check_first(diagnosis: dict[str, Any]) -> None:
    """Exercise 1: the wrong variable of the first job and its right value."""
    _compare(1, diagnosis)


@exercise(2)
def check_second(diagnosis: dict[str, Any]) -> None:
    """Exercise 2: the wrong variable of the second job and its right value."""
    _compare(2, diagnosis)
