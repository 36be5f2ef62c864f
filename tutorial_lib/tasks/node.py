"""Node classification, by features or learnable embeddings, with one type or several types of nodes."""

import os
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.files import JsonObject
from tutorial_lib.models.graphsage import Block, FirstLayer, build_graphsage
from tutorial_lib.models.rgcn import RGCN, types_by_depth
from tutorial_lib.sampling.loader import Batch, BatchLoader, Store, read_rows
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader
from tutorial_lib.tasks import uses_pipeline
from tutorial_lib.tasks.task import Shard, Task, graph_batches, layerwise_inference, make_adjacency_source, score_nodes
from tutorial_lib.trainer.comm import barrier, equal_steps, get_rank
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult

EMBEDDING_NAME = "learned"
INITIAL_STD = 0.1  # With 1, the noise in rarely read rows would be as large as learned values.
ROWS_PER_SEED = 65_536
_created: Counter[str] = Counter()  # names of the embeddings of this process
NodeInputs = tuple[list[Block], Tensor | FirstLayer | dict[str, Tensor], Tensor]  # blocks, rows and labels


class NodeTask(Task[Batch, NodeInputs]):
    """Classify nodes. Subclasses may define ``num_outputs``, ``get_features``, ``get_labels`` and so on."""

    name = "node"
    num_outputs: int | None = None  # outputs of the model for each node. None: one for each class of the data set

    def __init__(self, shard: Shard, config: TrainConfig) -> None:
        super().__init__(shard, config)
        self.features = self.get_features()
        self.labels = self.get_labels()  # may use self.features
        self.model = self.make_model()
        nodes = {split: shard.nodes(f"{split}_mask") for split in ("train", "val")}
        self.split = {f"{split}_nodes": len(ids) for split, ids in nodes.items()}
        self.pipeline = None
        local = getattr(shard.graph, "local_partition", None) is not None  # the servers share their memory
        if local and uses_pipeline(config, int(os.environ.get("DGL_NUM_SAMPLER", 0))) and not self.embeddings:
            settings = {"budget": config.cache, "hops": len(config.fanouts), "ahead": config.ahead}
            self.pipeline = Pipeline.from_graph(shard.graph, self.features, self.labels, **settings)
        self.train_loader, self.val_loader = self._loader(nodes["train"], train=True), self._loader(nodes["val"])

    def get_features(self) -> Any:
        return self.shard.data["feat"]

    def get_labels(self) -> Store:
        return self.shard.data["label"]

    def make_model(self) -> nn.Module:
        outputs = self.num_outputs or self.shard.num_classes
        return build_graphsage(self.config, self.features.shape[1], outputs).to(self.placement.device)

    def predict_and_compare(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction (a number or a row) for each row of outputs, and a bool tensor of their correctness."""
        predictions = outputs.argmax(1)
        return predictions, predictions == labels

    def inputs(self, batch: Batch) -> NodeInputs:
        rows, labels = batch.inputs, batch.labels
        if rows is None or labels is None:
            rows, labels = self.features[batch.input_nodes], self.labels[batch.seeds]
        if not isinstance(rows, FirstLayer):
            return self.placement.to_device(batch.blocks, rows, labels)
        blocks, dst_rows, mean, labels = self.placement.to_device(batch.blocks, rows.dst_rows, rows.mean, labels)
        return blocks, FirstLayer(dst_rows, mean), labels

    def loss(self, model: nn.Module, inputs: NodeInputs) -> tuple[Tensor, int]:
        blocks, rows, labels = inputs
        labels = labels if labels.is_floating_point() else labels.long()  # float labels need another loss
        return F.cross_entropy(model(blocks, rows), labels), len(labels)

    def score(self, model: nn.Module, inputs: NodeInputs) -> tuple[int, int]:
        blocks, rows, labels = inputs
        return int(self.predict_and_compare(model(blocks, rows), labels)[1].sum()), len(labels)

    def evaluate(self) -> TrainResult:
        pipeline = self.pipeline
        source = make_adjacency_source(pipeline, self.model, self.config.cache) if pipeline else graph_batches
        h = layerwise_inference(self.model, source, self.features, self.shard, self.config.eval_batch_size)
        scores = score_nodes(self.shard, h, self.labels, self.predict_and_compare)
        return TrainResult(*scores, score_name=self.score_name)

    def _loader(self, ids: Tensor, *, train: bool = False) -> BatchLoader | PipelineLoader:
        config = self.config
        steps = equal_steps(len(ids), config.batch_size) if train else None
        common: JsonObject = {"steps": steps, "shuffle": train, "seed": derive_seed(config.seed, get_rank(), train)}
        if self.pipeline is not None:
            means = self.features.shape[1] <= config.hidden_size
            return PipelineLoader(self.pipeline, ids, config.fanouts, config.batch_size, means=means, **common)
        seeds = {self.shard.target: ids} if len(self.shard.graph.ntypes) > 1 else ids
        return BatchLoader(self.shard.graph, seeds, config.fanouts, config.batch_size, threads=1, **common)


class EmbeddingTask(NodeTask):
    """Classify nodes with GraphSAGE on learnable embeddings. Features of the graph are ignored."""

    name = "embedding"

    def get_features(self) -> Store:
        created, self.sparse_optimizers = learnable_embeddings(self.shard, [self.shard.target], self.config)
        self.embeddings = {"node": created[self.shard.target]}
        return self.embeddings["node"].weight

    def inputs(self, batch: Batch) -> NodeInputs:
        # In training, whole rows are dropped. Otherwise the row of a training node soon encodes its own label, and its
        # neighbors have nothing left to learn. Without gradients, the embedding records no rows for the optimizer.
        rows = self.embeddings["node"](batch.input_nodes)
        rows = rows * F.dropout(torch.ones(len(rows), 1), self.config.dropout, torch.is_grad_enabled())
        blocks, labels = self.placement.to_device(batch.blocks, self.labels[batch.seeds])
        return blocks, rows.to(self.placement.device), labels

    def evaluate(self) -> TrainResult:
        result = super().evaluate()
        result.embeddings, result.original_ids = self.features, self.shard.original_nodes(self.shard.target)
        return result


def new_embedding(shard: Shard, ntype: str, width: int, seed: int, name: str = EMBEDDING_NAME) -> Any:
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
    own_ids = shard.local_nodes(ntype)  # a rank writes its share of the rows of its machine
    original = torch.from_numpy(shard.original_nodes(ntype)[own_ids.numpy()])
    for chunk in (original // ROWS_PER_SEED).unique().tolist():
        positions = (original // ROWS_PER_SEED == chunk).nonzero().flatten()
        generator = torch.Generator().manual_seed(derive_seed(seed, chunk))
        rows = torch.empty(ROWS_PER_SEED, width).normal_(std=INITIAL_STD, generator=generator)
        embedding.weight[own_ids[positions]] = rows[original[positions] - chunk * ROWS_PER_SEED]
    return embedding


def learnable_embeddings(shard: Shard, types: Sequence[str], config: TrainConfig) -> tuple[dict[str, Any], list[Any]]:
    """Return an embedding for each type of nodes and a list of one SparseAdam. Every rank calls this function."""
    created, typed = {}, len(shard.graph.canonical_etypes) > 1
    for ntype in types:
        seed = derive_seed(config.seed, zlib.crc32(ntype.encode()), 0) if typed else config.seed
        name = f"{EMBEDDING_NAME}-{ntype}-{config.seed}" if typed else EMBEDDING_NAME
        created[ntype] = new_embedding(shard, ntype, config.embedding_size, seed, name)
    barrier()  # no rank reads a row before it has its initial value
    optimizers = dgl.distributed.optim if shard.distributed else dgl.optim
    return created, [optimizers.SparseAdam(list(created.values()), lr=config.embedding_learning_rate)]


class HeteroTask(NodeTask):
    """Classify nodes by the features of some types and by learnable embeddings of the others."""

    name = "hetero"
    supports_gpu = False

    def get_features(self) -> dict[str, Store]:
        graph = self.shard.graph
        types = types_by_depth(graph.canonical_etypes, self.shard.target, len(self.config.fanouts))[0]
        features = {ntype: graph.nodes[ntype].data["feat"] for ntype in types if "feat" in graph.nodes[ntype].data}
        others = [ntype for ntype in types if ntype not in features]
        self.embeddings, self.sparse_optimizers = learnable_embeddings(self.shard, others, self.config)
        return features | {ntype: embedding.weight for ntype, embedding in self.embeddings.items()}

    def make_model(self) -> nn.Module:
        config, shard = self.config, self.shard
        widths = {ntype: rows.shape[1] for ntype, rows in self.features.items() if ntype not in self.embeddings}
        sizes = (config.embedding_size, config.hidden_size, shard.num_classes, len(config.fanouts), config.dropout)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return RGCN(shard.graph.canonical_etypes, shard.target, widths, *sizes)

    def inputs(self, batch: Batch) -> NodeInputs:
        rows = {}
        for ntype, store in self.features.items():
            ids = batch.input_nodes[ntype]
            learnable = ntype in self.embeddings and len(ids)
            rows[ntype] = self.embeddings[ntype](ids) if learnable else read_rows(store, ids)
        return batch.blocks, rows, self.labels[batch.seeds[self.shard.target]]
