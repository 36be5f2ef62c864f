"""Checkers of lesson 1, DistGraph in one process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.exercises import exercise, expect, plain
from tutorial_lib.data import load_dataset

# Node 0 has four in-neighbors, and each of these has three. So the number of sampled nodes does not depend on the seed.
TREE = [(child, 0) for child in (1, 2, 3, 4)] + [(2 + 3 * child + k, child) for child in (1, 2, 3, 4) for k in range(3)]
READ_CASES = (([0], [3], 4), ([0], [4, 2], 13), ([0], [2, 4], 11), ([1, 2], [2], 6))


@exercise(1)
def check_nodes_to_read(nodes_to_read: Callable[[Any, Tensor, Sequence[int]], int]) -> None:
    """Exercise 1: ``nodes_to_read(graph, seeds, per_hop)`` returns the number of input nodes of a sampled batch."""
    import dgl

    graph = dgl.graph(tuple(map(list, zip(*TREE, strict=True))))
    for seeds, per_hop, expected in READ_CASES:
        got = nodes_to_read(graph, torch.tensor(seeds), per_hop)
        hint = "per_hop begins with the hop next to the seeds; DGL lists fan-outs outermost hop first."
        expect(f"a tree of 17 nodes, seeds {seeds}, per_hop {per_hop}", got, expected, hint)


# (edges from a source to a destination, number of sources, number of destinations)
BLOCKS = (
    ([(1, 0), (2, 0), (3, 1), (0, 1), (4, 2)], 5, 3),
    ([(3, 0), (4, 0), (3, 2)], 5, 3),  # destination 1 has no edges
    ([(0, 0), (1, 0)], 2, 1),
)


@exercise(2)
def check_max_conv(make: Callable[[int, int], nn.Module]) -> None:
    """Exercise 2: ``MaxConv(in_size, out_size)`` is a layer that takes the maximum of the neighbors' features."""
    import dgl

    torch.manual_seed(0)
    layer = make(4, 3)
    for edges, sources, destinations in BLOCKS:
        block = dgl.create_block(tuple(map(list, zip(*edges, strict=True))), sources, destinations)
        x = torch.randn(sources, 4) - 1  # many numbers are negative
        received = [torch.stack([x[s] for s, d in edges if d == node] or [torch.zeros(4)]) for node in block.dstnodes()]
        largest = torch.stack([rows.amax(0) for rows in received])
        right = layer.fc_self(x[:destinations]) + layer.fc_neigh(largest)
        what = f"a block with edges {edges}: "
        got = layer(block, x)
        shape = tuple(got.shape) if isinstance(got, Tensor) else got
        expect(what + "shape", shape, (destinations, 3), "The destination nodes are the first of the source nodes.")
        hint = "The maximum of the x that arrive, number by number; the linear maps come after it, and no ReLU."
        largest_error = float((got - right).abs().max())
        expect(what + "error of the rows below 1e-5", largest_error < 1e-5, True, f"It is {largest_error:.2g}. {hint}")


@exercise(3)
def check_best_epoch(path: str | Path) -> None:
    """Exercise 3: a file contains ``valid``, eight accuracies, and ``weights``, those of the best epoch."""
    saved = torch.load(path)
    valid = [float(plain(value)) for value in saved["valid"]]
    expect('numbers in "valid"', len(valid), 8, "Append the accuracy on val_mask after each epoch.")
    weights = saved["weights"].state_dict() if isinstance(saved["weights"], nn.Module) else saved["weights"]
    best, of_weights = max(valid), exact_accuracy(weights)
    hint = "state_dict() does not copy: the next step changes what you kept. And is the accuracy that of inference?"
    what = 'validation accuracy of "weights", beside the best in "valid"'
    expect(what, round(of_weights, 4), round(best, 4) if abs(best - of_weights) > 0.001 else round(of_weights, 4), hint)


def exact_accuracy(weights: Mapping[str, Tensor]) -> float:
    """Compute the validation accuracy of a two-layer GraphSAGE over all neighbors with matrices."""
    import dgl

    graph = load_dataset("synthetic-products", scale=0.01).graph
    x = graph.ndata["feat"]
    for depth in (0, 1):
        names = ("fc_self.weight", "fc_self.bias", "fc_neigh.weight")
        own, bias, neighbors = (weights[f"layers.{depth}.{name}"] for name in names)
        x = F.relu(x) if depth else x
        x = x @ own.T + bias + dgl.ops.copy_u_mean(graph, x) @ neighbors.T
    mask = graph.ndata["val_mask"]
    return (x[mask].argmax(1) == graph.ndata["label"][mask]).double().mean().item()
