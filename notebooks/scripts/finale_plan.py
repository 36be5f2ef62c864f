"""The plan of a finale, and the commands that reach its machines, for my_finale.py (lesson 12)."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL

import numpy as np

from cluster_job import Job

KEPT = ("model.pt", "best.pt")  # files that a later attempt needs: the checkpoint, and the weights of the best epoch
RESULTS = ("result.json", "predictions.npy")


@dataclass
class Plan:
    """Describe a finale. Machine k of ``machines`` has the copy of part k, and rank 0 runs on the first machine."""

    folder: str  # absolute path of the job's folder, on this computer and on each machine
    machines: dict  # name -> IPv4 address
    options: str  # of finale_job.py, such as "--num_epochs 8"
    spares: dict = field(default_factory=dict)  # machines that can replace a failed one: name -> IPv4 address
    shell: str = "ssh -o ConnectTimeout=10 {}"  # precedes a shell command for the machine {}
    job_shell: str = "python3 attached.py ssh {}"  # the same for the job. Its processes end with their connection
    dataset: str = "synthetic-products"  # or the name of a folder with your tables (lesson 17) in ``folder``
    scale: float = 0.01
    both_ways: bool = False  # add the reverse of each edge of your tables
    method: str = "kaminpar"  # or FILE.npy with the part of each node
    attempts: int = 2  # how often to start the training
    seconds: float = 300  # time limit of an attempt
    predictions: bool = True  # False: the job writes only result.json, as with the option --repeats


def prepare(plan):
    """Copy the programs to the folder of the job, and partition the data set into its folder ``parts``."""
    if "/" in plan.dataset:  # it is also the name of files
        raise ValueError(f"dataset {plan.dataset} is a path. Copy this folder to {plan.folder}, and use only its name")
    for program in Path(__file__).resolve().parent.glob("*.py"):
        shutil.copy(program, plan.folder)
    command = [sys.executable, "-m", "tutorial_lib", "partition", "--dataset", plan.dataset, "--scale", str(plan.scale)]
    command += ["--parts", str(len(plan.machines)), "--method", plan.method, "--out", f"{plan.folder}/parts"]
    command += ["--both-ways"] * plan.both_ways
    done = subprocess.run(command, capture_output=True, text=True, cwd=plan.folder)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return json.loads(Path(plan.folder, "parts", "manifest.json").read_text())["report"]


def describe_job(plan, machines):
    """Return the job for cluster.py (lesson 09). All paths are relative to ``plan.folder``, except that of the logs."""
    config = f"parts/{plan.dataset}.json"
    files = f"--graph_name {plan.dataset} --part_config {config} --ip_config ip_config.txt"
    command = f"python3 finale_job.py {files} --checkpoint {KEPT[0]} --best {KEPT[1]} --out {RESULTS[0]}"
    command = [*command.split(), "--predictions", RESULTS[1], *plan.options.split()]
    extra = {"PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "eth0"}
    return Job(machines, config, command, f"{plan.folder}/logs", plan.job_shell, extra=extra)


def check_predictions(plan, result):
    """Raise a RuntimeError if ``original.npy`` does not have the accuracies that the ranks counted."""
    from tutorial_lib.data import load_dataset

    dataset = load_dataset(plan.dataset, scale=plan.scale, add_reverse_edges=plan.both_ways)
    graph, predictions = dataset.graph, np.load(f"{plan.folder}/original.npy")
    right = predictions == graph.ndata["label"].numpy()
    for name in ("val", "test"):
        mask, counted = graph.ndata[f"{name}_mask"].numpy().astype(bool), result[f"{name}_accuracy"]
        if abs(right[mask].mean() - counted) > 1e-6:
            raise RuntimeError(f"{name} accuracy {right[mask].mean():.4f} of the file, and {counted:.4f} of the ranks")
        print(f"  {name} accuracy {counted:.4f}, also of original.npy", flush=True)


def words(plan, machine, command):
    """Return the words that run a shell command on a machine."""
    return [*plan.shell.replace("{}", machine).split(), command]


def answers(plan, machine):
    """Return whether a command runs on the machine. A machine that is switched off does not answer."""
    try:
        return subprocess.run(words(plan, machine, "true"), stdin=DEVNULL, stderr=DEVNULL, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def fetch(plan, machine, names):
    """Download files from the folder of the job on a machine. Return the names of the files that exist there.

    A file replaces an earlier copy only if its download has succeeded.
    """
    fetched = []
    for name in names:
        path = Path(plan.folder, name)
        with open(f"{path}.new", "wb") as file:
            done = subprocess.run(words(plan, machine, f"cat {path}"), stdin=DEVNULL, stdout=file, stderr=DEVNULL)
        if done.returncode == 0:
            os.replace(f"{path}.new", path)
            fetched.append(name)
        else:
            os.remove(f"{path}.new")
    return fetched


def size_of(plan, paths):
    """Return the bytes of all files with these paths, and of the files below these folders."""
    found = [Path(plan.folder, path) for path in paths]
    files = [file for path in found for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file())


def traffic(plan, machine):
    """Return the bytes that the network cards of a machine have sent, as counted by Linux, or 0 without an answer."""
    if not answers(plan, machine):
        return 0
    done = subprocess.run(words(plan, machine, "cat /proc/net/dev"), stdin=DEVNULL, capture_output=True, text=True)
    cards = [line.split() for line in done.stdout.splitlines()[2:]]
    return sum(int(card[9]) for card in cards if card[0] != "lo:")


@contextmanager
def phase(name, phases, size=0):
    """Append a dict to ``phases`` when the body ends: name, start, end (seconds), bytes (set by the body), error."""
    entry = {"name": name, "start": time.time(), "bytes": size}
    print(f"{name} ...", flush=True)
    try:
        yield entry
    except BaseException as error:
        entry["error"] = str(error) or type(error).__name__
        raise
    finally:
        entry["end"] = time.time()
        phases.append(entry)
        more = f", {entry['bytes'] / 1e6:.1f} MB" if entry["bytes"] else ""
        print(f"  {entry['end'] - entry['start']:.1f} s{more}", flush=True)
