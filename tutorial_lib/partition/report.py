"""What a cut costs, counted from the edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tutorial_lib.data.base import Dataset, Pairs, ends

if TYPE_CHECKING:
    import dgl


def type_counts(graph: dgl.DGLGraph | Pairs) -> dict[str, dict[str, int]]:
    """Return the numbers of nodes and edges of each type, as ``types`` of the manifest.

    ``node_map.npy`` and ``edge_map.npy`` hold the original type-wise IDs, one type after the other in this order.
    """
    return {
        "nodes": {name: graph.num_nodes(name) for name in graph.ntypes},
        "edges": {":".join(relation): graph.num_edges(relation) for relation in graph.canonical_etypes},
    }


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


@dataclass(frozen=True)
class TypedReport(PartitionReport):
    """What the cut of a graph with several types costs; the inherited figures are sums over the types.

    Attributes:
        nodes_of: per type of nodes, a count per part.
        edges_of, edge_cut_of: per edge type (``source:relation:destination``), a count per part; edges that are cut.
    """

    nodes_of: dict[str, list[int]]
    edges_of: dict[str, list[int]]
    edge_cut_of: dict[str, int]


def count_partition(part_of: Mapping[str, torch.Tensor], dataset: Dataset, parts: int, method: str) -> PartitionReport:
    """Count a report from ``part_of``: by type of nodes, the part of each original node, int64 (N,).

    Returns:
        A ``TypedReport`` if there are several types.
    """
    graph = dataset.structure
    halo = {name: torch.zeros((parts, graph.num_nodes(name)), dtype=torch.bool) for name in graph.ntypes}
    edges_of, cut_of = {}, {}
    for relation in graph.canonical_etypes:
        key = ":".join(relation)
        edges_of[key], cut_of[key] = torch.zeros(parts, dtype=torch.int64), 0
        for start, end in zip(*(ends(graph, relation, of) for of in (0, 1)), strict=True):
            owner = part_of[relation[2]][end]
            cut = part_of[relation[0]][start] != owner
            halo[relation[0]][owner[cut], start[cut]] = True
            edges_of[key] += torch.bincount(owner, minlength=parts)
            cut_of[key] += int(cut.sum())
    nodes_of = {name: torch.bincount(part_of[name], minlength=parts) for name in graph.ntypes}
    owners = part_of[dataset.target]
    train = owners[dataset.target_data["train_mask"]] if "train_mask" in dataset.target_data else owners[:0]
    sums = {
        "parts": parts,
        "method": method,
        "nodes": torch.stack([*nodes_of.values()]).sum(dim=0).tolist(),
        "edges": torch.stack([*edges_of.values()]).sum(dim=0).tolist(),
        "train_nodes": torch.bincount(train, minlength=parts).tolist(),
        "halo_nodes": torch.stack([kind.sum(dim=1) for kind in halo.values()]).sum(dim=0).tolist(),
        "edge_cut": sum(cut_of.values()),
        "edge_cut_share": sum(cut_of.values()) / graph.num_edges(),
    }
    if not dataset.is_heterogeneous:
        return PartitionReport(**sums)
    nodes_of, edges_of = ({name: count.tolist() for name, count in of.items()} for of in (nodes_of, edges_of))
    return TypedReport(**sums, nodes_of=nodes_of, edges_of=edges_of, edge_cut_of=cut_of)
