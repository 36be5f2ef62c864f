"""Train, and predict all nodes with the best weights: the program of the machines in my_finale.py (lesson 12)."""

import json
import os
import socket
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import checkpoint
from job import arguments, join_job, leave_job
from node_task import NodeTask
from predict import inference
from ranks import weighted_reduce
from train import fit, report


def use_one_core():
    """Run on one core, the same for all processes of a machine, so that two machines have two cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(socket.gethostname().split("-")[1]) % len(cores)]})


def print_shared_memory():
    """Print how many bytes of this machine's /dev/shm are in use."""
    shm = os.statvfs("/dev/shm")
    used = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
    print(f"{socket.gethostname()}: {used / 1e6:.1f} MB of shared memory", flush=True)


class RaceTask(NodeTask):
    """Node classification, scored with sampled neighbors, because the exact evaluation takes longer than an epoch."""

    @torch.no_grad()
    def evaluate(self):
        """Return the accuracy on the validation nodes of all ranks."""
        self.model.eval()
        blocks, x, y = self.read(self.sample(self.ids["val"]))
        right = (self.model.module(blocks, x)[: len(y)].argmax(1) == y).sum()
        return {"val_accuracy": weighted_reduce(int(right), len(y))}


def measure(g, args):
    """Train with several seeds, without files. Rank 0 writes the epochs of each training to ``--out``."""
    args.checkpoint = args.best = ""
    runs = []
    for seed in range(args.repeats):
        args.seed = seed
        runs.append(fit(RaceTask(g, args)))
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps({"runs": runs}))


def predict(task):
    """Compute exact scores of all nodes with the best weights. Rank 0 writes the classes in the order of new IDs."""
    task.model.module.load_state_dict(checkpoint.read(task.args.best))
    scores = inference(task.model.module, task.g, task.g.ndata["feat"], task.device)
    if dist.get_rank() == 0:
        parts = torch.arange(task.g.num_nodes()).split(100_000)
        np.save(task.args.predictions, torch.cat([scores[ids].argmax(1) for ids in parts]).numpy())


if __name__ == "__main__":
    args = arguments(predictions="predictions.npy", repeats=0, one_core=0).parse_args()
    if args.one_core:
        use_one_core()
    g = join_job(args)
    if args.repeats:
        measure(g, args)
    else:
        task = NodeTask(g, args)
        report(task, fit(task))
        predict(task)
        print_shared_memory()
    leave_job()
