"""Link prediction, which needs no labels: GraphSAGE embeds the nodes, and a dot product scores an edge.

Unsupervised GraphSAGE (Hamilton, Ying and Leskovec, 2017) with the binary cross-entropy of DGL's examples. A hash holds
out edges for validation and test (``EdgeSplit``). The evaluation computes MRR and hits@10 on exact embeddings. If the
graph has classes, a logistic regression on the frozen embeddings (a linear probe) measures what they reveal about the
classes. The run folder gets these files.

    embeddings.npy   float32 of shape (N, D), in the order of the data set
    test_edges.npz   edge: int64 IDs of the test edges in the data set, ascending. rank: float32 rank of each edge
    predictions.npy  int64 of shape (N,), prediction of the probe for each node, if the graph has classes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tutorial_lib.compat.generators import derive_seed
from tutorial_lib.sampling.edges import SIDES, EdgeBatch, EdgeLoader, EdgeSplit, TrainingGraph
from tutorial_lib.sampling.nodes import FULL, rows_of
from tutorial_lib.tasks.inference import layerwise_inference
from tutorial_lib.tasks.ranking import HITS_AT, not_endpoints, pair_loss, rank_sums, ranks_among, unit
from tutorial_lib.tasks.shard import Shard
from tutorial_lib.tasks.task import Task, split_accuracy
from tutorial_lib.trainer.comm import accuracy, broadcast, equal_steps, gather_by_number, own_rank, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult

ROWS = 100_000  # embeddings read at a time


@dataclass
class LinkResult(TrainResult):
    """The result of link prediction with the content of its files.

    Attributes:
        embeddings: float32 of shape (N, D), a ``DistTensor`` in a job.
        numbers: int64 array of shape (N,), the ID in the data set of each row of ``embeddings``.
        test_edges, test_ranks: tensors of shape (T,), as in test_edges.npz.
    """

    embeddings: Any = field(default=None, repr=False)
    numbers: Any = field(default=None, repr=False)
    test_edges: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    test_ranks: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)

    def save(self, out: Path) -> None:
        super().save(out)
        shape = tuple(self.embeddings.shape)
        rows = np.lib.format.open_memmap(out / "embeddings.npy", mode="w+", dtype=np.float32, shape=shape)
        for ids in torch.arange(len(self.numbers)).split(ROWS):
            rows[self.numbers[ids.numpy()]] = self.embeddings[ids].numpy()
        rows.flush()
        np.savez(out / "test_edges.npz", edge=self.test_edges.numpy(), rank=self.test_ranks.numpy())


@dataclass(frozen=True)
class LinkOptions:
    """Settings of link prediction besides a ``TrainConfig``.

    Attributes:
        epoch_edges: training edges in an epoch, over all ranks. A graph has many more.
        validation_edges: validation edges that are ranked after an epoch, over all ranks.
        eval_negatives: nodes against which each held-out edge is ranked, the same for all edges.
        probe_nodes: largest number of training nodes that the linear probe is fitted on. With 20,000 rows of 256 values
            and 47 classes, an iteration takes less than 0.1 s on one core, and there are at most 200. It needs 0.1 GB.
    """

    epoch_edges: int = 100_000
    validation_edges: int = 2000
    eval_negatives: int = 100
    probe_nodes: int = 20_000


DEFAULTS = LinkOptions()


class LinkTask(Task):
    """Predict edges.

    Attributes:
        view: the graph without its held-out edges.
        edges: int64 IDs of this process's edges by side ("train", "val", "test").
        negatives: int64 tensor of shape (K,), the nodes that held-out edges are ranked against.
    """

    name = "link"
    score_name = "MRR"
    uses_labels = False

    def __init__(self, shard: Shard, config: TrainConfig, options: LinkOptions | None = None) -> None:
        super().__init__(shard, config)
        self.options = options = options or DEFAULTS
        graph, original = shard.graph, shard.original_nodes()
        self.features = shard.data["feat"]
        self.view = TrainingGraph(graph, EdgeSplit(config.seed), torch.from_numpy(original))
        self.edges = dict(zip(SIDES, shard.edges(self.view.side, len(SIDES)), strict=True))
        drawn = draw_negatives(graph.num_nodes(), options.eval_negatives, config.seed)
        self.negatives = torch.from_numpy(np.argsort(original)[drawn])
        self.model = shard.place.model(config, self.features.shape[1], config.hidden_size)
        per_epoch, val = -(-options.epoch_edges // shard.world_size), self.edges["val"]
        self.batches = self._loader(self.edges["train"], config.negatives, per_epoch=per_epoch, training=True)
        self.batches.steps = equal_steps(self.batches.edges_per_epoch, config.batch_size, "training edges")
        step = max(1, len(val) * shard.world_size // options.validation_edges)
        self.val = self._loader(val[::step], self.negatives)

    def _loader(self, edges: Tensor, negatives: int | Tensor, **training: Any) -> EdgeLoader:
        config = self.config
        training |= {"seed": derive_seed(config.seed, own_rank(), bool(training)), "threads": config.sampling_threads}
        return EdgeLoader(self.view, edges, config.fanouts, config.batch_size, negatives=negatives, **training)

    @property
    def split(self) -> dict[str, int]:
        return {f"{side}_edges": len(ids) for side, ids in self.edges.items()}

    def inputs(self, batch: EdgeBatch) -> tuple[Any, ...]:
        """Return blocks, features of the input nodes, and positions of sources, destinations and negatives."""
        features = self.features[batch.input_nodes]
        return self.place.take(batch.blocks, features, batch.src, batch.dst, batch.negatives)

    def loss(self, model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, int]:
        """Return the binary cross-entropy."""
        blocks, features, src, dst, negatives = inputs
        return pair_loss(unit(model(blocks, features)), src, dst, negatives), len(src)

    def score(self, model: nn.Module, inputs: tuple[Any, ...]) -> tuple[float, int]:
        """Return the sum of the reciprocal ranks."""
        blocks, features, src, dst, negatives = inputs
        h = unit(model(blocks, features))
        ranks = ranks_among(h[src], h[dst], h[negatives[0]], not_endpoints(negatives, src, dst))
        return rank_sums(ranks)[0], len(src)

    def evaluate(self) -> LinkResult:
        """Embed every node, rank the held-out edges and fit the probe."""
        shard, size, h = self.shard, self.config.eval_batch_size, self.embed()
        ranks = {side: edge_ranks(shard.graph, h, self.edges[side], self.negatives, size) for side in ("val", "test")}
        mrr, hits, count, test_mrr, test_hits, test_count = sum_over_ranks(
            [*rank_sums(ranks["val"]), *rank_sums(ranks["test"])]
        )
        predictions, val, test = self._probe(h)
        edges, values = gather_by_number(self.edges["test"], ranks["test"], shard.original_edges())
        scores = {
            f"val_hits@{HITS_AT}": accuracy(hits, count),
            f"test_hits@{HITS_AT}": accuracy(test_hits, test_count),
            "val_probe_accuracy": val,
            "test_probe_accuracy": test,
        }
        files = {"embeddings": h, "numbers": shard.original_nodes(), "test_edges": edges, "test_ranks": values}
        return LinkResult(accuracy(mrr, count), accuracy(test_mrr, test_count), predictions, scores, **files)

    def embed(self) -> Any:
        """Return exact embeddings of unit length, float32 of shape (N, D), that use all training edges."""
        import dgl

        def source(x: Mapping[str, Any], ntype: str, ids: Tensor, size: int) -> Iterator[tuple[Tensor, Any, Any]]:
            for seeds in ids.split(size) if len(ids) else ():
                block = self.view.sample_block(seeds, FULL)
                (placed,), rows = self.place.take([block], x[ntype][block.srcdata[dgl.NID]])
                yield seeds, placed, rows

        size = self.config.eval_batch_size
        return layerwise_inference(self.model, source, self.features, self.shard, size, last=unit)

    def _probe(self, h: Any) -> tuple[Tensor | None, float | None, float | None]:
        """Return the probe's predictions in the order of the data set and its accuracies, or None without classes.

        Rank 0 fits the probe on at most ``probe_nodes`` training nodes at equal distances in the order of the data
        set, as a single process does. Each rank predicts its own nodes.
        """
        shard, nodes, numbers, fitted = self.shard, self.shard.own(), self.shard.original_nodes(), None
        has_classes = shard.num_classes > 1 and "label" in shard.data
        if has_classes:
            own = shard.nodes("train_mask", even=False)
            train = gather_by_number(own, own, numbers)[1]
            if shard.rank == 0:
                ids = train[:: max(1, -(-len(train) // self.options.probe_nodes))]
                fitted = fit_probe(rows_of(h, ids), rows_of(shard.data["label"], ids).long())
            fitted = broadcast(fitted)
        if fitted is None:
            if shard.rank == 0:
                why = "training nodes of one class only" if has_classes else "no classes"
                shard.emit("warning", text=f"The graph has {why}, so the probe on classes is skipped.")
            return None, None, None
        parts = [torch.from_numpy(fitted.predict(h[ids].double().numpy())) for ids in nodes.split(ROWS) if len(ids)]
        predictions = torch.cat(parts or [nodes])
        val, test = split_accuracy(shard, nodes, predictions == rows_of(shard.data["label"], nodes))
        return gather_by_number(nodes, predictions, numbers)[1], val, test


def draw_negatives(num_nodes: int, count: int, seed: int) -> np.ndarray:
    """Return ``count`` different nodes in ascending order, int64 IDs in the data set that depend only on the seed."""
    generator = np.random.Generator(np.random.PCG64([seed, 0x4E4547]))
    return np.sort(generator.choice(num_nodes, min(count, num_nodes), replace=False))


def edge_ranks(graph: Any, embeddings: Any, edges: Tensor, negatives: Tensor, batch_size: int) -> Tensor:
    """Return the rank of each edge among the negatives, float32 of shape (edges,)."""
    h_negatives = embeddings[negatives]
    ranks = [torch.empty(0)]
    for ids in edges.split(batch_size) if len(edges) else ():
        src, dst = graph.find_edges(ids)
        ranks.append(ranks_among(embeddings[src], embeddings[dst], h_negatives, not_endpoints(negatives, src, dst)))
    return torch.cat(ranks)


def fit_probe(h: Tensor, labels: Tensor) -> Any:
    """Return a logistic regression (L2, C = 1) on standardized embeddings, or None if there is only one class."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(labels.unique()) < 2:
        return None
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=200, tol=1e-3)).fit(h.double(), labels.numpy())


TASK = LinkTask
