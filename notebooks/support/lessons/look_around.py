"""Lessons 9 and 11: what a machine can say about itself. Runs on that machine, and writes one line of JSON.

python -m support.lessons.look_around            the processes of a job and all that they hold
python -m support.lessons.look_around inside     what an idle machine still has
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.cluster.network import listening_ports
from tutorial_lib.cluster.shm import SHM

SHOWN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "DGL_ROLE",
    "DGL_SERVER_ID",
    "DGL_NUM_CLIENT",
)


def role_of(command: list[str], environment: dict[str, str]) -> tuple[str, int] | None:
    """Role and number of a process, from its command line and the environment it was started with."""
    if "--multiprocessing-fork" in command:  # spawned by DGL in a trainer
        return "sampler", int(environment["LOCAL_RANK"])
    if any("multiprocessing.resource_tracker" in word for word in command):
        return "tracker", int(environment.get("LOCAL_RANK", 0))
    if environment.get("DGL_ROLE") == "server":
        return "server", int(environment["DGL_SERVER_ID"]) % int(environment["DGL_NUM_SERVER"])
    if "LOCAL_RANK" in environment:
        return "trainer", int(environment["LOCAL_RANK"])
    if "torch.distributed.run" in command:
        return "torchrun", 0
    return None


def processes() -> dict[int, dict[str, Any]]:
    """The processes of the job on this machine, by process number."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            role = role_of(process.cmdline(), environment)
            if role is not None and process.status() != psutil.STATUS_ZOMBIE:
                shown = {name: environment[name] for name in SHOWN if name in environment}
                found[process.pid] = {"role": role[0], "index": role[1], "parent": process.ppid(), "env": shown}
    return found


def sockets(of: dict[int, Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """TCP sockets of those processes: (pid, port) that listen; (pid, own end, other end) that are connected."""
    listening, connected = [], []
    entries: list[Any] = psutil.net_connections("tcp")
    for entry in entries:
        if entry.pid not in of:
            continue
        if entry.status == psutil.CONN_LISTEN:
            listening.append([entry.pid, entry.laddr.port])
        elif entry.status == psutil.CONN_ESTABLISHED:
            ends = [f"{end.ip.removeprefix('::ffff:')}:{end.port}" for end in (entry.laddr, entry.raddr)]
            connected.append([entry.pid, *ends])
    return listening, connected


def shared_memory(of: dict[int, Any]) -> dict[str, list[int]]:
    """Names in /dev/shm, each with the processes that have it mapped."""
    names: dict[str, list[int]] = {path.name: [] for path in SHM.iterdir()}
    for pid in of:
        with contextlib.suppress(OSError):
            for name in set(re.findall(r"/dev/shm/(.*)$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)):
                if name in names:
                    names[name].append(pid)
    return names


def inside() -> dict[str, Any]:
    """How many processes there are (but the machine's first one and this), TCP ports that listen, files in /dev/shm."""
    others = [pid for pid in psutil.pids() if pid not in (1, os.getpid())]
    return {"processes": len(others), "ports": sorted(listening_ports()), "/dev/shm": sorted(os.listdir(SHM))}


def look() -> dict[str, Any]:
    """All that the lesson shows of a machine that runs a job."""
    found = processes()
    listening, connected = sockets(found)
    addresses = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    return {
        "machine": os.uname().nodename,
        "addresses": addresses,
        "processes": found,
        "listening": listening,
        "connected": connected,
        "shm": shared_memory(found),
    }


if __name__ == "__main__":
    print(json.dumps(inside() if "inside" in sys.argv else look()))
