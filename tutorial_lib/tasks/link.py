"""Which edges there are, and node embeddings without labels: link prediction on a job's ranks and in one process.

GraphSAGE embeds, a dot product says how likely an edge is. No labels: an edge of the graph is 1, a pair with a node
drawn by chance is 0 (unsupervised GraphSAGE; Hamilton, Ying and Leskovec, 2017, with the binary cross-entropy of DGL's
examples).

edges    held out by a hash (``EdgeSplit``); the rest trains, see ``batches.edges``
scores   MRR, hits@10 and the accuracy of a linear probe, of exact embeddings
files    embeddings.npy    float32 (N, D), in the data set's order of nodes
         test_edges.npz    edge: int64, the data set's edge ids, ascending; rank: float32, of each among negatives
         predictions.npy   int64 (N,), what the probe says about every node
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tutorial_lib.batches.edges import SIDES, EdgeBatch, EdgeLoader, EdgeSplit, TrainingGraph
from tutorial_lib.batches.nodes import FULL, rows_of
from tutorial_lib.compat.generators import derive_seed
from tutorial_lib.errors import InputError
from tutorial_lib.tasks.evaluation import layerwise_inference
from tutorial_lib.tasks.link_scores import HITS_AT, Probe, fit_probe, is_no_end, pair_loss, rank_sums, ranks_among, unit
from tutorial_lib.tasks.task import ROWS, RankShare, Share, TaskSpec, shares_right
from tutorial_lib.trainer.comm import accuracy, broadcast, equal_steps, gather_by_number, own_rank, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Pulse
from tutorial_lib.trainer.loop import Task, TrainResult
from tutorial_lib.trainer.placement import CPU, Placement
from tutorial_lib.trainer.session import Session

EDGES = 1_000_000  # looked at, at a time


@dataclass
class LinkResult(TrainResult):
    """Also what else is written down.

    Attributes:
        embeddings: float32 (N, D); in a job the ``DistTensor``.
        numbers: int64 (N,), the data set's number of each row of it.
        test_edges: int64 (T,), the data set's ids, ascending; test_ranks: float32 (T,).
    """

    embeddings: Any = field(default=None, repr=False)
    numbers: Any = field(default=None, repr=False)
    test_edges: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    test_ranks: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)

    def save(self, out: Path) -> None:
        """The files that the module's text names; embeddings go from the servers to the file some at a time."""
        super().save(out)
        shape = tuple(self.embeddings.shape)
        rows = np.lib.format.open_memmap(out / "embeddings.npy", mode="w+", dtype=np.float32, shape=shape)
        for ids in torch.arange(len(self.numbers)).split(ROWS):
            rows[self.numbers[ids.numpy()]] = self.embeddings[ids].numpy()
        rows.flush()
        np.savez(out / "test_edges.npz", edge=self.test_edges.numpy(), rank=self.test_ranks.numpy())


@dataclass(frozen=True)
class LinkOptions:
    """What link prediction has to decide besides a ``TrainConfig``.

    Attributes:
        val, test: shares of the undirected pairs that are held out.
        epoch_edges: training edges in an epoch, of all ranks together; a graph has many more.
        validation_edges: validation edges that are ranked after an epoch, of all ranks together.
        eval_negatives: nodes against which each held-out edge is ranked; the same ones for all.
        probe_nodes: the linear probe is fitted on at most so many training nodes.
        leak: do not drop the edges of a batch from its blocks. To see what happens; never useful.
    """

    val: float = 0.05
    test: float = 0.05
    epoch_edges: int = 100_000
    validation_edges: int = 2000
    eval_negatives: int = 100
    probe_nodes: int = 20_000
    leak: bool = False


@dataclass
class LinkData:
    """What the loop reads, of a plain graph or of a distributed one.

    Attributes:
        view: the graph without its held-out edges.
        features: (N, F) float32; labels: (N,) int64; for the probe alone.
        edges: by side, int64 ids of this process's share of the edges.
        negatives: int64 (K,), the nodes that held-out edges are ranked against.
        ranks: processes that share the edges.
    """

    view: TrainingGraph
    features: Any
    labels: Any
    edges: dict[str, Tensor]
    negatives: Tensor
    ranks: int = 1
    place: Placement = CPU

    @property
    def graph(self) -> Any:
        """That of ``view``."""
        return self.view.graph


