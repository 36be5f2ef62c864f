"""Learnable embeddings, one row per node: ``DistEmbedding`` in a job and DGL's ``NodeEmbedding`` in one process.

Both are read with ``embedding(ids)``, record the rows that were read, and are updated by a SparseAdam of DGL. The two
SparseAdams of DGL compute the same. They count steps per row, and average the gradients if a step read a row several
times. ``torch.optim.SparseAdam`` counts steps for all rows together and adds the gradients, so its first update of a
row is half as long in step 10, and 2.5 times as long in step 1000.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from tutorial_lib.compat.generators import derive_seed
from tutorial_lib.partition import Partition
from tutorial_lib.tasks.shard import Shard
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.manifest import read_checkpoint

NAME = "learned"
STD = 0.1  # of the initial values. With 1, rows that few steps read stay noise as large as learned rows.
CHUNK = 65_536  # rows created at a time
_created: Counter[str] = Counter()  # names of the embeddings of this process


def first_rows(original: Tensor, width: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the initial rows of some nodes in chunks, as positions in ``original`` and float32 rows.

    A row depends only on the seed, the width and the ID of the node in the data set. So a job on any number of machines
    and with any partition starts with the rows of a single process.

    Args:
        original: int64 tensor of shape (M,), IDs in the data set in any order.
    """
    chunks = original // CHUNK
    for chunk in chunks.unique().tolist():
        positions = (chunks == chunk).nonzero().flatten()
        generator = torch.Generator().manual_seed(derive_seed(seed, chunk))
        rows = torch.empty(CHUNK, width).normal_(std=STD, generator=generator)
        yield positions, rows[original[positions] - chunk * CHUNK]


def distributed_embedding(graph: Any, ntype: str, node_map: np.ndarray, width: int, seed: int, name: str = NAME) -> Any:
    """Return a ``DistEmbedding`` for the nodes of a type of a ``DistGraph``. Every trainer calls this function.

    Each trainer of a machine writes a share of the machine's rows. Wait for all trainers before you read rows.

    Args:
        node_map: int64 array of shape (N,), the ID in the data set of each node of the graph.
    """
    # DGL identifies rows by their name and would give a second embedding the rows of the first, see lesson 02.
    # Trainers that create embeddings in the same order get the same names: ``name``, ``name-1``, ``name-2``.
    unused = f"{name}-{_created[name]}" if _created[name] else name
    _created[name] += 1
    policy, count = graph.get_node_partition_policy(ntype), graph.num_nodes(ntype)
    embedding = dgl.distributed.DistEmbedding(count, width, name=unused, part_policy=policy)
    everyone = torch.ones(count, dtype=torch.bool)
    own = dgl.distributed.node_split(everyone, graph.get_partition_book(), ntype=ntype, force_even=False).long()
    original = torch.from_numpy(np.asarray(node_map[own.numpy()], dtype=np.int64))
    for positions, values in first_rows(original, width, seed):
        embedding.weight[own[positions]] = values
    return embedding


def single_embedding(count: int, width: int, seed: int, name: str = NAME) -> Any:
    """Return a ``NodeEmbedding`` for ``count`` nodes in the order of the data set, in the memory of this process.

    DGL's ``__init__``, which is skipped, would store the rows in shared memory. The shared memory keeps its name if the
    process is killed, and a second run of the program would open it.
    """
    weight, embedding = torch.empty(count, width), dgl.nn.NodeEmbedding.__new__(dgl.nn.NodeEmbedding)
    for positions, values in first_rows(torch.arange(count), width, seed):
        weight[positions] = values
    vars(embedding).update(_tensor=weight, _num_embeddings=count, _embedding_dim=width, _name=name, _trace=[])
    vars(embedding).update(_rank=-1, _world_size=0, _store=None, _comm=None, _partition=None, _optm_state=None)
    return embedding


def typed_seed(seed: int, ntype: str) -> int:
    """Return a different seed for each type of nodes."""
    return derive_seed(seed, zlib.crc32(ntype.encode()), 0)


def learnable_embeddings(shard: Shard, types: Sequence[str], config: TrainConfig) -> tuple[dict[str, Any], Any]:
    """Return an embedding for each type of nodes, and one SparseAdam for all of them. Every rank calls it."""
    created, graph, several = {}, shard.graph, len(shard.graph.canonical_etypes) > 1
    for ntype in types:
        seed = typed_seed(config.seed, ntype) if several else config.seed
        name = f"{NAME}-{ntype}-{config.seed}" if several else NAME
        how = config.embedding_size, seed, name
        created[ntype] = (
            distributed_embedding(graph, ntype, shard.original_nodes(ntype), *how)
            if shard.distributed
            else single_embedding(graph.num_nodes(ntype), *how)
        )
    shard.barrier()  # no rank reads a row before it has its initial value
    optimizers = dgl.distributed.optim if shard.distributed else dgl.optim
    return created, optimizers.SparseAdam(list(created.values()), lr=config.embedding_learning_rate)


def read_embeddings(run: Path, partition: Partition | None = None, key: str = "node/weight") -> Tensor:
    """Return the embeddings of the last checkpoint in the order of the data set, float32 of shape (N, width).

    Args:
        run: run folder of a job whose machines share it, or of a single process.
        partition: partition of the job, or None for a single process.
        key: name of the stored tensor, for example ``optimizer-0/learned_mem`` for a state of the optimizer.

    Raises:
        InputError: there is no checkpoint, or it is damaged.
    """
    from safetensors import safe_open

    folder = read_checkpoint(run / "checkpoint").folder
    parts = []
    # Machine k stores part k, and DGL numbers the nodes part by part.
    for number in range(partition.report.parts if partition else 1):
        with safe_open(folder / f"embeddings-machine-{number}.safetensors", "pt") as file:
            parts.append(file.get_tensor(key))
    rows = torch.cat(parts)
    return rows if partition is None else rows[torch.from_numpy(partition.node_map_inverse)]
