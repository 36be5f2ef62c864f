"""Checkers of lesson 3, distributed sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type

SOME_DEGREES = ([0, 1, 3, 8, 4], [5, 0, 2], [1])
FANOUT_CASES = ((4, False), (4, True), (1, True), (-1, False), (-1, True), (10, False))


def _graph_with(degrees: Sequence[int]) -> Any:
    """A graph whose node i has ``degrees[i]`` incoming edges, from nodes after the last i."""
    import dgl

    targets = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees))
    sources = len(degrees) + torch.arange(len(targets))
    return dgl.graph((sources, targets), num_nodes=len(degrees) + len(targets))


@exercise(1)
def check_edges_sampled(edges_sampled: Callable[[Tensor, int, bool], Tensor]) -> None:
    """Exercise 1: the number of edges per node, against what DGL draws."""
    import dgl

    for degrees in SOME_DEGREES:
        graph = _graph_with(degrees)
        nodes = torch.arange(len(degrees))
        for fanout, replace in FANOUT_CASES:
            drawn = dgl.sampling.sample_neighbors(graph, nodes, fanout, replace=replace).in_degrees(nodes)
            got = edges_sampled(torch.tensor(degrees), fanout, replace)
            what = f"edges of nodes with degrees {degrees}, fan-out {fanout}, replace={replace}"
            expect(what, got, drawn, _edges_hint(fanout, replace))


def _edges_hint(fanout: int, replace: bool) -> str:
    if fanout == -1:
        return "-1 takes every neighbour once, with replace=True too"
    if replace:
        return "with replacement a node with any neighbour gets fan-out many edges, one with none gets none"
    return "without replacement a node gives no more edges than it has"


# batch size, fan-outs, nodes of the graph, expected
SIZE_CASES = (
    (2, [3], 100, 8),
    (256, [5, 10], 24490, 16896),
    (10, [2, 3, 4], 10_000, 600),
    (1000, [15, 10, 5], 5000, 5000),
    (10, [-1, 5], 700, 700),
    (10, [5, -1], 700, 700),
)


@exercise(2)
def check_most_input_nodes(most_input_nodes: Callable[[int, list[int], int], int]) -> None:
    """Exercise 2: the largest number of input nodes that a batch can have."""
    for batch_size, fanouts, num_nodes, expected in SIZE_CASES:
        got = most_input_nodes(batch_size, list(fanouts), num_nodes)
        if -1 in fanouts:
            hint = "-1 sets no limit, so only the size of the graph does"
        elif expected == num_nodes:
            hint = "a batch has no more input nodes than the graph has nodes"
        else:
            hint = "each hop keeps the nodes it starts from and adds up to fan-out many for each"
        expect(f"batch of {batch_size}, fan-outs {fanouts}, {num_nodes:,} nodes", got, expected, hint)


@exercise(3)
def check_keep_visible(keep_visible: Callable[[Any, Tensor], Any]) -> None:
    """Exercise 3: a frontier without the edges that start from hidden nodes."""
    import dgl

    generator = torch.Generator().manual_seed(3)
    for nodes, edges, share in ((8, 30, 0.5), (20, 90, 0.7), (6, 12, 1.0), (6, 12, 0.0)):
        ends = torch.randint(0, nodes, (2, edges), generator=generator)
        visible = torch.rand(nodes, generator=generator) < share
        graph = dgl.graph((ends[0], ends[1]), num_nodes=nodes)
        drawn = torch.randperm(edges, generator=generator)[: edges // 2]  # leaves DGL's generator alone
        frontier = dgl.edge_subgraph(graph, drawn, relabel_nodes=False)
        _check_frontier(keep_visible(frontier, visible), frontier, visible)


def _check_frontier(got: Any, frontier: Any, visible: Tensor) -> None:
    import dgl

    src, dst = frontier.edges()
    keep = visible[src]
    what = f"of a frontier with {frontier.num_nodes()} nodes and {frontier.num_edges()} edges"
    expect_type(f"type of what came back, {what}", got, "DGLGraph")
    hint = "a frontier keeps all nodes of the graph, so that ids stay what they are"
    expect(f"number of nodes, {what}", got.num_nodes(), frontier.num_nodes(), hint)
    hint = "visible[src] says which edges stay"
    expect(f"number of edges that start from visible nodes, {what}", got.num_edges(), int(keep.sum()), hint)
    order = torch.argsort(frontier.edata[dgl.EID][keep])
    hint = "frontier.edata[dgl.EID] holds ids in the whole graph; see store_ids of dgl.edge_subgraph"
    ids, got_order = torch.sort(got.edata[dgl.EID]) if dgl.EID in got.edata else (None, None)
    expect(f"edge ids in dgl.EID, sorted, {what}", ids, frontier.edata[dgl.EID][keep][order], hint)
    for name, end, all_ends in zip(("sources", "destinations"), got.edges(), (src, dst), strict=True):
        hint = "node ids must stay what they are; see relabel_nodes of dgl.edge_subgraph"
        expect(f"{name} of the edges, {what}", end[got_order], all_ends[keep][order], hint)