def draw_negatives(num_nodes: int, count: int, seed: int) -> np.ndarray:
    """int64 (count,), original ids of different nodes, ascending; equal for equal seeds."""
    generator = np.random.Generator(np.random.PCG64([seed, 0x4E4547]))
    return np.sort(generator.choice(num_nodes, min(count, num_nodes), replace=False))


@dataclass
class LinkTask(Task):
    """See ``loop.Task``; ``data`` is a ``LinkData``."""

    @property
    def split(self) -> dict[str, int]:
        """Numbers of edges of this rank."""
        return {f"{side}_edges": len(ids) for side, ids in self.data.edges.items()}

    def inputs(self, batch: EdgeBatch) -> tuple[Any, ...]:
        """Blocks, features of the input nodes, places of the ends and of the negatives."""
        features = self.data.features[batch.input_nodes]
        return self.data.place.take(batch.blocks, features, batch.src, batch.dst, batch.negatives)

    def loss(self, model: nn.Module, prepared: tuple[Any, ...]) -> tuple[Tensor, int]:
        """Binary cross-entropy."""
        blocks, features, src, dst, negatives = prepared
        return pair_loss(unit(model(blocks, features)), src, dst, negatives), len(src)

    def score(self, model: nn.Module, inputs: tuple[Any, ...]) -> tuple[float, int]:
        """Sum of the reciprocal ranks."""
        blocks, features, src, dst, negatives = inputs
        h = unit(model(blocks, features))
        ranks = ranks_among(h[src], h[dst], h[negatives[0]], is_no_end(negatives, src, dst))
        return rank_sums(ranks)[0], len(src)


