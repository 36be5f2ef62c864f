"""Checkers of lesson 3, distributed sampling."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.exercises import Unfinished, exercise, expect, expect_type

ALL = [-1, -1]  # all neighbors in two hops
SAMPLER_CASES = (ALL, [-1, -1, -1], [-1], [1, -1], [-1, 1])


def _small_graph(generator: torch.Generator, nodes: int, edges: int) -> Any:
    import dgl

    ends = torch.randint(0, nodes, (2, edges), generator=generator)
    return dgl.to_simple(dgl.graph((ends[0], ends[1]), num_nodes=nodes))


@exercise(1)
def check_sample_visible(sample_visible: Callable[..., Any]) -> None:
    """Exercise 1: the blocks of all hops have no edges that start at a hidden node."""
    import dgl

    generator = torch.Generator().manual_seed(3)
    for nodes, edges, share in ((12, 60, 0.5), (30, 150, 0.7), (10, 40, 0.0), (10, 40, 1.0)):
        graph = _small_graph(generator, nodes, edges)
        visible = torch.rand(nodes, generator=generator) < share
        seeds = torch.randperm(nodes, generator=generator)[:3]
        for fanouts in SAMPLER_CASES:
            got = sample_visible(dgl.sampling.sample_neighbors, graph, seeds.clone(), list(fanouts), visible.clone())
            what = f"seeds {seeds.tolist()}, fan-outs {fanouts}, {int((~visible).sum())} of {nodes} nodes hidden"
            _check_blocks(got, graph, seeds, fanouts, visible, what)


def _check_blocks(got: Any, graph: Any, seeds: Tensor, fanouts: Sequence[int], visible: Tensor, what: str) -> None:
    import dgl

    expect_type(f"type of what came back: {what}", got, "list", "return the list of blocks, after the loop")
    expect(f"number of blocks: {what}", len(got), len(fanouts), "one block for each fan-out")
    known = seeds
    hops = zip(reversed(fanouts), reversed(got), strict=True)
    for hop, (fanout, block) in enumerate(hops, start=1):
        where = f"hop {hop}: {what}"
        expect_type(f"type of the block of {where}", block, "DGLBlock")
        hint = "the block at the seeds is the last one; its source nodes are the seeds of the next hop"
        expect(f"destination nodes of {where}", block.dstdata[dgl.NID], known, hint)
        start, end = block.edges()
        start, end = block.srcdata[dgl.NID][start], block.dstdata[dgl.NID][end]
        hint = "visible[src] says which edges stay"
        expect(f"edges from hidden nodes, {where}", int((~visible[start]).sum()), 0, hint)
        real = graph.has_edges_between(start, end)
        hint = "ids must stay what they are: see store_ids and relabel_nodes, or use dgl.remove_edges"
        expect(f"edges that the graph has, {where}", int(real.sum()), len(start), hint)
        asked = torch.cat([known, graph.in_edges(known)[0]])
        if fanout == -1:
            every = visible[graph.in_edges(known)[0]].sum()
            expect(f"edges of {where}", len(start), int(every), "fan-out -1 takes every visible neighbor")
        else:
            most = int(block.in_degrees().max()) if len(known) else 0
            expect(f"at most {fanout} edges for a node, {where}", most <= fanout, True, "fan-outs: outermost hop first")
        sources = block.srcdata[dgl.NID]
        expect(f"source nodes that belong there, {where}", bool(torch.isin(sources, asked).all()), True)
        reached = torch.cat([known, start]).unique()
        hint = "a node that no edge starts from is not needed; see dgl.to_block"
        expect(f"source nodes of {where}", sources.sort().values, reached, hint)
        known = sources


def check_stays_at_home(folder: str | Path, part_config: str | Path) -> None:
    """Exercise 2: compare the output of the learner's program on two machines with the files of the parts.

    Args:
        folder: contains ``rank-0.json`` and ``rank-1.json`` with the results of the function ``count``.
        part_config: description of the partition that the job used.
    """
    exercise(2)(lambda _: _check_ranks(Path(folder), part_config))(None)


def _check_ranks(folder: Path, part_config: str | Path) -> None:
    import dgl

    parts = json.loads(Path(part_config).read_text())["num_parts"]
    for rank in range(parts):
        found = _entry(folder / f"rank-{rank}.json")
        stored, *_ = dgl.distributed.load_partition(str(part_config), rank)
        inner = stored.ndata["inner_node"].bool()
        ids = stored.ndata[dgl.NID]
        seeds = torch.isin(ids, torch.tensor(found["seeds"])) & inner
        expect(f"rank {rank}: seeds of its own part", int(seeds.sum()), 64, "leave the seeds as they are")
        hint = "take the edges out of the frontier whose source has another part than book.partid"
        expect(f"rank {rank}: remote rows", found["remote_rows"], 0, hint)
        start, end = stored.edges()
        start, end = start[inner[start] & inner[end]], end[inner[start] & inner[end]]
        reached = seeds
        for _hop in ALL:
            more = reached.clone()
            more[start[reached[end]]] = True
            reached = more
        got = torch.tensor(found["inputs"])
        hint = "count, among the files of the part: every neighbor that it owns, in two hops, each once"
        expect(f"rank {rank}: input rows", len(got), int(reached.sum()), hint)
        same = torch.equal(got.sort().values, ids[reached].sort().values)
        expect(f"rank {rank}: the same rows as in the files of the part", same, True, hint)


def _entry(file: Path) -> dict[str, Any]:
    """Return the program's output for all neighbors in two hops."""
    if not file.exists():
        raise Unfinished(f"{file} is not there\n  hint: write the program, and start it on two machines as above")
    entries = [entry for entry in json.loads(file.read_text()) if entry["fanouts"] == ALL]
    if not entries:
        raise Unfinished(f"{file} has no batch with the fan-outs {ALL}\n  hint: the last argument is -1,-1")
    return entries[-1]
