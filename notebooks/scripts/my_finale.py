"""Train your program on machines without a shared disk: python my_finale.py PLAN.json (lesson 12).

data and partition -> copies of each part to its machine -> training, again after a failure -> results in original IDs
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np

import finale_plan
from cluster import run_job, write_ip_config
from finale_plan import KEPT, RESULTS, Plan, answers, fetch, phase, words


def files_for(plan, part):
    """Return the paths that the machine of a part needs, relative to ``plan.folder``, a sorted list of strings.

    - all programs (*.py) directly in the folder
    - ip_config.txt, and the part config parts/DATASET.json, where DATASET is ``plan.dataset``
    - the folder of this part and of no other, such as parts/part1
    - for part 0, the files of ``KEPT`` that exist in the folder, because rank 0 reads the checkpoint on its disk
    """
    folder = Path(plan.folder)
    paths = [path.name for path in folder.glob("*.py")]
    paths += ["ip_config.txt", f"parts/{plan.dataset}.json", f"parts/part{part}"]
    if part == 0:
        paths += [name for name in KEPT if (folder / name).exists()]
    return sorted(paths)


def send(plan, machine, paths):
    """Copy files and folders from ``plan.folder`` to the folder with the same path on a machine.

    Connect the output of a local ``tar -c`` to the input of ``tar -xo`` on the machine, so that neither computer stores
    the archive. ``-C FOLDER`` precedes the paths, and ``o`` gives the files to your account there. ``mkdir -p`` creates
    the folder first. ``words(plan, machine, command)`` returns the words that run a shell command on the machine. When
    a ``with`` statement of ``Popen`` ends, it closes the pipe, so that the local tar ends if the machine has failed,
    and waits for this tar. Read both exit codes afterwards.

    Raises:
        RuntimeError: "copying to machine-1 failed", if at least one of the two programs fails.
    """
    unpack = f"mkdir -p {plan.folder} && tar -xo -C {plan.folder}"
    with Popen(["tar", "-c", "-C", plan.folder, *paths], stdout=PIPE) as packing:
        done = subprocess.run(words(plan, machine, unpack), stdin=packing.stdout)
    if packing.returncode or done.returncode:
        raise RuntimeError(f"copying to {machine} failed")


def replace_failed(plan, machines):
    """Return the machines of the next attempt, a new dict. Position k is the machine of part k, as in ``machines``.

    The first machine in ``plan.spares`` replaces a machine that does not answer (``answers(plan, machine)``). Remove it
    from ``plan.spares``. Do not change ``machines``. Do not test whether a spare machine answers, because the next
    attempt shows it.

    Raises:
        RuntimeError: "no spare machine for machine-1", if all spare machines have been used.
    """
    following = {}
    for machine, address in machines.items():
        if not answers(plan, machine):
            if not plan.spares:
                raise RuntimeError(f"no spare machine for {machine}")
            machine = next(iter(plan.spares))
            address = plan.spares.pop(machine)
        following[machine] = address
    return following


def attempt(plan, machines, phases):
    """Copy the files to all machines, and run the job once. ``run_job`` raises an error if a process fails."""
    job = finale_plan.describe_job(plan, machines)
    write_ip_config(job.ip_config, machines.values(), job.port)
    copies = {machine: files_for(plan, part) for part, machine in enumerate(machines)}
    with phase("copies", phases, sum(finale_plan.size_of(plan, paths) for paths in copies.values())):
        for machine, paths in copies.items():
            send(plan, machine, paths)
    with phase("training", phases) as entry:
        before = sum(finale_plan.traffic(plan, machine) for machine in machines)
        run_job(job, plan.seconds)
        entry["bytes"] = sum(finale_plan.traffic(plan, machine) for machine in machines) - before


def train(plan, phases):
    """Call ``attempt`` until the job succeeds, at most ``plan.attempts`` times. Return the name of the first machine.

    The first attempt uses ``plan.machines``. After an attempt has raised a RuntimeError or a TimeoutError:

    1. Print "attempt 1 failed: " and the error. The attempts are numbered from 1.
    2. After the last attempt, raise the error again, and omit the next steps.
    3. Fetch the files of ``KEPT`` from the first machine of this attempt. Do not raise an error if it has none.
    4. Let ``replace_failed`` choose the machines of the next attempt.

    The first machine of the successful attempt has the results. Do not catch other errors.
    """
    machines, number = plan.machines, 1
    while True:
        try:
            attempt(plan, machines, phases)
            return next(iter(machines))
        except (RuntimeError, TimeoutError) as error:
            print(f"attempt {number} failed: {error}", flush=True)
            if number == plan.attempts:
                raise
            fetch(plan, next(iter(machines)), KEPT)
            machines = replace_failed(plan, machines)
            number += 1


def to_original(rows, node_map):
    """Return the rows in the order of the data set, a new array with the dtype of ``rows``.

    Args:
        rows: array (N,). Row i belongs to the node with the new ID i, which DGL assigned part by part.
        node_map: int64 array (N,). ``node_map[i]`` is the original ID of the node with the new ID i.
    """
    original = np.empty_like(rows)
    original[node_map] = rows
    return original


def main(path):
    """Run a finale from its plan, a JSON file, and write ``finale.json``: the result, the partition and the phases."""
    plan, phases = Plan(**json.loads(Path(path).read_text())), []
    os.chdir(plan.folder)  # cluster.py starts all processes in the folder with this path on their machine
    with phase("data and partition", phases):
        partition = finale_plan.prepare(plan)
    machine = train(plan, phases)
    with phase("results", phases):
        fetch(plan, machine, (*KEPT, *RESULTS))
        result = json.loads(Path(RESULTS[0]).read_text())
        if plan.predictions:
            np.save("original.npy", to_original(np.load(RESULTS[1]), np.load("parts/node_map.npy")))
            finale_plan.check_predictions(plan, result)
    result |= {"dataset": plan.dataset, "machines": len(plan.machines), "partition": partition, "timeline": phases}
    Path("finale.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
