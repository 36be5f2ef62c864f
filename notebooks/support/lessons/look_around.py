"""Lesson 11: what an idle machine still has. Runs on that machine, and writes one line of JSON.

python -m support.lessons.look_around inside
"""

from __future__ import annotations

import json
import os
from typing import Any

import psutil

from tutorial_lib.cluster.network import listening_ports
from tutorial_lib.cluster.shm import SHM


def inside() -> dict[str, Any]:
    """How many processes there are (but the machine's first one and this), TCP ports that listen, files in /dev/shm."""
    others = [pid for pid in psutil.pids() if pid not in (1, os.getpid())]
    return {"processes": len(others), "ports": sorted(listening_ports()), "/dev/shm": sorted(os.listdir(SHM))}


if __name__ == "__main__":
    print(json.dumps(inside()))
