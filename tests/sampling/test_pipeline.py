"""The pipeline returns the batches of DGL's loader, with any cache."""

import threading
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from dgl.utils import get_num_threads
from fault_support import run_program
from row_support import FakeCluster, FakeConnection, FakeDistTensor, FakePartitionBook

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.sampling import neighbors
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.neighbors import NeighborSampler
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader, batch_executor, prefetch
from tutorial_lib.tools.options import complete_config
from tutorial_lib.trainer.config import TrainConfig

TRAINER = Path(__file__).parents[1] / "programs" / "pipeline_trainer.py"
FEATURES = torch.randn(60, 5)


def pipeline_of(monkeypatch, room: int, labels: Any = None) -> tuple[Pipeline, FakeConnection]:
    """A pipeline with the adjacency of all 60 nodes, 5 of their rows and room for other rows."""
    generator = torch.Generator().manual_seed(1)
    neighbors = {node: torch.randperm(60, generator=generator)[: 3 + node % 6].tolist() for node in range(60)}
    sampler = NeighborSampler(FakeCluster(monkeypatch, neighbors, 0, 60).graph, 0, 2)
    rows = FakeDistTensor(FEATURES, 20, 25)
    cache = FeatureCache(rows, FakePartitionBook(20, 25), room * 20)
    return Pipeline(sampler, cache, torch.arange(60) if labels is None else labels), FakeConnection(monkeypatch, rows)


def test_samples_depend_only_on_the_seed(monkeypatch):
    """D2. Batches depend on the seed alone.

    DGL draws the server of a pull with the generator that samples, and a loader with all rows pulls nothing. The
    sampling thread does not use torch's global generator.
    """
    means = []
    for room in (0, 60):
        pipeline, wire = pipeline_of(monkeypatch, room)

        def send(requests, wire=wire):
            dgl.sampling.sample_neighbors(dgl.rand_graph(9, 60), torch.arange(9), 2)
            return wire.send(requests)

        monkeypatch.setattr(neighbors.rpc, "send_requests_to_machine", send)  # DGL uses one generator
        for seed in (3, 3, 4):
            loader = PipelineLoader(pipeline, torch.arange(0, 60, 2), [3, 2], 8, shuffle=True, seed=seed)
            state = torch.get_rng_state()
            batches = [batch for _step, batch in loader.batches(0)]
            assert torch.equal(torch.get_rng_state(), state)
            ((step, last),) = loader.batches(0, start=len(batches) - 1)
            assert step == len(batches) - 1
            assert torch.equal(last.inputs.mean, batches[-1].inputs.mean)
            means.append(torch.cat([batch.inputs.mean for batch in batches]))
            for batch in batches:
                assert torch.equal(batch.labels, batch.seeds)
                assert torch.equal(batch.inputs.dst_rows, FEATURES[batch.input_nodes.long()])
                assert all(0 < seconds < 60 for _start, seconds in batch.background.values())
    assert len({tuple(one.flatten().tolist()) for one in means}) == 2
    assert all(torch.equal(means[0], means[k]) for k in (1, 3, 4))


@pytest.mark.parametrize("room", [0, 12, 60])
def test_abandoned_iteration_leaves_no_request(monkeypatch, room):
    """D1. No request is outstanding when labels are pulled through DGL, or when the caller leaves the loader."""

    class Labels:
        def __getitem__(self, ids):
            assert not wire.waiting
            return ids

    pipeline, wire = pipeline_of(monkeypatch, room, Labels())
    for epoch, count in enumerate((1, 3, 8)):  # of 8 batches
        iteration = PipelineLoader(pipeline, torch.arange(60), [3, 2], 8).batches(epoch)
        for _step, batch in islice(iteration, count):
            assert torch.equal(batch.inputs.dst_rows, FEATURES[batch.input_nodes.long()])
        iteration.close()
        assert not wire.waiting


