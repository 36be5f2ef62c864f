"""``plan``: estimates agree with measurements and are consistent, and a mistake is reported in one sentence."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.options import run_command
from tutorial_lib.tools.plan import Job, estimate, job_sizes
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
    (job_at(0.01), (425, 566, 44, 0.20)),
    (job_at(0.02, wire=1e9, fanouts=(10, 10, 10)), (451, 818, 85, 0.62)),
    (job_at(0.02, 4, 2e8, cache=4_000_000, batch_size=500), (435, 648, 386, 1.32)),
    (job_at(0.04), (536, 1020, 170, 0.82)),
    (job_at(0.04, wire=2e8, cache=0), (528, 886, 599, 3.02)),
    (job_at(0.04, 4, 1e9, fanouts=(15, 10)), (436, 612, 175, 0.39)),
    (job_at(0.06, wire=1e9, cache=8_000_000, fanouts=(10, 5)), (567, 645, 147, 0.33)),
    (job_at(0.06, 4, cache=32_000_000), (499, 1054, 832, 1.64)),
    (job_at(0.08, wire=1e9), (745, 1302, 336, 2.40)),
    (job_at(0.08, 4, 2e8, fanouts=(10, 5, 5)), (548, 1003, 757, 1.84)),
]


@pytest.mark.parametrize(("job", "measured"), MEASURED)
def test_estimates_are_near_measurements(job, measured):
    """Memory is within 25 percent, and bytes and seconds are within 30 percent."""
    found = estimate(job)
    server, trainer, sent, seconds = measured
    assert found.memory["server"] / 1e6 == pytest.approx(server, rel=0.25)
    assert found.memory["trainer"] / 1e6 == pytest.approx(trainer, rel=0.25)
    assert found.job_bytes / 1e6 == pytest.approx(sent, rel=0.3)
    assert found.epoch == pytest.approx(seconds, rel=0.3)


@pytest.mark.parametrize("wire", [None, 1e8, 1e10])
@pytest.mark.parametrize("machines", [1, 2, 8, 64])
@pytest.mark.parametrize("scale", [0.01, 0.08, 1.0, 8.0])
def test_estimates_are_consistent(scale, machines, wire):
    job = job_at(scale, machines, wire)
    found = estimate(job)
    assert found.epoch == sum(found.seconds.values())
    assert max(found.memory["server"], found.memory["trainer"]) < found.memory["machine"]
    assert machines * found.memory["machine"] <= found.memory["all machines"] * (1 + 1e-9)
    assert 0 <= found.rows["fetched"] <= found.rows["remote"] <= found.rows["input"]
    assert found.epoch_bytes * job.config.epochs <= found.job_bytes
    for more in ({"wire": 2 * (wire or 1e11)}, {"cores": 64}):
        assert estimate(replace(job, **more)).epoch <= found.epoch * (1 + 1e-9)
    worse = estimate(replace(job, cut=(found.cut + 1 - 1 / machines) / 2))
    assert (worse.epoch_bytes, worse.memory["server"]) >= (found.epoch_bytes, found.memory["server"])
    larger = estimate(replace(job, config=replace(job.config, cache=2 * math.ceil(found.cache))))
    assert (larger.epoch_bytes < found.epoch_bytes) == (job.config.cache < found.cache)


def test_plan_without_data_set(capsys):
    """Without --train-nodes, a tenth of the nodes are training nodes."""
    found = json.loads(planned(capsys, *NUMBERS, "--json"))
    assert (found["job"]["machines"], found["job"]["train"], found["estimate"]["steps"]) == (2, 10_000, 5)
    printed = planned(capsys, *NUMBERS)
    assert "5,000,000 edges (3.8% of them cut), 10,000 training nodes" in printed
    assert "MB holds all remote rows" in printed.split("--cache ")[1]
    assert "(25.0% of them cut)" in planned(capsys, *NUMBERS, "--cut", "0.25")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "choose one of --dataset NAME, and --nodes N with --edges N"),
        ([*NUMBERS, "--emulate", "0"], "machines must be between 1 and"),
        ([*NUMBERS, "--cache", "auto"], "'auto' is not an amount of memory"),
        (["--dataset", "synthetic-academic"], "plan needs a graph with features, labels and one type of nodes"),
    ],
)
def test_mistake_gives_one_sentence(capsys, words, message):
    with pytest.raises(InputError) as refused:
        planned(capsys, *words)
    assert message in refused.value.message
    assert "\n" not in refused.value.message
