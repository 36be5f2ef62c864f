"""Link prediction without labels: unsupervised GraphSAGE (Hamilton, Ying and Leskovec, 2017) with the cross-entropy of
DGL's examples. A dot product of embeddings scores an edge. The run folder gets these files.

    embeddings.npy   float32 of shape (N, D), in the order of the data set
    test_edges.npz   edge: int64 IDs of the test edges in the data set, ascending. rank: float32 rank of each edge
    predictions.npy  int64 of shape (N,), if the graph has classes: predictions of a logistic regression on embeddings
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.sampling.edges import EdgeBatch, EdgeLoader, TrainingGraph
from tutorial_lib.sampling.nodes import FULL, rows_of
from tutorial_lib.tasks.inference import layerwise_inference
from tutorial_lib.tasks.task import ROWS, Shard, Task, judge_nodes
from tutorial_lib.trainer.comm import accuracy, broadcast, equal_steps, gather_by_number, own_rank, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult

HITS_AT = 10
# The probability of an edge is sigmoid(10 * cosine - 5). Without unit length, the first dot products are in the tens,
# and the model spends its first epochs on shrinking them.
SCALE, SHIFT = 10.0, 5.0
unit = F.normalize  # scales rows to length 1 and keeps rows of zeros


@dataclass
class LinkResult(TrainResult):
    """Scores with the embeddings (a ``DistTensor`` in a job), the original ID of each, and the test edges."""

    embeddings: Any = field(default=None, repr=False)
    original: Any = field(default=None, repr=False)
    test_edges: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def save(self, out: Path) -> None:
        super().save(out)
        np.savez(out / "test_edges.npz", **self.test_edges)
        shape = tuple(self.embeddings.shape)
        rows = np.lib.format.open_memmap(out / "embeddings.npy", mode="w+", dtype=np.float32, shape=shape)
        for ids in torch.arange(len(rows)).split(ROWS):
            rows[self.original[ids.numpy()]] = self.embeddings[ids].numpy()
        rows.flush()


class LinkTask(Task):
    """Predict edges. ``edges`` are those of this process by side, and ``negatives`` the nodes to rank them against."""

    name = "link"
    score_name = "MRR"
    uses_labels = False
    epoch_edges = 100_000  # training edges in an epoch, over all ranks. A graph has many more.
    validation_edges = 2000  # validation edges that are ranked after an epoch, over all ranks
    eval_negatives = 100  # nodes against which each held-out edge is ranked, the same for all edges
    # Largest number of training nodes for the probe. With 20,000 rows of 256 values and 47 classes, an iteration takes
    # less than 0.1 s on one core, and there are at most 200. It needs 0.1 GB.
    probe_nodes = 20_000

    def __init__(self, shard: Shard, config: TrainConfig) -> None:
        super().__init__(shard, config)
        self.features, self.original = shard.data["feat"], shard.original_nodes(shard.target)
        self.view = TrainingGraph(shard.graph, torch.from_numpy(self.original), config.seed)
        self.edges = shard.edges(self.view.side)
        self.split = {f"{side}_edges": len(ids) for side, ids in self.edges.items()}
        generator, count = np.random.Generator(np.random.PCG64([config.seed, 0x4E4547])), len(self.original)
        drawn = np.sort(generator.choice(count, min(self.eval_negatives, count), replace=False))
        self.negatives = torch.from_numpy(np.argsort(self.original)[drawn])
        self.model = config.model(self.features.shape[1], config.hidden_size).to(self.place.device)
        train, val, per_epoch = self.edges["train"], self.edges["val"], -(-self.epoch_edges // shard.world_size)
        steps = equal_steps(min(len(train), per_epoch), config.batch_size, "training edges")
        self.batches = self._loader(train, config.negatives, train=True, steps=steps, per_epoch=per_epoch)
        self.val = self._loader(val[:: max(1, len(val) * shard.world_size // self.validation_edges)], self.negatives)

    def _loader(self, edges: Tensor, negatives: int | Tensor, *, train: bool = False, **sizes: Any) -> EdgeLoader:
        config = self.config
        common: Any = {"threads": config.sampling_threads, "shuffle": train, "training": train, "negatives": negatives}
        seed = derive_seed(config.seed, own_rank(), train)
        return EdgeLoader(self.view, edges, config.fanouts, config.batch_size, seed=seed, **common, **sizes)

    def inputs(self, batch: EdgeBatch) -> tuple[Any, ...]:
        return self.place.take(batch.blocks, self.features[batch.input_nodes], batch.src, batch.dst, batch.negatives)

    def loss(self, model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, int]:
        """Return the binary cross-entropy of edges (1) and negative pairs (0), with equal weight for both kinds."""
        blocks, features, src, dst, negatives = inputs
        h = unit(model(blocks, features))
        positive = SCALE * (h[src] * h[dst]).sum(1) - SHIFT
        negative = SCALE * torch.einsum("bd,bkd->bk", h[src], h[negatives]) - SHIFT
        return (F.softplus(-positive).mean() + F.softplus(negative).mean()) / 2, len(src)

    def score(self, model: nn.Module, inputs: tuple[Any, ...]) -> tuple[float, int]:
        blocks, features, src, dst, negatives = inputs
        ranks = edge_ranks(unit(model(blocks, features)), (src, dst), negatives[0])
        return float((1 / ranks.double()).sum()), len(src)

    def evaluate(self) -> LinkResult:
        shard, h, mrr, scores, ranks = self.shard, self.embed(), {}, {}, {}
        for side in ("val", "test"):
            batches = self.edges[side].split(self.config.eval_batch_size) if len(self.edges[side]) else ()
            found = [edge_ranks(h, shard.graph.find_edges(ids), self.negatives) for ids in batches]
            r = ranks[side] = torch.cat([torch.empty(0), *found])
            total, hits, count = sum_over_ranks([float((1 / r.double()).sum()), float((r <= HITS_AT).sum()), len(r)])
            mrr[side], scores[f"{side}_hits@{HITS_AT}"] = accuracy(total, count), accuracy(hits, count)
        val, test, predictions = self._probe(h)
        scores |= {"val_probe_accuracy": val, "test_probe_accuracy": test}
        edges, values = gather_by_number(self.edges["test"], ranks["test"], shard.original_edges())
        saved = {"embeddings": h, "original": self.original, "test_edges": {"edge": edges, "rank": values}}
        return LinkResult(mrr["val"], mrr["test"], predictions, scores, self.score_name, **saved)

    def embed(self) -> Any:
        """Return exact embeddings of unit length, float32 of shape (N, D), that use all training edges."""
        size = self.config.eval_batch_size
        return layerwise_inference(self.model, self._all_neighbors, self.features, self.shard, size, last=unit)

    def _all_neighbors(self, _shard: Shard, x: Any, ids: Tensor, size: int) -> Iterator[tuple[Tensor, Any, Any]]:
        for seeds in ids.split(size) if len(ids) else ():
            block = self.view.sample_block(seeds, FULL)
            (placed,), rows = self.place.take([block], x[block.srcdata[dgl.NID]])
            yield seeds, placed, rows

    def _probe(self, h: Any) -> tuple[float | None, float | None, Tensor | None]:
        """Fit a linear probe on rank 0 and return its result of ``judge_nodes``, or None if there are no classes."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        shard, fitted = self.shard, None
        if shard.num_classes > 1:
            nodes = shard.nodes("train_mask")
            nodes = gather_by_number(nodes, nodes, self.original)[1]  # empty on the other ranks than 0
            nodes = nodes[:: max(1, -(-len(nodes) // self.probe_nodes))]  # at equal distances in the data set
            labels = rows_of(shard.data["label"], nodes).long()
            if len(labels.unique()) > 1:
                probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200, tol=1e-3))  # L2, C = 1
                fitted = probe.fit(rows_of(h, nodes).double(), labels.numpy())
            fitted = broadcast(fitted)
        if fitted is None:
            if shard.rank == 0:
                shard.emit("warning", text="The probe on classes is skipped: fewer than two have training nodes.")
            return None, None, None

        def judge(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            predictions = torch.from_numpy(fitted.predict(rows.double().numpy())) if len(rows) else labels
            return predictions, predictions == labels

        return judge_nodes(shard, h, shard.data["label"], judge)


def edge_ranks(h: Any, edges: tuple[Tensor, Tensor], negatives: Tensor) -> Tensor:
    """Return the rank of each edge among the pairs of its source with the negatives, float32 of shape (B,).

    The best rank is 1, and a tie counts one half. The source and the destination of an edge are no negatives of it.
    ``edges`` has two tensors of shape (B,), and ``negatives`` has shape (K,). All are positions in ``h``.
    """
    src, dst = edges
    h_src = h[src]
    positive, negative = (h_src * h[dst]).sum(1, keepdim=True), h_src @ h[negatives].T
    allowed = (negatives != src[:, None]) & (negatives != dst[:, None])
    better, equal = ((found & allowed).sum(1) for found in (negative > positive, negative == positive))
    return 1 + better + 0.5 * equal


TASK = LinkTask