def link_task(data: LinkData, config: TrainConfig, options: LinkOptions) -> LinkTask:
    """The task with the batches that ``config`` and ``options`` say."""

    def loader(edges: Tensor, negatives: int | Tensor, **training: Any) -> EdgeLoader:
        training |= {"seed": derive_seed(config.seed, own_rank(), bool(training)), "threads": config.sampling_threads}
        return EdgeLoader(data.view, edges, config.fanouts, config.batch_size, negatives=negatives, **training)

    per_epoch, val = -(-options.epoch_edges // data.ranks), data.edges["val"]
    train = loader(data.edges["train"], config.negatives, per_epoch=per_epoch, training=True, leak=options.leak)
    train.steps = equal_steps(train.edges_per_epoch, config.batch_size, "training edges")
    some = val[:: max(1, len(val) * data.ranks // options.validation_edges)]
    return LinkTask(data, train, loader(some, data.negatives))


class LinkPrediction(TaskSpec):
    """GraphSAGE whose vectors say which edges there are."""

    name = "link"
    score = "MRR"

    def __init__(self, options: LinkOptions | None = None) -> None:
        self.options = options or LinkOptions()

    def check(self, facts: Mapping[str, Any]) -> None:
        super().check(facts)
        if facts["num_classes"] < 2:
            raise InputError(f"{facts['name']}: --task link probes its embeddings with labels of at least two classes")

    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, LinkTask]:
        data = link_data(share, config, self.options)
        model = share.place.model(config, data.features.shape[1], config.hidden_size)
        return model, link_task(data, config, self.options)

    def evaluate(self, share: Share, model: nn.Module, task: LinkTask, config: TrainConfig) -> LinkResult:
        """Embed every node, rank the held-out edges, probe; each trainer does a share of its own machine's part."""
        data, nodes, numbers, size = task.data, share.own(), share.numbers(), config.eval_batch_size
        h = embed(model, data, nodes, size, share.new_store, share.barrier, Pulse(share.emit, "evaluation"))
        ranks = {side: edge_ranks(data, h, data.edges[side], size) for side in ("val", "test")}
        sums = sum_over_ranks([*rank_sums(ranks["val"]), *rank_sums(ranks["test"])])

        own = share.nodes("train_mask", even=False)
        train = gather_by_number(own, own, numbers)[1]
        fitted = None
        if share.rank == 0:  # in the data set's order, like a single process
            ids = train[:: -(-len(train) // self.options.probe_nodes)]  # at equal distances
            fitted = vars(fit_probe(h[ids], data.labels[ids].long()))
        probe = Probe(**broadcast(fitted))
        predictions = torch.cat([probe.predict(h[part]) for part in nodes.split(ROWS) if len(part)] or [nodes])
        val, test = shares_right(share, nodes, predictions == rows_of(data.labels, nodes))

        edge_numbers = share.partition.edge_map if isinstance(share, RankShare) else np.arange(share.graph.num_edges())
        edges, values = gather_by_number(data.edges["test"], ranks["test"], edge_numbers)
        return LinkResult(
            accuracy(sums[0], sums[2]),
            accuracy(sums[3], sums[5]),
            gather_by_number(nodes, predictions, numbers)[1],
            {
                f"val_hits@{HITS_AT}": accuracy(sums[1], sums[2]),
                f"test_hits@{HITS_AT}": accuracy(sums[4], sums[5]),
                "val_probe_accuracy": val,
                "test_probe_accuracy": test,
            },
            embeddings=h,
            numbers=numbers,
            test_edges=edges,
            test_ranks=values,
        )


def link_data(share: Share, config: TrainConfig, options: LinkOptions) -> LinkData:
    """This process's share of the edges, and what it needs to know of the graph; every rank must call it."""
    graph, original, ranks = share.graph, share.numbers(), 1
    view = TrainingGraph(graph, EdgeSplit(config.seed, options.val, options.test), torch.from_numpy(original))
    if isinstance(share, RankShare):
        edges, ranks = edges_of_rank(view, share.session), share.session.world_size
    else:
        side = view.side(*graph.edges(order="eid"))
        edges = {name: (side == number).nonzero().flatten() for number, name in enumerate(SIDES)}
    negatives = np.argsort(original)[draw_negatives(graph.num_nodes(), options.eval_negatives, config.seed)]
    features, labels = share.data["feat"], share.data["label"]
    return LinkData(view, features, labels, edges, torch.from_numpy(negatives), ranks, share.place)


def edges_of_rank(view: TrainingGraph, session: Session) -> dict[str, Tensor]:
    """By side, int64 ids of this rank's share of the edges.

    The first trainer of a machine marks the edges of its own part, which needs no other machine, in one mask for each
    side. Training edges are shared evenly; held-out ones are looked at by the machine that has them.
    """
    import dgl

    graph, masks = view.graph, {}
    book, policy, shape = graph.get_partition_book(), graph.get_edge_partition_policy("_E"), (graph.num_edges(),)
    for side in SIDES:
        masks[side] = dgl.distributed.DistTensor(shape, torch.uint8, name=f"{side}-edges", part_policy=policy)
    if dist.get_rank() % (session.world_size // book.num_partitions()) == 0:
        for ids in book.partid2eids(book.partid).split(EDGES):
            side = view.side(*graph.find_edges(ids))
            for number, name in enumerate(SIDES):
                masks[name][ids] = (side == number).to(torch.uint8)
    session.barrier()
    split = dgl.distributed.edge_split
    return {side: split(mask, book, force_even=side == "train").long() for side, mask in masks.items()}


def embed(model: nn.Module, data: LinkData, nodes: Tensor, batch_size: int, *stores: Any) -> Any:
    """Exact embeddings of length 1 from all training edges, layer by layer.

    The arguments are those of ``layerwise_inference``, which over the graph would also use the edges that are held out.
    """
    import dgl

    def source(x: Mapping[str, Any], name: str, ids: Tensor) -> Iterator[tuple[Tensor, Any, Any]]:
        for seeds in ids.split(batch_size) if len(ids) else ():
            block = data.view.sample_block(seeds, FULL)
            (placed,), rows = data.place.take([block], x[name][block.srcdata[dgl.NID]])
            yield seeds, placed, rows

    return layerwise_inference(model, source, data.features, nodes, batch_size, *stores, last=unit)


def edge_ranks(data: LinkData, embeddings: Any, edges: Tensor, batch_size: int) -> Tensor:
    """Rank of each edge among ``data.negatives``; float32 (edges,)."""
    negatives = data.negatives
    h_negatives = embeddings[negatives]
    found = []
    for ids in edges.split(batch_size) if len(edges) else ():
        src, dst = data.view.graph.find_edges(ids)
        found.append(ranks_among(embeddings[src], embeddings[dst], h_negatives, is_no_end(negatives, src, dst)))
    return torch.cat(found) if found else torch.empty(0)


TASK = LinkPrediction()
