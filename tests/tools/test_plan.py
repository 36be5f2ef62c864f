"""``plan``: estimates agree with measurements and with each other, and a mistake is one sentence."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import dgl
import pytest
import torch

from tutorial_lib.errors import InputError
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.options import run_command
from tutorial_lib.tools.plan import Estimate, Job, estimate, job_sizes
from tutorial_lib.trainer.config import TrainConfig

NUMBERS = ["--nodes", "100000", "--edges", "5000000"]


def planned(capsys, *words: str) -> str:
    """Return the output of ``plan``. An InputError is raised unchanged."""
    run_command(["plan", *words])
    return capsys.readouterr().out


def job_at(scale: float, machines: int = 2, wire: float | None = None, **config: Any) -> Job:
    """Return a job of three epochs on synthetic-products and two cores."""
    sizes = job_sizes(DataSource("synthetic-products", scale=scale))
    return Job(**sizes, machines=machines, config=TrainConfig(**{"epochs": 3, **config}), wire=wire, cores=2)


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
    """Memory is within 25 percent, and bytes and seconds are within 30 percent."""
    found = estimate(job)
    server, trainer, sent, seconds = measured
    assert found.memory["server"] / 1e6 == pytest.approx(server, rel=0.25)
    assert found.memory["trainer"] / 1e6 == pytest.approx(trainer, rel=0.25)
    assert found.job_bytes / 1e6 == pytest.approx(sent, rel=0.3)
    assert found.epoch == pytest.approx(seconds, rel=0.3)


def random_job(draw: random.Random) -> Job:
    nodes, machines = round(10 ** draw.uniform(2, 9)), draw.choice([1, 2, 3, 8, 64])
    train = max(1, round(nodes * draw.uniform(0, 0.9)))
    fanouts = tuple(draw.choice([-1, 1, 5, 15]) for _ in range(draw.randint(1, 4)))
    more = {"loader": draw.choice(["auto", "dgl"]), "cache": draw.choice([0, 10**6, 10**10])}
    config = TrainConfig(draw.randint(1, 50), fanouts, draw.choice([1, 1000, 10**5]), ahead=draw.choice([0, 2]), **more)
    sizes = (nodes, round(nodes * 10 ** draw.uniform(-1, 2)) + 1, draw.choice([1, 500]), 47, train)
    places = {"machines": machines, "trainers": draw.choice([1, 4])}
    cut = draw.choice([None, draw.random() * (1 - 1 / machines)])
    more = {"wire": draw.choice([None, 1e8, 1e10]), "together": draw.random() < 0.5, "cores": draw.choice([1, 16])}
    return Job(*sizes, draw.randint(0, nodes - train), **places, **more, config=config, cut=cut)


def numbers_of(found: Estimate) -> dict[str, float]:
    numbers = {name: value for name, value in vars(found).items() if not isinstance(value, dict)}
    return {**numbers, **found.memory, **found.rows, **found.seconds}


def test_the_numbers_of_a_job_do_not_contradict_each_other():
    """Each inequality holds for random jobs, and between jobs that differ in one number."""
    draw = random.Random(0)

    def check(smaller: float, larger: float) -> None:
        assert smaller <= larger * (1 + 1e-9) + 1e-6, job

    for _ in range(300):
        job = random_job(draw)
        found = estimate(job)
        assert found.epoch == sum(found.seconds.values())
        numbers = numbers_of(found)
        assert all(math.isfinite(number) and number >= 0 for number in numbers.values())
        check(max(numbers["server"], numbers["trainer"]), numbers["machine"])
        check(job.machines * numbers["machine"], numbers["all machines"])
        check(numbers["fetched"], numbers["remote"])
        check(numbers["remote"], numbers["input"])
        check(job.config.epochs * found.epoch_bytes, found.job_bytes)
        assert job.machines > 1 or numbers["remote"] == found.job_bytes == found.cache == 0
        for name in ("wire", "cores"):  # faster links and more cores
            more = estimate(replace(job, **{name: (getattr(job, name) or 1e10) * 2}))
            check(more.epoch, found.epoch)
        worse = numbers_of(estimate(replace(job, cut=(found.cut + 1 - 1 / job.machines) / 2)))
        for name in ("epoch_bytes", "job_bytes", "fetched", "server", "machine", "epoch"):
            check(numbers[name], worse[name])
        check(estimate(replace(job, machines=2 * job.machines)).memory["server"], numbers["server"])
        for name in ("trainers", "edges"):
            check(numbers["machine"], estimate(replace(job, **{name: 2 * getattr(job, name)})).memory["machine"])
        larger = estimate(replace(job, config=replace(job.config, cache=job.config.cache * 2 + 10**6)))
        check(numbers["machine"], larger.memory["machine"])
        check(larger.epoch_bytes, found.epoch_bytes)
        full, twice = (replace(job.config, cache=math.ceil(factor * found.cache)) for factor in (1, 2))
        assert estimate(replace(job, config=full)).job_bytes == estimate(replace(job, config=twice)).job_bytes


def test_numbers_alone_are_enough(capsys):
    """Without --train-nodes, a tenth of the nodes are training nodes."""
    found = json.loads(planned(capsys, *NUMBERS, "--json"))
    assert (found["job"]["machines"], found["job"]["train"], found["estimate"]["steps"]) == (2, 10_000, 5)
    printed = planned(capsys, *NUMBERS)
    assert "5,000,000 edges (3.8% of them cut), 10,000 training nodes" in printed
    assert "MB holds all remote rows" in printed.split("--cache ")[1]
    assert "(25.0% of them cut)" in planned(capsys, *NUMBERS, "--cut", "0.25")


def test_a_graph_of_your_own_is_measured(tmp_path):
    graph = dgl.rand_graph(50, 200)
    graph.ndata["label"], graph.ndata["feat"] = torch.arange(50) % 3, torch.rand(50, 7)
    for name, chosen in {"train": range(30), "val": range(30, 40), "test": range(40, 50)}.items():
        graph.ndata[f"{name}_mask"] = torch.isin(torch.arange(50), torch.tensor(chosen))
    dgl.save_graphs(str(tmp_path / "mine.dgl"), graph)
    sizes = job_sizes(DataSource(str(tmp_path / "mine.dgl"), root=tmp_path))
    assert sizes == {"nodes": 50, "edges": 200, "width": 7, "classes": 3, "train": 30, "val": 10}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "choose one of --dataset NAME, and --nodes N with --edges N"),
        (NUMBERS[:2], "choose one of --dataset NAME, and --nodes N with --edges N"),
        (["--dataset", "cora"], "unknown data set"),
        ([*NUMBERS, "--machines", "0"], "machines 0: plan accepts 1 to"),
        ([*NUMBERS, "--emulate", "0"], "machines 0: plan accepts 1 to"),
        ([*NUMBERS, "--cache", "auto"], "'auto' is not an amount of memory"),
        ([*NUMBERS, "--train-nodes", "-5"], "train -5: plan accepts 1 to"),
        ([*NUMBERS, "--wire", "fast"], "is not a rate"),
        ([*NUMBERS, "--cut", "2"], "cut 2.0"),
        (["--dataset", "synthetic-academic"], "plan needs a graph with features, labels and one type of nodes"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, words, message):
    with pytest.raises(InputError) as refused:
        planned(capsys, *words)
    assert message in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 2


def test_the_sizes_of_the_imitation_are_those_of_the_generated_graph(small_dataset):
    sizes, graph = job_sizes(DataSource("synthetic-products", scale=0.005)), small_dataset.graph
    assert sizes["nodes"] == graph.num_nodes()
    assert sizes["edges"] == pytest.approx(graph.num_edges(), rel=0.02)
    assert sizes["train"] == pytest.approx(int(graph.ndata["train_mask"].sum()), abs=2)
