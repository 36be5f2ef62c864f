"""Node classification without features, by one learnable embedding per node. New nodes have no embedding."""

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.sampling.nodes import Batch
from tutorial_lib.tasks.node import NodeTask
from tutorial_lib.tasks.task import Shard
from tutorial_lib.trainer.comm import barrier
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult

NAME = "learned"
STD = 0.1  # of the initial values. With 1, rows that few steps read stay noise as large as learned rows.
CHUNK = 65_536  # rows created at a time
_created: Counter[str] = Counter()  # names of the embeddings of this process


class EmbeddingTask(NodeTask):
    """Classify nodes with GraphSAGE on learnable embeddings. Features of the graph are ignored."""

    name = "embedding"
    uses_features = False

    def get_features(self) -> Any:
        created, self.sparse_optimizers = learnable_embeddings(self.shard, [self.shard.target], self.config)
        self.embeddings = {"node": created[self.shard.target]}
        return self.embeddings["node"].weight

    def inputs(self, batch: Batch) -> tuple[Any, Tensor, Tensor]:
        # In training, whole rows are dropped. Otherwise the row of a training node soon encodes its own label, and its
        # neighbors have nothing left to learn. Without gradients, the embedding records no rows for the optimizer.
        rows = self.embeddings["node"](batch.input_nodes)
        rows = rows * F.dropout(torch.ones(len(rows), 1), self.config.dropout, torch.is_grad_enabled())
        blocks, labels = self.place.take(batch.blocks, self.labels[batch.seeds].long())
        return blocks, rows.to(self.place.device), labels

    def evaluate(self) -> TrainResult:
        result = super().evaluate()
        result.embeddings, result.original = self.features, self.shard.original_nodes(self.shard.target)
        return result


def new_embedding(shard: Shard, ntype: str, width: int, seed: int, name: str = NAME) -> Any:
    """Return a ``DistEmbedding``, or a ``NodeEmbedding`` in one process, whose rows do not depend on the partition."""
    count = shard.graph.num_nodes(ntype)
    if shard.distributed:
        # DGL identifies rows by their name and would give a second embedding the rows of the first, see lesson 02.
        # Trainers that create embeddings in the same order get the same names: ``name``, ``name-1``, ``name-2``.
        unused = f"{name}-{_created[name]}" if _created[name] else name
        _created[name] += 1
        policy = shard.graph.get_node_partition_policy(ntype)
        embedding = dgl.distributed.DistEmbedding(count, width, name=unused, part_policy=policy)
    else:
        # DGL's __init__ would store the rows in shared memory, which outlives a killed process under the same name.
        embedding = dgl.nn.NodeEmbedding.__new__(dgl.nn.NodeEmbedding)
        unset = dict.fromkeys(("_store", "_comm", "_partition", "_optm_state"))
        sizes = {"_num_embeddings": count, "_embedding_dim": width, "_rank": -1, "_world_size": 0}
        vars(embedding).update(_tensor=torch.empty(count, width), _name=name, _trace=[], **sizes, **unset)
    own = shard.own(ntype)  # a rank writes its share of the rows of its machine
    original = torch.from_numpy(shard.original_nodes(ntype)[own.numpy()])
    for chunk in (original // CHUNK).unique().tolist():
        positions = (original // CHUNK == chunk).nonzero().flatten()
        generator = torch.Generator().manual_seed(derive_seed(seed, chunk))
        rows = torch.empty(CHUNK, width).normal_(std=STD, generator=generator)
        embedding.weight[own[positions]] = rows[original[positions] - chunk * CHUNK]
    return embedding


def learnable_embeddings(shard: Shard, types: Sequence[str], config: TrainConfig) -> tuple[dict[str, Any], list[Any]]:
    """Return an embedding for each type of nodes and a list of one SparseAdam. Every rank calls this function."""
    created, several = {}, len(shard.graph.canonical_etypes) > 1
    for ntype in types:
        seed = derive_seed(config.seed, zlib.crc32(ntype.encode()), 0) if several else config.seed
        name = f"{NAME}-{ntype}-{config.seed}" if several else NAME
        created[ntype] = new_embedding(shard, ntype, config.embedding_size, seed, name)
    barrier()  # no rank reads a row before it has its initial value
    optimizers = dgl.distributed.optim if shard.distributed else dgl.optim
    return created, [optimizers.SparseAdam(list(created.values()), lr=config.embedding_learning_rate)]


TASK = EmbeddingTask
