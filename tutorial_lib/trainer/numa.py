"""Which CPUs a trainer stays on. On a computer with several sockets, memory that hangs on another one is slower.

A trainer that is bound to the CPUs of one NUMA node touches its memory there first, and the kernel then puts it there.
Threads and samplers that it starts later stay with it. Shared memory of the server lies where the server put it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SYSTEM = Path("/")


def numbers(text: str) -> set[int]:
    """``"0-2,8"``, as the kernel lists CPUs, to {0, 1, 2, 8}."""
    found: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def nodes(allowed: set[int], system: Path = SYSTEM) -> dict[int, set[int]]:
    """NUMA node -> those of its CPUs that this process may use; without nodes that have none."""
    folders = (system / "sys/devices/system/node").glob("node[0-9]*")
    cpus = {int(folder.name[4:]): numbers((folder / "cpulist").read_text()) & allowed for folder in folders}
    return {node: cpus[node] for node in sorted(cpus) if cpus[node]}


def gpu_nodes(variables: Mapping[str, str], system: Path = SYSTEM) -> list[int]:
    """NUMA node of each GPU that the process sees, in CUDA's order for equal GPUs; -1: the kernel does not know it.

    Empty without NVIDIA's driver, and where ``CUDA_VISIBLE_DEVICES`` has other names than numbers.
    """
    gpus = sorted((system / "proc/driver/nvidia/gpus").glob("*"))
    places = [system / "sys/bus/pci/devices" / gpu.name / "numa_node" for gpu in gpus]
    known = [int(place.read_text()) if place.exists() else -1 for place in places]
    seen = variables.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return known
    words = seen.split(",")
    if not all(word.isdecimal() and int(word) < len(known) for word in words):
        return []
    return [known[int(word)] for word in words]


def share(trainer: int, trainers: int, cpus: Mapping[int, set[int]], of_gpus: list[int]) -> set[int] | None:
    """The CPUs of trainer number ``trainer`` of a machine; None: it is not bound.

    The trainers must go evenly into the nodes, and the nodes have equally many CPUs for us: each trainer has an equal
    part of the machine's CPUs as threads, and bound unevenly some would stand in each other's way while others idle.
    """
    if len(cpus) < 2 or trainers % len(cpus) or len({len(of_node) for of_node in cpus.values()}) > 1:
        return None
    wanted = of_gpus[:trainers]
    evenly = {node: trainers // len(cpus) for node in cpus}
    if len(wanted) == trainers and {node: wanted.count(node) for node in {*wanted, *cpus}} == evenly:
        return cpus[wanted[trainer]]
    return cpus[sorted(cpus)[trainer * len(cpus) // trainers]]


def bind(system: Path = SYSTEM) -> set[int] | None:
    """Keep this trainer, whose place torchrun's variables tell, on its CPUs; call it before it starts a thread."""
    trainer, trainers = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    mine = share(trainer, trainers, nodes(os.sched_getaffinity(0), system), gpu_nodes(os.environ, system))
    if mine is not None:
        try:
            os.sched_setaffinity(0, mine)
        except OSError:  # a sandbox forbids it; it would only have been faster
            return None
    return mine
