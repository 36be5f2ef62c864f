"""Hops drawn on a partition: what they count, and that they tell what a real run pulled."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tutorial_lib.errors import InputError
from tutorial_lib.job.estimate import estimate
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.reach import MEASURED, SAMPLED, Setting
from tutorial_lib.job.sampled import calibrate, forecast, sample_hops, sizes_of_partition
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.trainer.config import TrainConfig


def setting_of(partition, **config) -> Setting:
    return Setting(**sizes_of_partition(partition), machines=partition.report.parts, config=TrainConfig(**config))


def test_all_neighbours_of_one_hop_are_counted_exactly(partition_of, small_dataset):
    """Of all training nodes in one batch; with the whole graph, nothing is left to chance."""
    partition, graph = partition_of(2), small_dataset.graph
    hops = sample_hops(partition, setting_of(partition, fanouts=(-1,), batch_size=10**6, cache=0, epochs=1), batches=2)
    part_of = torch.zeros(graph.num_nodes(), dtype=torch.int64)
    part_of[torch.from_numpy(partition.node_map[partition.report.nodes[0] :].copy())] = 1
    train = torch.from_numpy(partition.node_map[small_dataset.target_data["train_mask"][partition.node_map].numpy()])
    shares = train.split(round(len(train) / 2))  # in the order of the parts, as DGL gives ranks their seeds
    assert sum(map(len, shares)) == sum(partition.report.train_nodes)
    edges = rows = remote = asked = 0.0
    for part, seeds in enumerate(shares):
        sources = graph.in_edges(seeds)[0]
        inputs = torch.cat([sources, seeds]).unique()
        edges, rows = edges + len(sources) / 2, rows + len(inputs) / 2
        remote += int((part_of[inputs] != part).sum()) / 2
        asked += int((part_of[seeds] != part).sum()) / 2
    assert (hops.edges[0], hops.rows, hops.remote, hops.asked) == pytest.approx((edges, rows, remote, asked), rel=0.01)
    assert hops.source == SAMPLED
    assert hops.cut == partition.report.edge_cut_share


def test_equal_seeds_draw_equal_hops_and_leave_this_process_as_it_was(partition_of):
    partition = partition_of(2)
    setting = setting_of(partition, fanouts=(5, 5), batch_size=100)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    one, again, other = (sample_hops(partition, setting, batches=4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert replace(one, seconds=0.0) == replace(again, seconds=0.0)
    assert one.remote != other.remote


def test_lists_that_are_kept_are_not_asked_for(partition_of):
    partition = partition_of(2)
    settings = (setting_of(partition, fanouts=(5, 5), batch_size=100, cache=cache) for cache in (0, 10**5, 10**9))
    none, some, every = (sample_hops(partition, setting, batches=4) for setting in settings)
    assert none.lists == 0
    assert every.asked < 1  # of a rank whose first seeds are of the part before, two hops away
    assert 0 < some.lists <= 10**5 / 2 < every.lists
    assert 0 < some.asked < none.asked


def test_more_ranks_than_seeds_are_no_reason_to_fail(partition_of):
    partition = partition_of(2)
    setting = replace(setting_of(partition, fanouts=(5, 5)), trainers=700)
    assert setting.world > setting.train
    found = estimate(setting, sample_hops(partition, setting, batches=8))
    assert found.hops.sizes[0] == 1
    assert found.setting.steps == 1


@pytest.mark.parametrize("fanouts", [(5,), (5, 5), (-1, 3, 2)])
def test_a_step_is_measured_with_the_layers_of_the_job(partition_of, fanouts):
    partition = partition_of(2)
    setting = setting_of(partition, fanouts=fanouts, hidden_size=16, batch_size=50)
    speed = calibrate(setting, sample_hops(partition, setting, batches=2), repeats=1)
    assert speed.source == MEASURED
    assert speed.computing > 0
    assert speed.fetching > 0


def test_a_graph_with_several_types_has_no_forecast(tmp_path, partition_of):
    partition = partition_of(2)
    typed = replace(partition, manifest={**partition.manifest, "types": {"nodes": {}, "edges": {}}})
    with pytest.raises(InputError, match="one type of nodes"):
        sizes_of_partition(typed)
    assert forecast(typed, Layout(2), 2, TrainConfig(task="hetero")) is None


@pytest.mark.cluster
def test_a_run_pulls_and_sends_what_was_told_before(finished_run, data_root):
    run = finished_run
    used = json.loads((run.out / "job.json").read_text())["description"]["partition"]  # checksum of its node map
    folders = map(load_partition_folder, (data_root / "partitions").iterdir())
    partition = next(p for p in folders if p.manifest["files"]["node_map.npy"]["sha256"].startswith(used))
    config = TrainConfig.from_dict(run.result["config"])
    told = forecast(partition, Layout(2, "1gbit"), 2, config)
    assert told is not None
    events = [json.loads(line) for line in (run.out / "events.jsonl").read_text().splitlines()]
    row = 4 * told.setting.width
    steps = [event for event in events if event["kind"] == "step"]
    first = [event["bytes_remote"] / row for event in steps if event["epoch"] == 0]
    later = [event["bytes_remote"] / row for event in steps if event["epoch"] > 0]
    assert told.first == pytest.approx(sum(first) / len(first), rel=0.15)
    assert told.later == pytest.approx(sum(later) / len(later), rel=0.15)
    sent = sum(run.result["bytes_sent"].values())
    assert told.job == pytest.approx(sent, rel=0.25)  # of so few rows, headers and greetings are a part
    (_, seconds), beside = run.result["forecast"]["epoch_seconds"], run.result["forecast"]["bytes_sent"]
    assert beside == [pytest.approx(told.job, rel=0.02), sent]
    assert seconds == pytest.approx(sum(epoch["seconds"] for epoch in run.result["epochs"][1:]) / 2)
    lines = [line for line in run.printed.splitlines() if " forecast: " in line]
    (cache,) = (line for line in run.printed.splitlines() if " cache: " in line)
    assert f"cache: 200.0 kB of each trainer, room for {told.kept:.0%} of the remote rows, those needed" in cache
    assert ["it was" in line for line in lines] == [False, True]
    whole = estimate(told.setting, told.hops)
    assert whole.server == pytest.approx(max(peak["server"] for peak in run.result["peak_rss"].values()), rel=0.2)
