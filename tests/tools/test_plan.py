"""``plan``: estimates against measured runs, one sentence for each mistake, and jobs that need too much memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli.options import run
from tutorial_lib.tools.plan import Job, estimate, sizes_of
from tutorial_lib.trainer.config import TrainConfig

NUMBERS = ["--nodes", "100000", "--edges", "5000000", "--train-nodes", "8000"]
HUGE = ["--nodes", "111000000", "--edges", "3200000000", "--train-nodes", "1200000"]


def planned(capsys, *words: str) -> str:
    """Return the output of ``plan``. An InputError is raised unchanged."""
    run(["plan", *words])
    return capsys.readouterr().out


def job_at(scale: float, machines: int = 2, wire: float | None = None, trainers: int = 1, **config: Any) -> Job:
    """Return a job of three epochs on synthetic-products and two cores."""
    sizes = sizes_of(DataSource("synthetic-products", scale=scale))
    options = TrainConfig(**{"epochs": 3, **config})
    return Job(**sizes, machines=machines, trainers=trainers, config=options, wire=wire, cores=2)


# benchmarks/RESULTS.md, plan: MB of the largest server and trainer, MB of the job, seconds of a later epoch.
MEASURED = [
    (job_at(0.01), (468, 709, 68, 0.20)),
    (job_at(0.02, wire=1e9, fanouts=(10, 10, 10)), (498, 1048, 132, 0.62)),
    (job_at(0.02, 4, 2e8, cache=4_000_000, batch_size=500), (477, 728, 493, 1.32)),
    (job_at(0.04), (641, 1272, 261, 0.82)),
    (job_at(0.04, wire=2e8, cache=0), (635, 1100, 765, 3.02)),
    (job_at(0.04, 4, 1e9, fanouts=(15, 10)), (498, 825, 371, 0.39)),
    (job_at(0.06, wire=1e9, cache=8_000_000, fanouts=(10, 5)), (713, 887, 325, 0.33)),
    (job_at(0.06, 4, cache=32_000_000), (622, 1278, 1156, 1.64)),
    (job_at(0.08, wire=1e9), (902, 1978, 513, 2.40)),
    (job_at(0.08, 4, 2e8, fanouts=(10, 5, 5)), (708, 1541, 1197, 1.84)),
]


@pytest.mark.parametrize(("job", "measured"), MEASURED)
def test_an_estimate_is_near_the_measurement(job, measured):
    """Seconds and bytes within a factor of two, memory within 20 (server) and 35 (trainer) percent."""
    found = estimate(job)
    server, trainer, sent, seconds = measured
    assert found.server / 1e6 == pytest.approx(server, rel=0.2)
    assert found.trainer / 1e6 == pytest.approx(trainer, rel=0.35)
    assert sent / 2 < found.job_bytes / 1e6 < sent * 2
    assert seconds / 2 < found.epoch < seconds * 2


def test_one_machine_sends_nothing():
    found = estimate(job_at(0.04, 1, wire=1e6))
    assert (found.remote_rows, found.epoch_bytes, found.job_bytes, found.cache) == (0, 0, 0, 0)
    assert found.seconds["gradients"] == found.seconds["waiting for other ranks"] == 0


def test_a_larger_cache_fetches_fewer_rows_up_to_the_size_that_holds_all():
    jobs = [job_at(0.04, cache=size) for size in (0, 4_000_000, 20_000_000)]
    fetched = [estimate(job).later for job in jobs]
    assert fetched == sorted(fetched, reverse=True)
    assert fetched[0] > 2 * fetched[2]
    enough = job_at(0.04, cache=int(estimate(jobs[0]).cache))
    assert estimate(enough).later == estimate(job_at(0.04, cache=10**10)).later


def test_gradients_cost_what_a_ring_sends():
    """A machine of two sends the 4 bytes of each parameter once."""
    job = job_at(0.04, wire=1e8)
    parameters = 2 * (100 * 256 + 256 * 256 + 256 * 47) + 2 * 256 + 47
    exchange = 8 * 4 * parameters / (0.8 * 1e8) + 2 * 0.3e-3
    assert estimate(job).seconds["gradients"] == pytest.approx(exchange * job.steps)


def test_memory_of_a_machine_grows_with_its_processes():
    job = job_at(0.04)
    one = estimate(job)
    assert estimate(replace(job, trainers=2)).machine > one.machine + 0.3e9
    assert estimate(replace(job, servers=2)).machine > one.machine + 0.2e9
    assert estimate(replace(job, machines=4)).machine < one.machine


def test_numbers_alone_are_enough(capsys):
    told = json.loads(planned(capsys, *NUMBERS, "--memory", "100GB", "--json"))
    assert (told["job"]["machines"], told["job"]["steps"]) == (2, 4)
    assert told["estimate"]["server"] > 4e8
    assert told["estimate"]["epoch"] == pytest.approx(sum(told["estimate"]["seconds"].values()))


def test_plan_names_a_cache_size(capsys):
    printed = planned(capsys, *NUMBERS, "--memory", "100GB")
    size = printed.split("--cache ")[1].split()[0]
    assert size.endswith("MB")
    assert "--cache" not in planned(capsys, *NUMBERS, "--machines", "1")


def test_a_partition_names_its_machines_and_its_cut(capsys, partition_of):
    partition = partition_of(2)
    words = ["--part_config", str(partition.config), "--fanouts", "5,5", "--memory", "100GB", "--json"]
    job = json.loads(planned(capsys, *words))["job"]
    assert (job["machines"], job["cut"]) == (2, partition.report.edge_cut_share)
    assert job["nodes"] == sum(partition.report.nodes)
    with pytest.raises(InputError, match="the partition has 2 parts"):
        planned(capsys, *words, "--machines", "3")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "choose one of --dataset NAME, --part_config FILE and --nodes N"),
        (["--dataset", "cora"], "unknown data set"),
        ([*NUMBERS, "--machines", "0"], "--machines 0: a job has at least one"),
        ([*NUMBERS, "--emulate", "0"], "--emulate 0: a job has at least one"),
        ([*NUMBERS, "--cache", "auto"], "'auto' is not an amount of memory"),
        ([*NUMBERS[:4], "--train-nodes", "0"], "no training nodes"),
        (NUMBERS[:2], "--nodes needs --edges and --train-nodes"),
        ([*NUMBERS, "--wire", "fast"], "is not a rate"),
        ([*NUMBERS, "--memory", "much"], "not an amount of memory"),
        ([*NUMBERS, "--memory", "1GB"], "this does not fit"),
        (["--part_config", "/nowhere/x.json"], "is not a partition folder"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, words, says):
    with pytest.raises(InputError) as refused:
        planned(capsys, *words)
    assert says in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 2


def test_a_job_that_does_not_fit_is_refused_with_a_number_of_machines_that_would(capsys):
    with pytest.raises(InputError, match="a machine needs about") as refused:
        planned(capsys, *HUGE, "--machines", "2", "--memory", "64GB")
    count = refused.value.remedy.split("or use ")[1].split()[0]
    assert "memory of a server" in planned(capsys, *HUGE, "--machines", count, "--memory", "64GB")


def test_a_real_wire_may_be_faster_than_an_emulated_one(capsys):
    words = [*NUMBERS, "--memory", "100GB", "--json", "--wire", "100gbit"]
    assert json.loads(planned(capsys, *words, "--machines", "4"))["job"]["wire"] == 1e11
    with pytest.raises(InputError, match="is not a rate"):
        planned(capsys, *words, "--emulate", "4")


def test_the_imitation_has_the_numbers_that_are_generated(small_dataset):
    sizes, graph = sizes_of(DataSource("synthetic-products", scale=0.005)), small_dataset.graph
    assert sizes["nodes"] == graph.num_nodes()
    assert sizes["edges"] == pytest.approx(graph.num_edges(), rel=0.02)
    assert sizes["train"] == pytest.approx(int(graph.ndata["train_mask"].sum()), abs=2)
