"""Which edges there are, and node embeddings without labels: link prediction on a job's ranks and in one process.

edges    held out by a hash (``edge_split``); the rest trains, see ``edge_batches`` and ``link_task``
scores   MRR (``val_accuracy``, ``test_accuracy``), hits@10 and the accuracy of a linear probe, of exact embeddings
files    embeddings.npy    float32 (N, D), in the data set's order of nodes
         test_edges.npz    edge: int64, the data set's edge ids, ascending; rank: float32, of each among negatives
         predictions.npy   int64 (N,), what the probe says about every node
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tutorial_lib.batches.edge_split import SIDES
from tutorial_lib.batches.edges import TrainingGraph
from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.partition import Partition, load_partition_folder
from tutorial_lib.tasks import check_one_type
from tutorial_lib.tasks.evaluation import sum_over_ranks
from tutorial_lib.tasks.link_evaluation import ROWS, edge_ranks, embed, save_embeddings, scores_of, thinned
from tutorial_lib.tasks.link_scores import Probe, fit_probe, rank_sums
from tutorial_lib.tasks.link_task import LinkData, LinkOptions, draw_negatives, link_task
from tutorial_lib.trainer.checkpoint import Checkpoints
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.exchange import broadcast, gather
from tutorial_lib.trainer.loop import EpochResult, TrainResult, fit
from tutorial_lib.trainer.placement import CPU, Placement, settle
from tutorial_lib.trainer.protocols import Saver
from tutorial_lib.trainer.session import Session
from tutorial_lib.trainer.steps import Emit, Pulse, no_events

USES_FEATURES = True
EDGES = 1_000_000  # looked at, at a time
OPTIONS = LinkOptions()


def check(facts: Mapping[str, Any]) -> None:
    """See ``tasks.TaskModule``."""
    check_one_type(facts, "link")
    if not facts["num_features"]:
        raise InputError(
            f"{facts['name']}: --task link needs node features, and there are none",
            "For a graph without features: --task embedding.",
        )
    if facts["num_classes"] < 2:
        raise InputError(f"{facts['name']}: --task link probes its embeddings with labels of at least two classes")


@dataclass
class LinkResult(TrainResult):
    """Also what else a job writes down.

    Attributes:
        embeddings: float32 (N, D).
        test_edges: int64 (T,), ids; test_ranks: float32 (T,).
    """

    embeddings: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    test_edges: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    test_ranks: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)


def run(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: Checkpoints,
    device: str = "cpu",
    *,
    options: LinkOptions = OPTIONS,
) -> None:
    """See ``tasks.TaskModule``.

    Raises:
        InputError: the ranks do not have the device that was asked for.
    """
    from tutorial_lib.trainer.loop import learn

    place = settle(device)
    own_part = session.graph.get_partition_book().partid
    partition = load_partition_folder(partition_folder, checksums=False, part=own_part)
    data = distributed_data(session, partition, config, options, place)
    model = place.model(config, data.features.shape[1], config.hidden_size)
    session.events.emit("placed", **place.describe())
    session.events.emit("split", **{f"{side}_edges": len(ids) for side, ids in data.edges.items()})
    learn(session, place.wrap(model), link_task(data, config, options), config, checkpoints)
    evaluate(session, model, data, config, options, partition, out)


def distributed_data(
    session: Session, partition: Partition, config: TrainConfig, options: LinkOptions, place: Placement = CPU
) -> LinkData:
    """This rank's share of the edges; every rank must call it.

    The first trainer of a machine marks the edges of its own part, which needs no other machine, in one mask for each
    side. Training edges are shared evenly; held-out ones are looked at by the machine that has them.
    """
    import dgl

    graph = session.graph
    book, policy = graph.get_partition_book(), graph.get_edge_partition_policy("_E")
    original = torch.from_numpy(partition.node_map)
    view = TrainingGraph(graph, options.split(config.seed), original)
    masks = {
        side: dgl.distributed.DistTensor((graph.num_edges(),), torch.uint8, name=f"{side}-edges", part_policy=policy)
        for side in SIDES
    }
    if dist.get_rank() % (session.world_size // book.num_partitions()) == 0:
        for ids in book.partid2eids(book.partid).split(EDGES):
            side = view.side(*graph.find_edges(ids))
            for number, name in enumerate(SIDES):
                masks[name][ids] = (side == number).to(torch.uint8)
    session.barrier()
    edges = {
        side: dgl.distributed.edge_split(mask, book, force_even=side == "train").long() for side, mask in masks.items()
    }
    negatives = partition.node_map_inverse[draw_negatives(graph.num_nodes(), options.eval_negatives, config.seed)]
    ndata = graph.ndata
    return LinkData(view, ndata["feat"], ndata["label"], edges, torch.from_numpy(negatives), session.world_size, place)


def plain_data(dataset: Dataset, config: TrainConfig, options: LinkOptions, place: Placement = CPU) -> LinkData:
    """The same of a graph in this process."""
    graph = dataset.graph
    view = TrainingGraph(graph, options.split(config.seed), torch.arange(graph.num_nodes()))
    side = view.side(*graph.edges(order="eid"))
    edges = {name: (side == number).nonzero().flatten() for number, name in enumerate(SIDES)}
    negatives = torch.from_numpy(draw_negatives(graph.num_nodes(), options.eval_negatives, config.seed))
    return LinkData(view, graph.ndata["feat"], graph.ndata["label"], edges, negatives, 1, place)


def evaluate(
    session: Session,
    model: GraphSAGE,
    data: LinkData,
    config: TrainConfig,
    options: LinkOptions,
    partition: Partition,
    out: Path,
) -> None:
    """Embed every node, rank the held-out edges, probe; each trainer does a share of its own machine's part."""
    import dgl

    graph, node_map = session.graph, partition.node_map
    n, emit = graph.num_nodes(), session.events.emit
    nodes = session.split(torch.ones(n, dtype=torch.bool), even=False)

    def new_store(depth: int, width: int) -> Any:
        return dgl.distributed.DistTensor((n, width), torch.float32, name=f"inference-{depth}")

    pulse = Pulse(emit, "evaluation")
    h = embed(model, data, nodes, config.eval_batch_size, new_store, session.barrier, pulse)
    ranks = {side: edge_ranks(data, h, data.edges[side], config.eval_batch_size) for side in ("val", "test")}
    sums = sum_over_ranks([*rank_sums(ranks["val"]), *rank_sums(ranks["test"])])

    own = session.split(graph.ndata["train_mask"], even=False)
    train = gather((own, own))
    fitted = None
    if session.rank == 0:
        ids = torch.cat([part for part, _ in train])
        ids = ids[np.argsort(node_map[ids.numpy()])]  # in the data set's order, like a single process
        ids = thinned(ids, options.probe_nodes)
        fitted = fit_probe(h[ids], data.labels[ids].long()).to_tensors()
    probe = Probe.from_tensors(broadcast(fitted))
    predictions = torch.cat([probe.predict(h[part]) for part in nodes.split(ROWS)] or [nodes])
    right = predictions == data.labels[nodes]
    chosen = [graph.ndata[f"{side}_mask"][nodes].bool() for side in ("val", "test")]
    counts = sum_over_ranks([float(x) for mask in chosen for x in ((right & mask).sum(), mask.sum())])

    gathered = gather((nodes, predictions))
    ranked = gather((data.edges["test"], ranks["test"]))
    if session.rank == 0:
        original = np.empty(n, dtype=np.int64)
        for ids, values in gathered:
            original[node_map[ids.numpy()]] = values.numpy()
        np.save(out / "predictions.npy", original)
        save_embeddings(out / "embeddings.npy", h, node_map)
        edges, values = (torch.cat([part[k] for part in ranked]).numpy() for k in (0, 1))
        edges = np.load(partition.folder / "edge_map.npy", mmap_mode="r")[edges]
        order = np.argsort(edges)
        np.savez(out / "test_edges.npz", edge=edges[order], rank=values[order])
        emit("evaluation", **scores_of(sums, counts))
    session.barrier()


