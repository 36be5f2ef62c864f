"""Lesson 11: ``python -m support.lessons.inside`` prints, as JSON, what is on the machine that it runs on."""

from __future__ import annotations

import json
import os

import psutil

from tutorial_lib.cluster.network import listening_ports
from tutorial_lib.cluster.shm import SHM


def main() -> None:
    """Processes (but the machine's first one and this), listening TCP ports, and files in /dev/shm."""
    others = [pid for pid in psutil.pids() if pid not in (1, os.getpid())]
    found = {"processes": len(others), "ports": sorted(listening_ports()), "/dev/shm": sorted(os.listdir(SHM))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
