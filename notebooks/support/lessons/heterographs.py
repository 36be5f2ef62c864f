"""Lesson 15: what a trainer sees of a heterograph. Servers and trainers run ``python -m`` this module.

look      dictionaries of ids: shares, a batch, rows and neighbours
run_look  the job, from a notebook
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dgl
import torch
from torch import Tensor

from support.lessons.multi_machine_jobs import launch_module
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.session import Session, join, serve_if_server


def look(session: Session) -> None:
    """Report shares of papers and authors, a batch that has both as seeds, and the edges that end at three papers."""
    g, emit = session.graph, session.events.emit
    book = g.get_partition_book()
    masks = {"paper": g.nodes["paper"].data["train_mask"], "author": torch.ones(g.num_nodes("author")).bool()}
    shares = {name: dgl.distributed.node_split(mask, book, ntype=name, force_even=True) for name, mask in masks.items()}
    emit("shares", **{name: count_by_place(book, ids, name) for name, ids in shares.items()})

    seeds = {name: ids[:60] for name, ids in shares.items()}
    sampler = dgl.dataloading.MultiLayerNeighborSampler([4, 4])
    loader = dgl.dataloading.DistNodeDataLoader(g, seeds, sampler, batch_size=120)
    input_nodes, output_nodes, _blocks = next(iter(loader))
    emit("batch", inputs={name: count_by_place(book, ids, name) for name, ids in input_nodes.items()})
    labels = g.nodes["paper"].data["label"][output_nodes["paper"]]
    emit("labels", ids=output_nodes["paper"].tolist(), labels=labels.tolist())

    frontier = dgl.distributed.sample_etype_neighbors(g, {"paper": shares["paper"][:3]}, -1)  # all neighbours
    edges = {":".join(r): torch.stack(frontier.edges(etype=r)).tolist() for r in frontier.canonical_etypes}
    emit("neighbours", seeds=shares["paper"][:3].tolist(), edges=edges)


def count_by_place(book: Any, ids: Tensor, name: str) -> list[int]:
    """How many of these nodes lie in this machine's part, and how many in others."""
    own = int((book.nid2partid(ids, name) == book.partid).sum())
    return [own, len(ids) - own]


def run_look(part: Partition, out: Path) -> dict[str, list[dict[str, Any]]]:
    """Run ``look`` on an emulated machine for each part; by kind of event, what the ranks told, in rank order."""
    events = launch_module("heterographs", [], part, out, f"heterographs.py on {part.report.parts} machine(s)")
    kinds = ("shares", "batch", "labels", "neighbours")
    return {kind: sorted((e for e in events if e["kind"] == kind), key=lambda e: e["rank"]) for kind in kinds}


if __name__ == "__main__":
    serve_if_server()
    with join(sys.argv[1]) as joined:
        look(joined)
