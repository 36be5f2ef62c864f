"""Checkers of lesson 10, training on many machines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type, plain, rounded
from support.exercises.programs import find_results

# training nodes, ranks, batch size of a rank, (batch size, learning rate) of one process -> steps, effective, rate
PLAN_CASES = (
    ((983, 4, 49, (196, 0.01)), ([6, 6, 6, 5], 196, 0.01)),
    ((1000, 2, 100, (100, 0.01)), ([5, 5], 200, 0.02)),
    ((301, 3, 20, (120, 0.008)), ([6, 5, 5], 60, 0.004)),
    ((90, 4, 1000, (1000, 0.003)), ([1, 1, 1, 1], 4000, 0.012)),
    ((7, 1, 2, (4, 0.5)), ([4], 2, 0.25)),
)


@exercise(1)
def check_plan_epoch(plan_epoch: Callable[[int, int, int, tuple[int, float]], Any]) -> None:
    """Exercise 1: steps of each rank, effective batch size, and learning rate by the linear rule."""
    for arguments, (steps, effective, rate) in PLAN_CASES:
        nodes, ranks, batch_size, alone = arguments
        what = f"{nodes} training nodes, {ranks} rank(s) with batches of {batch_size}, alone={alone}"
        got = plan_epoch(*arguments)
        expect_type(f"{what}: type of the result", got, "tuple of 3")
        hint = "The shares differ by at most one node, and the first ranks have the larger ones. Round up on each rank."
        expect(f"{what}: steps of each rank", plain(got[0]), steps, hint)
        expect(f"{what}: effective batch size", got[1], effective, "Each rank computes one batch per step.")
        expect(f"{what}: learning rate", rounded(got[2], 9), rate, "rate of one process x batch size ratio")


def check_hot_rows(program: str, part_config: str | Path) -> None:
    """Exercise 2: compare the rows in the learner's cache on each machine with the files of the parts.

    Args:
        program: path of the program, which has written ``out/PROGRAM-0.json`` and ``out/PROGRAM-1.json``.
        part_config: description of the partition that the job used.
    """
    exercise(2)(lambda _: _check_caches(program, Path(part_config)))(None)


def _check_caches(program: str, part_config: Path) -> None:
    degrees, owner = _degrees(part_config)
    files = find_results(program, f"{Path(program).stem}-?.json")
    expect("files written by the ranks", len(files), int(owner.max()) + 1, "Start the program on both machines.")
    for rank, file in enumerate(files):
        report = json.loads(file.read_text())
        cached = torch.tensor(report["kept"], dtype=torch.int64)
        remote = owner != rank
        hint = "Call self.keep(ids, rows) with as many IDs as the capacity."
        expect(f"rank {rank}: cached rows", len(cached), report["capacity"], hint)
        hint = "Local rows are in shared memory. Choose IDs with book.nid2partid(ids) != book.partid."
        expect(f"rank {rank}: cached rows of local nodes", int((~remote[cached]).sum()), 0, hint)
        most = degrees[remote].sort(descending=True).values[: len(cached)].sum()
        hint = "argsort of degrees[remote] returns positions in remote, not node IDs."
        expect(f"rank {rank}: total degree of the cached nodes", int(degrees[cached].sum()), int(most), hint)
        hits, requests = report["mine"]
        first_hits, first_requests = report["first come"]
        hint = "RowCache.__getitem__ counts the requests. Do not change it."
        expect(f"rank {rank}: requested rows, equal for both caches", requests, first_requests, hint)
        hint = "Cache the rows before the first batch."
        expect(f"rank {rank}: more hits than the first cache", hits > first_hits, True, hint)


def _degrees(part_config: Path) -> tuple[Tensor, Tensor]:
    """Return in-degree and owner of each node, in the order of the new IDs."""
    import dgl

    parts = json.loads(part_config.read_text())["num_parts"]
    degrees, owner = [], []
    for part in range(parts):
        stored, *_ = dgl.distributed.load_partition(str(part_config), part)
        inner = stored.ndata["inner_node"].bool()
        degrees.append(stored.in_degrees()[inner][stored.ndata[dgl.NID][inner].argsort()])
        owner.append(torch.full((int(inner.sum()),), part))
    return torch.cat(degrees), torch.cat(owner)
