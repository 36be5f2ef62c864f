"""Checkers of lesson 9, two blind diagnoses of jobs that wait forever."""

import base64
import json
import zlib

from support.exercises import sealed_exercise

# Packed, so a diagnosis is not spoiled by accident
FAULTS = {
    1: "eJyrVnL38fePD/Z39nYNifd083P0dVWyUlDKyVeqBQB4Twge",
    2: "eJyrVnJx94n3C/WNd/bxdPULUbJSUDJSqgUAUKgGUQ==",
}
FIRST = {
    "variable": (
        "f9b3f9f34767",
        "The trainers have joined, and gloo cannot connect them. Which network interface do they use?",
    ),
    "right value": ("524d5c19e5d9", "ip addr on a machine lists its interfaces and their addresses."),
}
SECOND = {
    "variable": (
        "81d31b9dd65a",
        "ss -tnp lists connections to port 30050 that no process has accepted (without users).",
    ),
    "right value": ("0aad95935c32", "The job has two machines, with one trainer and one sampler each."),
}


def fault(number: int) -> dict[str, str]:
    """Return the additional variables of the first or second job."""
    return json.loads(zlib.decompress(base64.b64decode(FAULTS[number])))


check_first = sealed_exercise(9, 1, FIRST)  # the wrong variable of the first job and its right value
check_second = sealed_exercise(9, 2, SECOND)  # the wrong variable of the second job and its right value
