"""Checkers of lesson 12: predictions in the order of the data set, and the needs of a run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from support.exercises import exercise, expect, expect_type
from support.exercises.programs import find_results
from tutorial_lib.data import load_dataset

SCALE = 0.01  # scale of the graph in the lesson's jobs


@exercise(1)
def check_to_original(program: str) -> None:
    """Exercise 1: compare the predictions in the program's file with the labels."""
    (path,) = find_results(program, "exercise_12_1.npz")
    hint = "The job failed before it wrote the file. Read its output."
    expect("the downloaded file of predictions has content", path.stat().st_size > 0, True, hint)
    with np.load(path) as content:
        got = torch.as_tensor(content["predictions"])
        right = int(content["right"])
    graph = load_dataset("synthetic-products", scale=SCALE).graph
    expect("shape of the predictions", tuple(got.shape), (graph.num_nodes(),), "Write one class per node.")
    expect("dtype of the predictions", str(got.dtype), "torch.int64", "Classes are integers.")
    test = graph.ndata["test_mask"].bool()
    hint = "Row i belongs to node node_map[i] of the data set. Write it to that row of a new tensor."
    correct = int((got == graph.ndata["label"])[test].sum())
    expect("correct predictions of test nodes (expected: the number that the ranks counted)", correct, right, hint)


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
        expect_type(f"{counts}: type of the result", got, "tuple of 2")
        where = ", ".join(f"{name} {value}" for name, value in counts.items())
        hint = "local nodes x all widths x 4, plus local edges x 32. Round both up with (a + b - 1) // b."
        expect(f"{where}: bytes in the memory of a machine", got[0], memory, hint)
        hint = "machines x steps x rows x bytes per row. An incomplete last batch is a step, too."
        expect(f"{where}: bytes sent over the network in an epoch", got[1], wire, hint)
