"""A second solution of my_finale.py, written from its docstrings and public tests."""

import subprocess
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np

from finale_plan import KEPT, answers, fetch, words


def files_for(plan, part):
    folder = Path(plan.folder)
    paths = [path.name for path in folder.glob("*.py")]
    paths += ["ip_config.txt", f"parts/{plan.dataset}.json", f"parts/part{part}"]
    if part == 0:
        paths += [name for name in KEPT if (folder / name).exists()]
    return sorted(paths)


def send(plan, machine, paths):
    command = f"mkdir -p {plan.folder} && tar -xo -f - -C {plan.folder}"
    with Popen(["tar", "-c", "-f", "-", "-C", plan.folder, *paths], stdout=PIPE) as archive:
        done = subprocess.run(words(plan, machine, command), stdin=archive.stdout)
    if archive.returncode != 0 or done.returncode != 0:
        raise RuntimeError(f"copying to {machine} failed")


def replace_failed(plan, machines):
    following = {}
    for machine, address in machines.items():
        if not answers(plan, machine):
            if not plan.spares:
                raise RuntimeError(f"no spare machine for {machine}")
            machine = next(iter(plan.spares))
            address = plan.spares.pop(machine)
        following[machine] = address
    return following


def train(plan, phases):
    machines = plan.machines
    for number in range(1, plan.attempts + 1):
        first = next(iter(machines))
        try:
            attempt(plan, machines, phases)
            return first
        except (RuntimeError, TimeoutError) as error:
            print(f"attempt {number} failed: {error}", flush=True)
            if number == plan.attempts:
                raise
        fetch(plan, first, KEPT)
        machines = replace_failed(plan, machines)
    return None


def to_original(rows, node_map):
    original = np.empty_like(rows)
    original[node_map] = rows
    return original
