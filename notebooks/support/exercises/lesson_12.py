"""Checkers of lesson 12: predictions in the order of the data set, and the needs of a run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from support.exercises import exercise, expect, expect_type
from support.exercises.programs import results
from tutorial_lib.data import load_dataset

SCALE = 0.01  # of the graph in the lesson's jobs


@exercise(1)
def check_to_original(program: str) -> None:
    """Exercise 1: compare the predictions in the program's file with the labels."""
    (path,) = results(program, "exercise_12_1.npz")
    hint = "look at what the job printed: it has failed before it wrote the file"
    expect("the file of predictions has come home whole", path.stat().st_size > 0, True, hint)
    with np.load(path) as content:
        got, right = torch.as_tensor(content["predictions"]), int(content["right"])
    graph = load_dataset("synthetic-products", scale=SCALE).graph
    expect("what the file holds: shape", tuple(got.shape), (graph.num_nodes(),), "one class for each node")
    expect("what the file holds: type", str(got.dtype), "torch.int64", "classes are whole numbers")
    test = graph.ndata["test_mask"].bool()
    hint = "row i belongs to node node_map[i] of the data set: write it there, into a new tensor"
    found = int((got == graph.ndata["label"])[test].sum())
    expect("test nodes that are right in the file; expected: what the machines counted", found, right, hint)


COUNTS = ("nodes", "edges", "train", "widths", "machines", "batch", "remote")  # last: remote rows of a step
PLANS: tuple[tuple[tuple[Any, ...], tuple[int, int]], ...] = (
    ((1000, 20_000, 100, (100, 16, 7), 1, 30, 0), (1000 * 123 * 4 + 20_000 * 32, 0)),
    ((1001, 20_001, 101, (8, 4), 2, 10, 25), (501 * 12 * 4 + 10_001 * 32, 2 * 6 * 25 * 8 * 4)),
    ((900, 9_000, 800, (50, 20, 20, 3), 4, 100, 9), (225 * 93 * 4 + 2_250 * 32, 4 * 2 * 9 * 50 * 4)),
)


@exercise(2)
def check_plan_machines(plan_machines: Callable[..., tuple[int, int]]) -> None:
    """Exercise 2: shared memory of a machine, and bytes of features that the network carries in an epoch."""
    for row, (memory, wire) in PLANS:
        counts = dict(zip(COUNTS, row, strict=True))
        got = plan_machines(**counts)
        expect_type(f"{counts}: what came back", got, "tuple of 2")
        where = ", ".join(f"{name} {value}" for name, value in counts.items())
        hint = "own nodes x all widths x 4, and own edges x 32, both rounded up; without floats: (a + b - 1) // b"
        expect(f"{where}: bytes in the memory of a machine", got[0], memory, hint)
        hint = "machines x steps x rows x bytes of a row; a last batch that is not full is a step, too"
        expect(f"{where}: bytes on the wire in an epoch", got[1], wire, hint)
