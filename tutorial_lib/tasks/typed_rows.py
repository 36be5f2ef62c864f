"""A learned row for each node of the types that have no features: ``learned_rows`` for several types."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.tasks.learned_rows import PrivateEmbedding, first_rows, unused_name
from tutorial_lib.trainer.seeding import derived_seed


def typed_seed(seed: int, name: str) -> int:
    """Another seed for each type."""
    return derived_seed(seed, zlib.crc32(name.encode()), 0)


def distributed_typed_rows(
    graph: Any, types: Sequence[str], node_map: Mapping[str, np.ndarray], width: int, lr: float, seed: int
) -> tuple[dict[str, Any], Any]:
    """A ``DistEmbedding`` for each type, and one SparseAdam for all. Every trainer must call it.

    Args:
        node_map: by type, the original id of each type-wise id of the partitioned graph.

    The trainers of a machine write the first values of its rows, each a share. Wait for all before reading.
    """
    import dgl

    found = {}
    for name in types:
        policy = graph.get_node_partition_policy(name)
        count = graph.num_nodes(name)
        unused = unused_name(f"learned-{name}-{seed}")
        found[name] = dgl.distributed.DistEmbedding(count, width, name=unused, part_policy=policy)
        own = own_nodes(graph, name)
        original = torch.from_numpy(np.asarray(node_map[name][own.numpy()], dtype=np.int64))
        for positions, values in first_rows(original, width, typed_seed(seed, name)):
            found[name].weight[own[positions]] = values
    return found, dgl.distributed.optim.SparseAdam(list(found.values()), lr=lr)


def own_nodes(graph: Any, name: str) -> Tensor:
    """This trainer's share of its machine's nodes of a type: int64 type-wise ids."""
    import dgl

    everyone = torch.ones(graph.num_nodes(name), dtype=torch.bool)
    return dgl.distributed.node_split(everyone, graph.get_partition_book(), ntype=name, force_even=False).long()


def single_typed_rows(
    counts: Mapping[str, int], width: int, lr: float, seed: int
) -> tuple[dict[str, PrivateEmbedding], Any]:
    """The same in this process, in original order; ``counts`` has the number of nodes of each type."""
    import dgl

    found = {}
    for name, count in counts.items():
        weight = torch.empty(count, width)
        for positions, values in first_rows(torch.arange(count), width, typed_seed(seed, name)):
            weight[positions] = values
        found[name] = PrivateEmbedding(weight)
        found[name]._name = f"learned-{name}-{seed}"
    return found, dgl.optim.SparseAdam(list(found.values()), lr=lr)
