"""Train node classification with GraphBolt on several ranks.

torchrun --nproc_per_node 2 scripts/bolt_train.py FOLDER    or    python scripts/bolt_train.py FOLDER --ranks 2
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

from bolt_loader import create_dataloader, evaluate, items_per_step, reshuffled, weighted_reduce
from bolt_rank import make_model, one_epoch, open_dataset, start
from leave import leave


def run(rank, world_size, args, init_method="env://"):
    device = start(rank, world_size, init_method)
    dataset = open_dataset(args.folder, device)
    task = dataset.tasks[0]
    model = make_model(rank, dataset, args, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def accuracy_of(itemset):
        batches = create_dataloader(dataset, itemset, args, device)
        accuracy, count = evaluate(model.module, batches, task.metadata["num_classes"], device)
        return weighted_reduce(accuracy * count, count)

    report = {"loss": [], "accuracy": [], "seconds": [], "seeds": []}
    for epoch in range(args.epochs):
        items = reshuffled(task.train_set, seed=epoch)
        steps = items_per_step(items, args, device)
        begin = time.perf_counter()
        batches = create_dataloader(dataset, items, args, device)
        total_loss, seeds = one_epoch(rank, model, optimizer, batches, steps, device)
        if device.type == "cuda":
            torch.cuda.synchronize()  # the GPU works asynchronously
        seconds = time.perf_counter() - begin
        loss, accuracy = weighted_reduce(total_loss, len(seeds)), accuracy_of(task.validation_set)
        for name, value in zip(report, (loss, accuracy, seconds, seeds)):
            report[name].append(value)
        if rank == 0:
            print(f"Epoch {epoch:05d} | Loss {loss:.4f} | Accuracy {accuracy:.4f} | Time {seconds:.2f} s", flush=True)
        if accuracy >= args.stop_at:
            break
    if args.test:
        report["test"] = accuracy_of(task.test_set)
        if rank == 0:
            print(f"Test accuracy {report['test']:.4f}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"rank-{rank}.json").write_text(json.dumps(report))
    leave()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, default=Path("scripts/out/bolt"))
    parser.add_argument("--fanouts", type=int, nargs="+", default=[5, 10])
    numbers = {"ranks": 2, "epochs": 6, "batch_size": 64, "hidden": 64, "dropout": 0.5, "stop_at": 2.0}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    for name in ("drop", "no_loader", "test"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, mp.cpu_count() // 2 // args.ranks)))
    if "RANK" in os.environ:  # torchrun has started this process
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args)
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(run, (args.ranks, args, f"file://{folder}/meet"), nprocs=args.ranks)


if __name__ == "__main__":
    main()
