"""The options that every peer takes, and the files that it writes: times, and the weights after each epoch."""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

FANOUTS, BATCH_SIZE, HIDDEN, DROPOUT, LEARNING_RATE = [15, 10, 5], 1000, 256, 0.5, 0.003  # outermost hop first
WIDTH, CLASSES = 100, 47  # of synthetic-products


def parse_options() -> argparse.Namespace:
    """Return the options of a peer: the folder of its data, the folder for its results, epochs and seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cached", action="store_true", help="GLT: keep rows and edges of the other machine")
    return parser.parse_args()


class Recorder:
    """Writes the events of rank 0, with the same fields as ours. The other ranks write nothing."""

    def __init__(self, out: Path, rank: int) -> None:
        self.out = out if rank == 0 else None

    def note(self, kind: str, **fields: object) -> None:
        if self.out is not None:
            with (self.out / "events.jsonl").open("a") as file:
                file.write(json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n")

    def save(self, epoch: int, seconds: float, loss: float, weights: Mapping[str, torch.Tensor]) -> None:
        """Write the event of an epoch, and its weights under the names of ``dgl.nn.SAGEConv``."""
        self.note("epoch", epoch=epoch, seconds=seconds, loss=loss)
        if self.out is not None:
            torch.save(dict(weights), self.out / "partial.pt")
            os.replace(self.out / "partial.pt", self.out / f"weights-{epoch}.pt")


def leave() -> None:
    """End this process at once. gloo's destructor can hang in torch 2.2."""
    torch.distributed.barrier()
    os._exit(0)


def train(
    recorder: Recorder,
    epochs: int,
    model: torch.nn.parallel.DistributedDataParallel,
    batches: Iterable[Any],
    loss_of: Callable[[Any], torch.Tensor],
    weights_of: Callable[[], Mapping[str, torch.Tensor]],
) -> None:
    """Train for some epochs, record each, and end the process. ``loss_of`` computes the loss of a batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    recorder.note("start")
    for epoch in range(epochs):
        begin, losses = time.perf_counter(), []
        model.train()
        with model.join():
            for batch in batches:
                loss = loss_of(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        recorder.save(epoch, time.perf_counter() - begin, sum(losses) / len(losses), weights_of())
    leave()
