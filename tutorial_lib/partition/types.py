"""Partitions of graphs with several types of nodes and edges: what is different from one type.

DGL's ``partition_graph`` cuts such a graph as if it had one type, and numbers twice: in the files a node has a
homogeneous id (part by part, in a part type by type); to the user it has a type and a type-wise id. New type-wise ids
are again stretches: those of part 0 come first.

                     part 0                      part 1
    homogeneous   |-author-|-field-|-paper-|  |-author-|-field-|-paper-|
    type-wise        0..     0..     0..         a..      f..     p..

``node_map.npy`` holds the original type-wise ids, one type after the other, and ``types`` of the manifest says how many
there are of each: {"nodes": {name: count}, "edges": {"source:relation:destination": count}}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.partition.report import PartitionReport

if TYPE_CHECKING:
    import dgl

BY_DGL = ("metis", "random")  # ours cut graphs with one type only
REMEDY = "Choose --method metis or random, which DGL does, or leave it at auto."


def key_of(relation: tuple[str, str, str]) -> str:
    """``("paper", "cites", "paper")`` as ``paper:cites:paper``, as in DGL's files."""
    return ":".join(relation)


def check_method(method: str) -> None:
    """Raise an InputError if a method cannot cut a graph with several types."""
    if method not in BY_DGL:
        raise InputError(f"method {method} cuts graphs with one type of nodes only, this one has several", REMEDY)


def balance_of(dataset: Dataset) -> dict[str, torch.Tensor]:
    """``balance_ntypes`` of ``partition_graph``: every part gets its share of each type, and of the training nodes.

    With a dictionary DGL counts the types that are not in it as one kind each.
    """
    return {dataset.target: dataset.target_data["train_mask"].int()}


def type_counts(graph: dgl.DGLGraph) -> dict[str, dict[str, int]]:
    """``types`` of the manifest."""
    return {
        "nodes": {name: graph.num_nodes(name) for name in graph.ntypes},
        "edges": {key_of(relation): graph.num_edges(relation) for relation in graph.canonical_etypes},
    }


def joined(maps: Mapping[Any, torch.Tensor], order: list[Any]) -> np.ndarray:
    """The maps of all types, one after the other."""
    return np.concatenate([maps[name].numpy() for name in order])


def taken_apart(joined_map: np.ndarray, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The map of each type: int64, original type-wise id of new type-wise id i."""
    ends = np.cumsum(list(counts.values()))
    return dict(zip(counts, np.split(joined_map, ends[:-1]), strict=True))


def part_of_types(config: Path, maps: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Part of each original node, by type: int64 (N of the type,)."""
    ranges = json.loads(config.read_text())["node_map"]
    found = {}
    for name, original in maps.items():
        sizes = torch.tensor([end - first for first, end in ranges[name]])
        found[name] = torch.empty_like(original)
        found[name][original] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return found


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


def count_types(part_of: Mapping[str, torch.Tensor], dataset: Dataset, parts: int, method: str) -> TypedReport:
    """Count a report from the part of each original node, by type."""
    graph = dataset.graph
    halo = {name: torch.zeros((parts, graph.num_nodes(name)), dtype=torch.bool) for name in graph.ntypes}
    edges_of, cut_of = {}, {}
    for relation in graph.canonical_etypes:
        start, end = graph.edges(order="eid", etype=relation)
        owner = part_of[relation[2]][end]
        cut = part_of[relation[0]][start] != owner
        halo[relation[0]][owner[cut], start[cut]] = True
        edges_of[key_of(relation)] = torch.bincount(owner, minlength=parts)
        cut_of[key_of(relation)] = int(cut.sum())
    nodes_of = {name: torch.bincount(part_of[name], minlength=parts) for name in graph.ntypes}
    train = part_of[dataset.target][dataset.target_data["train_mask"]]
    return TypedReport(
        parts=parts,
        method=method,
        nodes=sum(nodes_of.values()).tolist(),
        edges=sum(edges_of.values()).tolist(),
        train_nodes=torch.bincount(train, minlength=parts).tolist(),
        halo_nodes=sum(kind.sum(dim=1) for kind in halo.values()).tolist(),
        edge_cut=sum(cut_of.values()),
        edge_cut_share=sum(cut_of.values()) / graph.num_edges(),
        nodes_of={name: count.tolist() for name, count in nodes_of.items()},
        edges_of={name: count.tolist() for name, count in edges_of.items()},
        edge_cut_of=cut_of,
    )
