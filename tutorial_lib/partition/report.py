"""What a cut costs, counted from the edges."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tutorial_lib.data.base import Dataset

PIECE = 1 << 24  # edges that are looked at together


@dataclass(frozen=True)
class PartitionReport:
    """What the cut costs. Counted from the edges: ``partition_graph`` itself prints "0 edge cuts".

    Attributes:
        nodes, edges, train_nodes: per part, owned ones; an edge belongs to the part of its destination.
        halo_nodes: per part, nodes of other parts that an owned edge starts from, each counted once. Where not every
            edge is there both ways, the files hold more: also the nodes of other parts that an edge leads to.
        edge_cut: edges whose two ends lie in different parts.
        edge_cut_share: ``edge_cut`` divided by all edges.
    """

    parts: int
    method: str
    nodes: list[int]
    edges: list[int]
    train_nodes: list[int]
    halo_nodes: list[int]
    edge_cut: int
    edge_cut_share: float


def count_partition(part_of: torch.Tensor, dataset: Dataset, parts: int, method: str) -> PartitionReport:
    """Count a report from ``part_of``, the part of each original node, int64 of shape (N,)."""
    src, dst = dataset.graph.edges(order="eid")
    edges = torch.zeros(parts, dtype=torch.int64)
    halo = torch.zeros((parts, dataset.graph.num_nodes()), dtype=torch.bool)
    edge_cut = 0
    for start, end in zip(src.split(PIECE), dst.split(PIECE), strict=True):
        owner = part_of[end]
        cut = part_of[start] != owner
        edges += torch.bincount(owner, minlength=parts)
        halo[owner[cut], start[cut]] = True
        edge_cut += int(cut.sum())
    return PartitionReport(
        parts=parts,
        method=method,
        nodes=torch.bincount(part_of, minlength=parts).tolist(),
        edges=edges.tolist(),
        train_nodes=torch.bincount(part_of[dataset.graph.ndata["train_mask"]], minlength=parts).tolist(),
        halo_nodes=halo.sum(dim=1).tolist(),
        edge_cut=edge_cut,
        edge_cut_share=edge_cut / len(src),
    )
