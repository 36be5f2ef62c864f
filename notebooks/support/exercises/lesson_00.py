"""Checkers of lesson 0, Start here. Two of them read the output of the ranks."""

import re
from collections.abc import Callable, Sequence

import torch

from support.exercises import Unfinished, exercise, expect, plain
from tutorial_lib.data import load_dataset

GB = 10**9
FILL_HINT = "Half of each memory may hold the graph, and a machine that is needed in part is needed."
MACHINE_CASES = (
    (3 * GB, 16 * GB, 1),
    (16 * GB, 16 * GB, 2),
    (16 * GB + 1, 16 * GB, 3),
    (84 * GB, 16 * GB, 11),
    (1_174 * GB, 64 * GB, 37),
)


@exercise(1)
def check_machines_needed(machines_needed: Callable[[int, int], int]) -> None:
    """Exercise 1: ``machines_needed(total, memory)`` returns a number of machines. Both arguments are in bytes."""
    for total, memory, expected in MACHINE_CASES:
        what = f"machines_needed({total:_}, {memory:_})"
        got = plain(machines_needed(total, memory))
        whole = int(got) if type(got) is float and got.is_integer() else got  # 3.0 means 3 machines, and 2.5 is wrong
        expect(what, whole, expected, FILL_HINT)


def _expect_printed(lines: Sequence[str], text: str, expected: int, hint: str) -> None:
    """Raise ``Unfinished`` unless both ranks printed ``rank R: in all NUMBER`` and this text, with the right number."""
    pattern = rf"rank (\d+): in all (?:tensor\()?([\d,_]+)(?:\.0*)?\)? {text}"
    said = {int(rank): int(re.sub("[,_]", "", number)) for rank, number in re.findall(pattern, "\n".join(lines))}
    no_answer = "What the job printed says why; its last lines first. Leave the line that prints as it is."
    expect(f'ranks that said "in all ... {text}"', sorted(said), [0, 1], no_answer)
    got = [said[0], said[1]]
    if got != [expected, expected]:  # the message does not contain the right number
        size = "larger" if max(got) < expected else "smaller" if min(got) > expected else "correct"
        wanted = f"the same {size} number from both"
        raise Unfinished(f"what ranks 0 and 1 said\n  got       {got}\n  expected  {wanted}\n  hint: {hint}")


@exercise(2)
def check_test_edges(lines: Sequence[str]) -> None:
    """Exercise 2: both ranks print the number of edges into test nodes that connect equal classes."""
    graph = load_dataset("synthetic-products", scale=0.01).graph
    label, mask = graph.ndata["label"], graph.ndata["test_mask"]
    sources, targets = graph.in_edges(mask.nonzero().flatten())
    expected = int((label[sources] == label[targets]).sum())
    hint = "Which mask does node_split share out? And is the sum over all ranks still taken?"
    _expect_printed(lines, "edges join equal classes", expected, hint)


@exercise(3)
def check_unseen(lines: Sequence[str]) -> None:
    """Exercise 3: both ranks print the number of test nodes whose class no training node has."""
    graph = load_dataset("synthetic-products", scale=0.01).graph
    label = graph.ndata["label"]
    seen = label[graph.ndata["train_mask"]].unique()
    expected = int((~torch.isin(label[graph.ndata["test_mask"]], seen)).sum())
    hint = "A class is unseen if no rank has a training node of it: add up before you compare, and again at the end."
    _expect_printed(lines, "test nodes are of an unseen class", expected, hint)
