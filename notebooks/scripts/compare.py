"""Train several models in one job. Usage: compare.py OPTIONS --out FILE -- "--lr 0.01" "--lr 0.02" ..."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from predict import accuracy, inference
from train_before import arguments, join_job, leave_job, run, split


def main(common, changes):
    args = arguments().parse_args(common)
    if not args.out:
        sys.exit("compare.py: --out FILE is missing")
    g, found = join_job(args), {}
    for number, change in enumerate(changes):
        each = arguments().parse_args([*common, *change.split(), "--out", "", "--checkpoint", ""])
        model, epochs = run(g, each)
        test, own = accuracy(inference(model, g, f"scores-{number}"), g, split(g)[2])
        own_of_all = [None] * dist.get_world_size()
        dist.all_gather_object(own_of_all, (own, len(split(g)[2])))
        found[change] = {"epochs": epochs, "test": test, "ranks": own_of_all}
        if dist.get_rank() == 0:
            print(f"{change}: test accuracy {test:.4f}", flush=True)
            torch.save(model.state_dict(), f"{args.out}.{number}.pt")
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(found))
    leave_job()


if __name__ == "__main__":
    end = sys.argv.index("--")
    main(sys.argv[1:end], sys.argv[end + 1 :])
