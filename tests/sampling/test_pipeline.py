"""Batches from the pipeline: the same answers as from DGL's loader, whatever is kept and however it is drawn."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import dgl
import pytest
import torch
from row_support import Book, Rows, Wire

from tutorial_lib.cluster.coordinator import Coordinator
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.spec import write_ip_config
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.models.graphsage import FirstLayer, GraphSAGE
from tutorial_lib.sampling import rpc
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.neighbor_sampler import Adjacency
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader
from tutorial_lib.trainer.config import check_loader

PROGRAMS = Path(__file__).parents[1] / "programs"
TRAINER = PROGRAMS / "pipeline_trainer.py"


class OwnLists(Adjacency):
    """All lists of a graph of 60 nodes are here."""

    def __init__(self) -> None:
        counts = torch.randint(3, 9, (60,), generator=torch.Generator().manual_seed(1))
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        sources = torch.cat([torch.randperm(60, generator=torch.Generator().manual_seed(k))[:n] for k, n in
                             enumerate(counts.tolist())]).int()  # fmt: skip
        super().__init__(indptr, sources, 60)
        self.sample = self.sample_lists


def test_what_is_drawn_depends_on_the_seed_and_not_on_what_is_pulled(monkeypatch):
    """D2. Batches depend on the seed alone.

    DGL draws the server of a pull with the generator that samples, and a loader with all rows pulls nothing. The
    sampling thread does not use torch's global generator.
    """
    features = torch.randn(60, 5)
    drawn = []
    for room in (0, 60):
        tensor = Rows(features, 20, 25)
        wire = Wire(monkeypatch, tensor)
        lists = OwnLists()

        def send(requests, wire=wire, lists=lists):
            lists.sample_lists(torch.arange(60), 2)
            return wire.send(requests)

        monkeypatch.setattr(rpc.rpc, "send_requests_to_machine", send)  # DGL uses one generator
        pipeline = Pipeline(lists, FeatureCache(tensor, Book(20, 25), room * 20), torch.arange(60))
        for seed in (3, 3, 4):
            loader = PipelineLoader(pipeline, torch.arange(0, 60, 2), [3, 2], 8, shuffle=True, seed=seed)
            state = torch.get_rng_state()
            found = [batch for _step, batch in loader.batches(0)]
            assert torch.equal(torch.get_rng_state(), state)
            (last,) = (batch for _step, batch in loader.batches(0, start=len(found) - 1))
            assert torch.equal(last.inputs.mean, found[-1].inputs.mean)
            drawn.append(torch.cat([batch.inputs.mean for batch in found]))
            for batch in found:
                assert torch.equal(batch.labels, batch.seeds)
                assert torch.equal(batch.inputs.own, features[batch.input_nodes.long()])
                assert all(0 < seconds < 60 for _start, seconds in batch.background.values())
    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 2
    assert all(torch.equal(drawn[0], drawn[k]) for k in (1, 3, 4))


@pytest.mark.parametrize("room", [0, 12, 60])
def test_an_iteration_that_was_left_disturbs_no_other(monkeypatch, room):
    """D1. No request is outstanding when labels are pulled through DGL, or when the caller leaves the loader."""
    features = torch.randn(60, 5)
    tensor = Rows(features, 20, 25)
    wire = Wire(monkeypatch, tensor)

    class Labels:
        def __getitem__(self, ids):
            assert not wire.waiting
            return ids

    pipeline = Pipeline(OwnLists(), FeatureCache(tensor, Book(20, 25), room * 20), Labels())
    loader, other = (PipelineLoader(pipeline, torch.arange(60), [3, 2], 8) for _ in range(2))
    first, second = loader.batches(0), other.batches(1)
    batches = [next(first), next(second), next(second), next(first), next(second)]
    first.close()
    batches += list(second)
    for _step, batch in batches:
        assert torch.equal(batch.inputs.own, features[batch.input_nodes.long()])
    third = loader.batches(2)
    next(third)
    third.close()
    assert not wire.waiting


def test_the_first_layer_with_the_mean_taken():
    torch.manual_seed(0)
    block = dgl.create_block((torch.tensor([0, 3, 4, 4]), torch.tensor([0, 0, 1, 0])), num_src_nodes=5, num_dst_nodes=3)
    x = torch.randn(5, 6)
    model = GraphSAGE(6, 8, 4, 1, 0.0)
    mean = torch.stack([(x[0] + x[3] + x[4]) / 3, x[4], torch.zeros(6)])
    assert torch.allclose(model([block], x), model([], FirstLayer(x[:3], mean)), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fast", 0, "1GB"), "--loader fast"),
        (("pipeline", 2, "1GB"), "--loader pipeline with --samplers 2 is not possible"),
        (("auto", 0, "much"), "'much' is not an amount of memory"),
    ],
)
def test_settings_that_cannot_be(arguments, message):
    with pytest.raises(InputError, match=message):
        check_loader(*arguments)


def test_memory_for_rows_of_other_machines():
    assert check_loader("auto", 2, "0") == 0
    assert check_loader("pipeline", 0, "1.5MB") == 1_500_000


@pytest.mark.cluster
@pytest.mark.parametrize("words", [[], ["--use_graphbolt"]], ids=["parts of DGL", "parts of GraphBolt"])
def test_every_setting_gives_the_logits_of_dgl_s_loader(emulation, nothing_left, partition_of, tmp_path, words):
    partition = partition_of(2)
    cluster = EmulatedCluster(2)
    write_ip_config(tmp_path / "ip_config.txt", cluster.machines)
    plan = JobPlan(
        machines=cluster.machines,
        command=[sys.executable, str(TRAINER), partition.graph_name, *words],
        part_config=str(partition.config),
        ip_config=str(tmp_path / "ip_config.txt"),
        log_dir=str(tmp_path / "logs"),
        cwd=str(tmp_path),
        master_port=29500,
    )
    with cluster:
        coordinator = Coordinator(cluster, plan)
        coordinator.run()
    compared = [event for event in coordinator.events if event["kind"] == "compared"]
    assert len(compared) == 2 * 4
    for event in compared:
        assert event["largest"] <= 1e-5 * event["scale"], event
        assert event["again"] <= 1e-5 * event["scale"], event
        assert event["labels"]
        used, asked, hits = event["rows"]
        if event["setting"].startswith("nothing"):
            assert (event["lists"], used, hits) == (0, 0, 0)
        else:
            assert min(event["lists"], hits) > 0
        if event["setting"].startswith("all kept"):  # the second pass asks for nothing
            assert asked - hits == used
    inferred = [event for event in coordinator.events if event["kind"] == "inferred"]
    assert [event["budget"] for event in inferred if event["rank"] == 1] == [0, 20_000, 10**8]
    assert all(event["largest"] <= 1e-5 * event["scale"] for event in inferred), inferred
    drawn = [event for event in coordinator.events if event["kind"] == "drawn"]
    assert len(drawn) == 2
    for event in drawn:
        assert event["lists"] > 0
        assert event["width"] == 100
        assert event["same"] == [True, False]  # equal seeds draw equal batches, other seeds others
    rest = [event for event in coordinator.events if event["kind"] == "rest"]
    assert len(rest) == 2 * 2
    for event in rest:
        assert event["same"] == [True] * (event["batches"] - event["done"])


@pytest.mark.cluster
def test_both_loaders_learn_the_same(nothing_left, learned_run, partition_of, tmp_path):
    (config, ours), layout = learned_run, Layout(emulate=2)
    by_dgl = replace(config, loader="dgl")
    theirs = run_distributed(partition_of(2), layout, by_dgl, tmp_path / "run")
    results = {"pipeline": ours, "dgl": theirs}
    assert ours["test_accuracy"] == pytest.approx(theirs["test_accuracy"], abs=0.04)
    pulled = {name: sum(rank["bytes_remote"] for rank in result["phases"]) for name, result in results.items()}
    assert pulled["pipeline"] < pulled["dgl"] / 2