@pytest.mark.parametrize("depth", [0, 2])
def test_one_thread_prefetches_items(depth):
    """D2. The thread uses one OpenMP thread. Several would number the nodes of a block in an arbitrary order."""
    made = []

    def items():
        for number in range(5):
            made.append((number, threading.get_ident(), torch.get_num_threads(), get_num_threads()))
            yield number

    found = prefetch(items(), depth)
    assert next(found) == 0
    batch_executor().submit(int).result()  # the thread has finished its work
    assert [number for number, *_ in made] == list(range(depth + 1))
    assert list(found) == [1, 2, 3, 4]
    ((thread, *counts),) = {tuple(settings) for _, *settings in made}
    assert (thread != threading.get_ident(), counts) == (True, [1, 1])


def test_prefetch_closes_failed_or_abandoned_generator():
    """An error is raised in its place, and the thread continues."""
    closed = []

    def items():
        try:
            yield 0
            raise ValueError("no answer")
        finally:
            closed.append(threading.current_thread().name)

    with pytest.raises(ValueError, match="no answer"):
        list(prefetch(items(), 2))
    found = prefetch(items(), 0)
    assert next(found) == 0
    found.close()
    assert closed == ["batches_0"] * 2


def test_cache_option():
    assert [complete_config(TrainConfig(), 0, "5", size).cache for size in ("0", "1.5MB")] == [0, 1_500_000]


@pytest.mark.cluster
@pytest.mark.parametrize("words", [[], ["--use_graphbolt"]], ids=["parts of DGL", "parts of GraphBolt"])
def test_logits_of_all_settings_equal_dgl_loader(emulation, nothing_left, partition_of, small_dataset, tmp_path, words):
    if words and graphbolt_problem():
        pytest.skip(graphbolt_problem())
    partition, events = partition_of(2), defaultdict(list)
    for event in run_program(partition, tmp_path, str(TRAINER), str(partition.folder), *words):
        events[event["kind"]].append(event)
    src, dst = (ends.numpy() for ends in small_dataset.graph.edges(order="eid"))
    part_of = (partition.node_map.argsort() >= partition.report.nodes[0]).astype(int)
    for event in events["edges"]:
        mine = part_of[dst] == event["rank"]
        away, labels = part_of[src[mine]] != event["rank"], small_dataset.graph.ndata["label"][src[mine]]
        mixed = (src[mine] * 7919 + dst[mine] * 104729) % 1000003
        assert event["found"] == [mine.sum(), away.sum(), int(labels.sum()), mixed.sum()]
    assert (len(events["edges"]), len(events["compared"])) == (2, 2 * 3)
    for event in events["compared"]:
        assert event["largest"] <= 1e-5 * event["scale"], event
        assert event["labels"]
        used, asked, hits = event["rows"]
        if event["setting"] == "nothing cached":
            assert (event["lists"], used, hits) == (0, 0, 0)
        else:
            assert min(event["lists"], hits) > 0
        if event["setting"] == "all cached":  # the second pass asks for nothing
            assert asked - hits == used
    assert [event["budget"] for event in events["inferred"] if event["rank"] == 1] == [0, 20_000, 10**8]
    assert all(event["largest"] <= 1e-5 * event["scale"] for event in events["inferred"]), events["inferred"]
    assert len(events["sampled"]) == 2
    for event in events["sampled"]:
        assert event["lists"] > 0
        assert (event["width"], event["same"]) == (100, [True, False])  # equal seeds sample equal batches


@pytest.mark.cluster
def test_both_loaders_reach_equal_accuracy(nothing_left, learned_run, partition_of, tmp_path):
    (config, ours), layout = learned_run, Layout(emulate=2)
    theirs = run_distributed(partition_of(2), layout, replace(config, loader="dgl"), tmp_path / "run")
    assert min(ours["test_accuracy"], theirs["test_accuracy"]) > 0.5
    assert ours["test_accuracy"] == pytest.approx(theirs["test_accuracy"], abs=0.04)
    pulled = [sum(rank["bytes_remote"] for rank in result["phases"]) for result in (ours, theirs)]
    assert pulled[0] < pulled[1] / 2