def train_single(
    dataset: Dataset,
    config: TrainConfig,
    on_epoch: Callable[[EpochResult], None] = lambda _result: None,
    *,
    emit: Emit = no_events,
    saver: Saver | None = None,
    place: Placement = CPU,
    options: LinkOptions = OPTIONS,
) -> LinkResult:
    """See ``tasks.TaskModule``."""
    graph = dataset.graph
    data = plain_data(dataset, config, options, place)
    model = place.model(config, dataset.num_features, config.hidden_size)
    epochs = fit(model, link_task(data, config, options), config, on_epoch, emit=emit, saver=saver)
    size = config.eval_batch_size
    pulse = Pulse(emit, "evaluation")
    h = embed(model, data, graph.nodes(), size, lambda _d, w: torch.empty(graph.num_nodes(), w), on_batch=pulse)
    ranks = {side: edge_ranks(data, h, data.edges[side], size) for side in ("val", "test")}
    ids = thinned(graph.ndata["train_mask"].nonzero().flatten(), options.probe_nodes)
    predictions = fit_probe(h[ids], data.labels[ids]).predict(h)
    right = predictions == data.labels
    masks = [graph.ndata[f"{side}_mask"] for side in ("val", "test")]
    counts = [float(x) for mask in masks for x in (right[mask].sum(), mask.sum())]
    found = scores_of([*rank_sums(ranks["val"]), *rank_sums(ranks["test"])], counts)
    return LinkResult(
        epochs,
        found["val_accuracy"],
        found["test_accuracy"],
        predictions,
        model,
        found["scores"],
        embeddings=h,
        test_edges=data.edges["test"],
        test_ranks=ranks["test"],
    )
