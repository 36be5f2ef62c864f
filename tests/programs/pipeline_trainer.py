"""A trainer of test_pipeline.py, which reports the edges on the servers and compares logits of the same nodes.

With all neighbors, no batch is random. DGL's loader and the pipeline must return equal logits with every setting.
"""

import sys
from itertools import pairwise
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistGraph, DistTensor, node_split
from torch import Tensor

from tutorial_lib.models.graphsage import build_graphsage
from tutorial_lib.partition import Partition, load_partition_folder
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.loader import ALL_NEIGHBORS, BatchLoader
from tutorial_lib.sampling.neighbors import NeighborSampler
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader
from tutorial_lib.tasks.task import DistShard, graph_batches, layerwise_inference, make_adjacency_source
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.session import Session, open_session, serve_if_server

FANOUTS = [ALL_NEIGHBORS] * 3
CONFIG = TrainConfig(fanouts=(5, 5, 5), hidden_size=128)


def compute_logits(loader: BatchLoader | PipelineLoader, features: DistTensor, model: torch.nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        inputs = (
            (b.blocks, features[b.input_nodes] if b.inputs is None else b.inputs) for _step, b in loader.batches(0)
        )
        return torch.cat([model(*each) for each in inputs])


def make_pipelines(graph: DistGraph) -> dict[str, Pipeline]:
    """Return pipelines with no memory for remote data, a little, and enough."""
    ndata, book = graph.ndata, graph.get_partition_book()

    def build(budget: int) -> Pipeline:
        lists = NeighborSampler(graph, budget // 2, 3)
        return Pipeline(lists, FeatureCache(ndata["feat"], book, budget // 2), ndata["label"])

    return {"nothing cached": build(0), "a little cached": build(300_000), "all cached": build(100_000_000)}


def emit_inference(session: Session, partition: Partition, features: DistTensor, model: torch.nn.Module) -> None:
    """Compare layerwise logits of all nodes from DGL's loader and from the local adjacency."""
    graph = session.graph
    shard = DistShard(session, partition)
    nodes = shard.local_nodes("_N")
    expected = layerwise_inference(model, graph_batches, features, shard, 100)[nodes]
    sampler = NeighborSampler(graph, 0, 3)
    for budget in (0, 20_000, 10**8):
        shard.new_store = lambda k, w, _ntype, b=budget: DistTensor((graph.num_nodes(), w), torch.float32, f"b{b}{k}")
        pipeline = Pipeline(sampler, FeatureCache(features, sampler.book, budget), graph.ndata["label"])
        source = make_adjacency_source(pipeline, model, budget)
        found = layerwise_inference(model, source, features, shard, 100)[nodes]
        largest, scale = float((found - expected).abs().max()), float(expected.abs().max())
        session.events.emit("inferred", budget=budget, largest=largest, scale=scale)


def emit_edges(session: Session, node_map: Tensor, *, graphbolt: bool) -> None:
    """Emit counts and sums over all edges into local nodes, by original IDs."""
    graph, book = session.graph, session.graph.get_partition_book()
    nodes = book.partid2nids(session.rank)
    src, dst = dgl.distributed.sample_neighbors(graph, nodes, -1, use_graphbolt=graphbolt).edges()
    away, labels = int((book.nid2partid(src) != session.rank).sum()), int(graph.ndata["label"][src].sum())
    mixed = int(((node_map[src] * 7919 + node_map[dst] * 104729) % 1000003).sum())
    session.events.emit("edges", found=[len(src), away, labels, mixed])


def emit_logits(session: Session, partition: Partition) -> None:
    graph = session.graph
    nodes = node_split(graph.ndata["train_mask"], graph.get_partition_book(), force_even=True)[:60].long()
    features, all_labels = graph.ndata["feat"], graph.ndata["label"]
    model = build_graphsage(CONFIG, features.shape[1], 47)
    expected = compute_logits(BatchLoader(graph, nodes, FANOUTS, 25), features, model)
    labels = all_labels[nodes].long()
    for name, pipeline in make_pipelines(graph).items():
        loader = PipelineLoader(pipeline, nodes, FANOUTS, 25)
        found = compute_logits(loader, features, model)
        rows = compute_logits(PipelineLoader(pipeline, nodes, FANOUTS, 25, means=False), features, model)
        session.events.emit(
            "compared",
            setting=name,
            largest=float(torch.stack([found - expected, rows - expected]).abs().max()),
            scale=float(expected.abs().max()),
            labels=torch.equal(torch.cat([batch.labels for _step, batch in loader.batches(0)]), labels),
            lists=pipeline.sampler.remote_bytes,
            rows=[pipeline.cache.used, pipeline.cache.num_requested, pipeline.cache.hits],
        )
    dist.barrier()
    emit_inference(session, partition, features, model)
    pipeline = Pipeline.from_graph(graph, features, all_labels, budget=100_000_000, hops=3)
    sampled = []
    for seed in (5, 5, 6):
        loader = PipelineLoader(pipeline, nodes, [4, 3, 2], 25, shuffle=True, seed=seed)
        sampled.append(torch.cat([batch.inputs.mean for _step, batch in loader.batches(0)]))
    same = [first.shape == second.shape and torch.equal(first, second) for first, second in pairwise(sampled)]
    session.events.emit("sampled", lists=pipeline.sampler.remote_nodes, width=sampled[0].shape[1], same=same)
    dist.barrier()


if __name__ == "__main__":
    graphbolt = "--use_graphbolt" in sys.argv
    serve_if_server(graphbolt=graphbolt)
    partition = load_partition_folder(Path(sys.argv[1]))
    with open_session(partition.graph_name, seed=0) as session:
        emit_edges(session, torch.from_numpy(partition.node_map), graphbolt=graphbolt)
        emit_logits(session, partition)
