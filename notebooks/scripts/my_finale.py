"""Train your program on machines without a shared disk: python my_finale.py PLAN.json (lesson 12).

data and partition -> copies of each part to its machine -> training, again after a failure -> results in original IDs
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np

from cluster import run_job, write_ip_config
from cluster_job import Job
from finale_plan import KEPT, RESULTS, Plan, answers, fetch, phase, size_of, traffic, words

PORT = 30050


def prepare(plan):
    """Copy the programs to the folder of the job, and partition the data set into the folder ``parts`` there."""
    for program in Path(__file__).resolve().parent.glob("*.py"):
        shutil.copy(program, plan.folder)
    command = [sys.executable, "-m", "tutorial_lib", "partition", "--dataset", plan.dataset, "--scale", str(plan.scale)]
    command += ["--parts", str(len(plan.machines)), "--method", plan.method, "--out", f"{plan.folder}/parts"]
    subprocess.run(command, check=True, capture_output=True)


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

    Connect the output of a local ``tar -c`` to the input of ``tar -x`` on the machine, so that neither computer stores
    the archive. ``mkdir -p`` creates the folder on the machine. ``words(plan, machine, command)`` starts a shell
    command there, and ``-C FOLDER`` is the folder of tar.

    Raises:
        RuntimeError: "copying to machine-1 failed", if one of both programs fails.
    """
    unpack = f"mkdir -p {plan.folder} && tar -x -C {plan.folder}"
    with Popen(["tar", "-c", "-C", plan.folder, *paths], stdout=PIPE) as packing:
        done = subprocess.run(words(plan, machine, unpack), stdin=packing.stdout)
    if packing.returncode or done.returncode:
        raise RuntimeError(f"copying to {machine} failed")


def replace_failed(plan, machines):
    """Return the machines of the next attempt, a new dict. The machine of each part keeps its position.

    A machine that does not answer (``answers(plan, machine)``) is replaced by the first spare machine that has not been
    used. Remove this spare machine from ``plan.spares``. Do not change ``machines``.

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
    write_ip_config(f"{plan.folder}/ip_config.txt", machines.values(), PORT)
    with phase("copies", phases) as entry:
        entry["bytes"] = 0
        for part, machine in enumerate(machines):
            paths = files_for(plan, part)
            send(plan, machine, paths)
            entry["bytes"] += size_of(plan, paths)
    files = f"--graph_name {plan.dataset} --part_config parts/{plan.dataset}.json --ip_config ip_config.txt"
    command = f"python3 finale_job.py {files} --checkpoint {KEPT[0]} --best {KEPT[1]} --out {RESULTS[0]}"
    command = [*command.split(), "--predictions", RESULTS[1], *plan.options.split()]
    extra = {"PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "eth0"}
    paths = {"config": f"parts/{plan.dataset}.json", "folder": f"{plan.folder}/logs", "remote": plan.job_shell}
    job = Job(machines=machines, command=command, **paths, port=PORT, extra=extra)
    with phase("training", phases) as entry:
        before = sum(traffic(plan, machine) for machine in machines)
        run_job(job, plan.seconds)
        entry["bytes"] = sum(traffic(plan, machine) for machine in machines) - before


def train(plan, phases):
    """Call ``attempt`` until the job succeeds, at most ``plan.attempts`` times. Return the name of the first machine.

    The first attempt uses ``plan.machines``. After an attempt has raised a RuntimeError or a TimeoutError:

    1. Print "attempt 1 failed: " and the error. The attempts are numbered from 1.
    2. After the last attempt, raise the error again.
    3. Fetch the files of ``KEPT`` from the first machine of this attempt. Do not raise an error if it has none.
    4. Let ``replace_failed`` choose the machines of the next attempt.

    The first machine of the successful attempt has the results.
    """
    machines = plan.machines
    for number in range(1, plan.attempts + 1):
        try:
            attempt(plan, machines, phases)
            return next(iter(machines))
        except (RuntimeError, TimeoutError) as error:
            print(f"attempt {number} failed: {error}", flush=True)
            if number == plan.attempts:
                raise
            fetch(plan, next(iter(machines)), KEPT)
            machines = replace_failed(plan, machines)


def to_original(rows, node_map):
    """Return the rows in the order of the data set, a new array with the dtype of ``rows``.

    Args:
        rows: array (N,). Row i belongs to the node with the new ID i, which DGL assigned part by part.
        node_map: int64 array (N,). ``node_map[i]`` is the original ID of the node with the new ID i.
    """
    original = np.empty_like(rows)
    original[node_map] = rows
    return original


def finish(plan, machine):
    """Fetch the results, write ``original.npy``, the predictions in the order of the data set, and return the results.

    Without ``plan.predictions``, return only the results.

    Raises:
        RuntimeError: if the file does not have the accuracies that the ranks counted.
    """
    from tutorial_lib.data import load_dataset

    fetch(plan, machine, (*KEPT, *RESULTS))
    folder = Path(plan.folder)
    result = json.loads((folder / RESULTS[0]).read_text())
    if not plan.predictions:
        return result
    predictions = to_original(np.load(folder / RESULTS[1]), np.load(folder / "parts" / "node_map.npy"))
    graph = load_dataset(plan.dataset, scale=plan.scale).graph
    for name in ("val", "test"):
        mask = graph.ndata[f"{name}_mask"].numpy().astype(bool)
        found, counted = (predictions == graph.ndata["label"].numpy())[mask].mean(), result[f"{name}_accuracy"]
        if abs(found - counted) > 1e-6:
            raise RuntimeError(f"{name} accuracy {found:.4f} of the file, and {counted:.4f} of the ranks")
    np.save(folder / "original.npy", predictions)
    return result


def main(path):
    """Run a finale from its plan, a JSON file, and write ``finale.json``: the result, the partition and the phases."""
    plan, phases = Plan(**json.loads(Path(path).read_text())), []
    Path(plan.folder).mkdir(parents=True, exist_ok=True)
    with phase("data and partition", phases):
        prepare(plan)
    machine = train(plan, phases)
    with phase("results", phases):
        result = finish(plan, machine)
    partition = json.loads(Path(plan.folder, "parts", "manifest.json").read_text())["report"]
    result |= {"dataset": plan.dataset, "machines": len(plan.machines), "partition": partition, "timeline": phases}
    Path(plan.folder, "finale.json").write_text(json.dumps(result))
    if plan.predictions:
        print(f"exact test accuracy {result['test_accuracy']:.4f}, also of {plan.folder}/original.npy")


if __name__ == "__main__":
    main(sys.argv[1])
