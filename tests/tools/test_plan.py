"""``plan``: from numbers, a data set or a partition to a table; what to change first; mistakes in one sentence."""

from __future__ import annotations

import json
import math

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.job.estimate import estimate
from tutorial_lib.job.reach import Setting
from tutorial_lib.tools.cli import app
from tutorial_lib.tools.plan import changes, figures, helpful, moved_to, of_their_own, sizes_of, table
from tutorial_lib.trainer.config import TrainConfig

NUMBERS = ["--nodes", "100000", "--edges", "5000000", "--train-nodes", "8000"]


def planned(capsys, *words: str) -> str:
    """What ``plan`` prints; an InputError is raised as it is."""
    app(["plan", *words], standalone_mode=False)
    return capsys.readouterr().out


def test_numbers_alone_say_that_they_are_assumed(capsys):
    told = json.loads(planned(capsys, *NUMBERS, "--no-calibrate", "--memory", "100GB", "--json"))
    assert told["fits"] is True
    assert told["setting"]["machines"] == 2
    assert {figure["source"] for figure in told["figures"].values()} == {"given", "assumed"}
    assert told["figures"]["steps in an epoch"]["value"] == 4
    assert told["figures"]["memory of a server"]["value"] > 4e8
    assert told["first_change"]


def test_a_partition_is_drawn_on_and_a_step_is_measured(capsys, partition_of):
    config = partition_of(2).config
    words = ["--fanouts", "5,5", "--batch-size", "100", "--hidden-size", "16", "--memory", "100GB"]
    printed = planned(capsys, "--part_config", str(config), *words)
    assert f"partition: {config.parent}" in printed
    for word in ("sampled", "measured", "given", "change first: "):
        assert word in printed


def test_a_data_set_is_known_by_its_partition_if_an_earlier_command_has_left_one(capsys, tmp_path):
    words = ["--dataset", "synthetic-products", "--scale", "0.003", "--root", str(tmp_path), "--no-calibrate"]
    words += ["--fanouts", "5,5", "--memory", "100GB"]
    assert "sampled" not in planned(capsys, *words)
    assert not list(tmp_path.iterdir())  # its size is known without making it
    out = tmp_path / "partitions" / "synthetic-products-0-2-kaminpar-v1"
    source = ["--dataset", "synthetic-products", "--scale", "0.003", "--root", str(tmp_path)]
    app(["partition", *source, "--parts", "2", "--out", str(out)], standalone_mode=False)
    assert "sampled" in planned(capsys, *words)
    assert "sampled" not in planned(capsys, *words, "--emulate", "3")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "choose one of --dataset NAME, --part_config FILE and --nodes N"),
        (["--dataset", "cora"], "unknown data set"),
        ([*NUMBERS, "--machines", "0"], "--machines 0: a job has at least one"),
        ([*NUMBERS, "--emulate", "0"], "--emulate 0: a job has at least one"),
        ([*NUMBERS, "--fanouts", "10,5", "--layers", "3"], "--layers 3, and --fanouts has 2"),
        ([*NUMBERS[:4], "--train-nodes", "0"], "no training nodes"),
        (NUMBERS[:2], "--nodes needs --edges and --train-nodes"),
        ([*NUMBERS, "--wire", "fast"], "is not a rate"),
        ([*NUMBERS, "--memory", "much"], "not an amount of memory"),
        ([*NUMBERS, "--no-calibrate", "--memory", "1GB"], "this does not fit"),
        (["--part_config", "/nowhere/x.json"], "is not a partition folder"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, words, says):
    with pytest.raises(InputError) as refused:
        planned(capsys, *words)
    assert says in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 2


def test_what_does_not_fit_is_told_with_what_would(capsys):
    huge = ["--nodes", "111000000", "--edges", "3200000000", "--train-nodes", "1200000", "--no-calibrate"]
    with pytest.raises(InputError, match="a machine needs about") as refused:
        planned(capsys, *huge, "--machines", "2", "--memory", "64GB")
    assert "computer(s) with as much memory each: then" in refused.value.remedy
    assert "which fits" in refused.value.remedy
    count = refused.value.remedy.split()[1]
    assert "change first" in planned(capsys, *huge, "--machines", count, "--memory", "64GB")


def setting(**more) -> Setting:
    sizes = {"nodes": 10**6, "edges": 5 * 10**7, "width": 100, "classes": 47, "train": 10**5, "val": 10**4}
    return Setting(**{**sizes, "machines": 4, "wire": 1e10, "together": False, "cores": 4, **more})


def test_a_real_wire_may_be_faster_than_an_emulated_one(capsys):
    words = [*NUMBERS, "--no-calibrate", "--memory", "100GB", "--json", "--wire", "100gbit"]
    told = json.loads(planned(capsys, *words, "--machines", "4"))
    assert told["setting"]["wire"] == 1e11
    with pytest.raises(InputError, match="is not a rate"):
        planned(capsys, *words, "--emulate", "4")


def test_what_limits_a_job_is_what_to_change_first():
    quick, slow = estimate(setting()), estimate(setting(wire=5e7, config=TrainConfig(cache=0)))
    name, then = changes(slow)[0]
    assert name.startswith(("a wire of", "--cache"))
    assert then.epoch < slow.epoch / 3
    assert changes(quick)[0][0] == "8 computers"
    crowded = estimate(setting(memory=3e9, together=True))
    assert not crowded.fits
    name, then = changes(crowded)[0]
    assert name.endswith("with as much memory each")
    assert then.machine <= 3e9


def test_more_machines_help_less_on_a_slow_wire_and_no_further_than_there_are_seeds():
    fast, slow = (helpful(estimate(setting(wire=wire, config=TrainConfig(cache=0)))) for wire in (1e10, 2e7))
    assert fast > slow
    few = helpful(estimate(setting(train=4000)))
    assert few <= 4


def test_the_same_setting_gives_the_same_again():
    found = estimate(setting())
    assert moved_to(found, found.setting).epoch == pytest.approx(found.epoch)
    alone = moved_to(found, of_their_own(found.setting, 1))
    assert alone.job == 0
    assert alone.epoch > found.epoch


def test_every_figure_has_a_unit_and_a_source():
    found = estimate(setting(memory=math.inf))
    assert all(figure.unit and figure.source and figure.text for figure in figures(found))
    assert table(found).row_count == len(figures(found))


def test_the_imitation_has_the_numbers_that_are_generated(small_dataset):
    from tutorial_lib.job.source import DataSource

    sizes, graph = sizes_of(DataSource("synthetic-products", scale=0.005)), small_dataset.graph
    assert sizes["nodes"] == graph.num_nodes()
    assert sizes["edges"] == pytest.approx(graph.num_edges(), rel=0.02)
    assert sizes["train"] == pytest.approx(int(graph.ndata["train_mask"].sum()), abs=2)
