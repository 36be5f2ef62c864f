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
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import dgl

    from tutorial_lib.data.pairs import Pairs


def type_counts(graph: dgl.DGLGraph | Pairs) -> dict[str, dict[str, int]]:
    """``types`` of the manifest."""
    return {
        "nodes": {name: graph.num_nodes(name) for name in graph.ntypes},
        "edges": {":".join(relation): graph.num_edges(relation) for relation in graph.canonical_etypes},
    }


def taken_apart(joined_map: np.ndarray, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The map of each type: int64, original type-wise id of new type-wise id i."""
    ends = np.cumsum(list(counts.values()))
    return dict(zip(counts, np.split(joined_map, ends[:-1]), strict=True))


def part_of_original(config: Path, maps: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Part of each original node, by type: int64 (N of the type,). New ids are contiguous within a part."""
    ranges = json.loads(config.read_text())["node_map"]
    found = {}
    for name, original in maps.items():
        sizes = torch.tensor([end - first for first, end in ranges[name]])
        found[name] = torch.empty_like(original)
        found[name][original] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return found
