"""Train several models in one job (lesson 10): compare.py OPTIONS --out FILE -- "--lr 0.01" "--lr 0.02" ..."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from job import arguments, join_job, leave_job
from node_task import NodeTask
from predict import inference
from train import fit


def accuracy_of_rank(task):
    """Return the accuracy on the test nodes of this rank, and their number."""
    scores, ids = inference(task.model.module, task.g, task.g.ndata["feat"], task.device), task.ids["test"]
    return (scores[ids].argmax(1) == task.label[ids]).double().mean().item(), len(ids)


def main(common, changes):
    options = arguments().parse_args(common)
    g, found = join_job(options), {}
    for number, change in enumerate(changes):
        task = NodeTask(g, arguments().parse_args([*common, *change.split()]))
        epochs, ranks = fit(task), [None] * dist.get_world_size()
        dist.all_gather_object(ranks, accuracy_of_rank(task))
        found[change] = {"epochs": epochs, "test": epochs[-1]["test_accuracy"], "ranks": ranks}
        if dist.get_rank() == 0:
            print(f"{change}: test accuracy {found[change]['test']:.4f}", flush=True)
            torch.save(task.model.module.state_dict(), f"{options.out}.{number}.pt")
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(found))
    leave_job()


if __name__ == "__main__":
    end = sys.argv.index("--")
    main(sys.argv[1:end], sys.argv[end + 1 :])
