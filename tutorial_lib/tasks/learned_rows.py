"""Rows that are learned, one for each node: ``DistEmbedding`` in a job, DGL's ``NodeEmbedding`` in one process.

Both are read with ``rows(ids)``, remember what was read, and are updated by an optimiser of DGL's called SparseAdam.
The two SparseAdams compute the same: one step counter for each row, and for a row that a step read several times the
mean of its gradients. ``torch.optim.SparseAdam`` is not that: it has one counter for all rows, so that the first
update of a row is half as long as DGL's when it comes in step 10, and 2.5 times as long in step 1000; and it sums.
"""

from __future__ import annotations

import os
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
from tutorial_lib.tasks.task import Share
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.manifest import read_checkpoint
from tutorial_lib.trainer.sparse_state import local_ids, stores_of

NAME = "learned"
STD = 0.1  # of the first values; with 1, rows that few steps reach stay noise as loud as what has been learned
CHUNK = 65_536  # rows that are made at a time
_made: Counter[str] = Counter()  # names of this process's rows


def first_rows(original: Tensor, width: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first values of some nodes' rows, a chunk at a time: positions in ``original``, float32 rows.

    A row depends on (seed, width, the node's number in the data set) alone. So a job on any number of machines, cut in
    any way, begins with the rows that a single process begins with.

    Args:
        original: int64 (M,) numbers in the data set, in any order.
    """
    chunks = original // CHUNK
    for chunk in chunks.unique().tolist():
        positions = (chunks == chunk).nonzero().flatten()
        generator = torch.Generator().manual_seed(derive_seed(seed, chunk))
        rows = torch.empty(CHUNK, width).normal_(std=STD, generator=generator)
        yield positions, rows[original[positions] - chunk * CHUNK]


def distributed_embedding(graph: Any, ntype: str, node_map: np.ndarray, width: int, seed: int, name: str = NAME) -> Any:
    """A ``DistEmbedding`` with a row for each node of a type of a ``DistGraph``. Every trainer must call it.

    Args:
        node_map: int64 (N,) original number of each node of the partitioned graph.

    The trainers of a machine write the first values of its rows, each a share. Wait for all before reading.
    """
    # DGL finds rows by their name and gives a second one of the same name the rows of the first, see lesson 02.
    # Trainers that make their rows in the same order get the same names: ``name``, then ``name-1``, ``name-2``.
    unused = f"{name}-{_made[name]}" if _made[name] else name
    _made[name] += 1
    policy, count = graph.get_node_partition_policy(ntype), graph.num_nodes(ntype)
    rows = dgl.distributed.DistEmbedding(count, width, name=unused, part_policy=policy)
    everyone = torch.ones(count, dtype=torch.bool)
    own = dgl.distributed.node_split(everyone, graph.get_partition_book(), ntype=ntype, force_even=False).long()
    original = torch.from_numpy(np.asarray(node_map[own.numpy()], dtype=np.int64))
    for positions, values in first_rows(original, width, seed):
        rows.weight[own[positions]] = values
    return rows


def single_embedding(count: int, width: int, seed: int, name: str = NAME) -> Any:
    """A ``NodeEmbedding`` with the rows of ``count`` nodes in their original order, in this process's own memory.

    DGL's ``__init__``, which does not run, puts them into shared memory, for several processes of one machine, under a
    name that stays there when the process is killed, and that a second run of the same program would open, too.
    """
    weight, rows = torch.empty(count, width), dgl.nn.NodeEmbedding.__new__(dgl.nn.NodeEmbedding)
    for positions, values in first_rows(torch.arange(count), width, seed):
        weight[positions] = values
    vars(rows).update(_tensor=weight, _num_embeddings=count, _embedding_dim=width, _name=name, _trace=[])
    vars(rows).update(_rank=-1, _world_size=0, _store=None, _comm=None, _partition=None, _optm_state=None)
    return rows


def typed_seed(seed: int, ntype: str) -> int:
    """Another seed for each type of several."""
    return derive_seed(seed, zlib.crc32(ntype.encode()), 0)


def learned_rows(share: Share, types: Sequence[str], config: TrainConfig) -> tuple[dict[str, Any], Any]:
    """By type, rows for its nodes, and one SparseAdam for all of them. Every rank must call it; then all may read."""
    found, job, several = {}, share.machine is not None, len(share.graph.canonical_etypes) > 1
    width, lr = config.embedding_size, config.embedding_learning_rate
    for ntype in types:
        seed = typed_seed(config.seed, ntype) if several else config.seed
        name = f"{NAME}-{ntype}-{config.seed}" if several else NAME
        if job:
            found[ntype] = distributed_embedding(share.graph, ntype, share.numbers(ntype), width, seed, name)
        else:
            found[ntype] = single_embedding(share.graph.num_nodes(ntype), width, seed, name)
    optimizers = dgl.distributed.optim if job else dgl.optim
    share.barrier()  # nobody reads a row before it has its first value
    return found, optimizers.SparseAdam(list(found.values()), lr=lr)


def memory_of(rows: Any, optimizer: Any) -> dict[str, int]:
    """What this machine holds: number of rows, bytes of their values and of each tensor of the optimiser.

    SparseAdam has three tensors: a step counter for each row, and two running means as wide as the rows.
    """
    found = {"rows": len(local_ids(rows.weight))}
    for name, store in stores_of({"": rows}, [optimizer]).items():
        width = 1 if len(store.shape) == 1 else store.shape[1]
        found[name.split("/")[1].removeprefix(f"{rows.name}_")] = found["rows"] * width * store.dtype.itemsize
    return found


def shared_memory() -> int:
    """Bytes of this machine's /dev/shm that learned rows and their optimiser take, whole pages; 0 where there is none.

    Machines that share a /dev/shm (several jobs on one host without namespaces) count each other's.
    """
    try:
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir("/dev/shm") if NAME in entry.name)
    except OSError:  # no /dev/shm, or a segment went while we looked
        return 0


def read_rows(run: Path, partition: Partition | None = None, key: str = "node/weight") -> Tensor:
    """What the last checkpoint of a run holds for each node, in the data set's order: float32 (N, width).

    Args:
        run: run folder of a job whose machines share it, or of a single process.
        partition: that the job was started with; None: it was a single process.
        key: a name of ``sparse_state.stores_of``, for example ``optimizer-0/learned_mem``.

    Raises:
        InputError: there is no checkpoint, or it is damaged.
    """
    from safetensors import safe_open

    folder = read_checkpoint(run / "checkpoint").folder
    parts = []
    # Machine k holds part k, and DGL numbers the nodes part by part.
    for number in range(partition.report.parts if partition else 1):
        with safe_open(folder / f"embeddings-machine-{number}.safetensors", "pt") as file:
            parts.append(file.get_tensor(key))
    rows = torch.cat(parts)
    return rows if partition is None else rows[torch.from_numpy(partition.node_map_inverse)]
