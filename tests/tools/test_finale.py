"""The finale: settings and state alone, then real ones: on files in OGB's format, and broken off and continued."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import check_predictions, heed_ctrl_c, wait_for_event

from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.data.ogb import SPECS
from tutorial_lib.errors import InputError, JobError
from tutorial_lib.files import write_json
from tutorial_lib.job.display import PUBLISHED_NODES, Reporter, comparison_table
from tutorial_lib.job.folder import own_run_folder
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli.jobs import parse_machine_counts
from tutorial_lib.tools.cli.options import run
from tutorial_lib.tools.finale.figures import memory_figure, scaling_figure
from tutorial_lib.tools.finale.forecast import Forecast
from tutorial_lib.tools.finale.report import write_report
from tutorial_lib.tools.finale.script import Finale, PeakMemory, startup_of
from tutorial_lib.tools.finale.settings import FinaleSettings, State, recipe
from tutorial_lib.trainer.config import TrainConfig

QUICK = ["--fanouts", "5,5", "--hidden-size", "32", "--wire", "none"]


def test_a_folder_with_other_settings_is_refused_and_they_are_named(tmp_path):
    settings = FinaleSettings()
    tmp_path.joinpath("a").mkdir()
    State(tmp_path / "a", settings).finish("machines", {})
    assert State(tmp_path / "a", settings).steps == {"machines": {}}
    other = dataclasses.replace(settings, config=TrainConfig(epochs=30), layout=Layout(4, "1gbit"))
    with pytest.raises(InputError, match=r"config\.epochs was 10, now 30; layout\.emulate was 2, now 4"):
        State(tmp_path / "a", other)


@pytest.mark.parametrize("content", ["{", "[]", '{"settings": 1, "steps": {}}'])
def test_a_damaged_state_is_refused(tmp_path, content):
    (tmp_path / "finale.json").write_text(content)
    with pytest.raises(InputError, match=r"finale\.json cannot be read"):
        State(tmp_path, FinaleSettings())


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        State(tmp_path, FinaleSettings())


def test_two_finales_in_one_folder(tmp_path):
    finale = Finale(FinaleSettings(scaling=()), tmp_path, Reporter())
    with own_run_folder(tmp_path), pytest.raises(InputError, match="another finale is running"):
        finale.run()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_users_is_not_touched_by_looking_at_it(tmp_path):
    """Not even a file of the name that earlier versions locked."""
    (tmp_path / ".lock").write_text("mine")
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        Finale(FinaleSettings(scaling=()), tmp_path, Reporter()).run()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {".lock": "mine", "thesis.txt": "mine"}


def test_predictions_that_are_not_those_of_the_trainers_are_an_error(tmp_path):
    """One of 200 classes is changed, where accuracy is counted."""
    finale = Finale(FinaleSettings(scaling=()), tmp_path, Reporter())
    finale.state = State(tmp_path, FinaleSettings(scaling=()))
    label = np.arange(200) % 7
    masks = {name: np.arange(200) % 2 == k for k, name in enumerate(("val", "test"))}
    np.savez(tmp_path / "splits.npz", label=label, train=label < 0, **masks)
    np.save(tmp_path / "predictions.npy", label)
    finale.state.finish("training", {"result": {"val_accuracy": 1.0, "test_accuracy": 1.0}})
    assert finale._predictions() == {"val": 1.0, "test": 1.0}
    label[101] += 1
    np.save(tmp_path / "predictions.npy", label)
    with pytest.raises(JobError, match=r"gives test accuracy 0\.990000, the trainers reported 1\.000000"):
        finale._predictions()


def test_what_changes_no_finished_step_may_differ(tmp_path):
    State(tmp_path, FinaleSettings()).finish("machines", {})
    other = FinaleSettings(layout=Layout(2, "1gbit", stall_timeout=900), scaling=(1,))
    assert State(tmp_path, other).steps == {"machines": {}}


def test_a_finale_that_failed_in_its_first_step_continues(tmp_path, monkeypatch):
    settings = FinaleSettings(scaling=())
    monkeypatch.setattr(Finale, "_machines", lambda _self: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            Finale(settings, tmp_path / "out", Reporter()).run()
    assert "machines" not in State(tmp_path / "out", settings).steps


def test_a_training_that_was_not_written_down_is_not_repeated(tmp_path, monkeypatch):
    """The script was stopped between the end of the job and the note of it."""
    settings = FinaleSettings(scaling=())
    finale = Finale(settings, tmp_path, Reporter())
    finale.state = State(tmp_path, settings)
    finale.state.finish("partition", {"folder": str(tmp_path)})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text('{"epochs": []}')
    (tmp_path / "run" / "predictions.npy").write_text("")
    assert finale._training() == {"result": {"epochs": []}}
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": DataSource("cora")}, "unknown data set 'cora'"),
        ({"source": DataSource("synthetic-products", scale=9.0)}, "scale 9.0 is outside"),
        ({"layout": Layout(2, "fast")}, "'fast' is not a rate"),
        ({"layout": Layout(2, device="cuda")}, "cuda"),
        ({"scaling": (1, 1000)}, "cannot emulate 1000"),
    ],
)
def test_what_cannot_be_done_is_found_before_the_first_step(changes, words, tmp_path):
    with pytest.raises(InputError, match=words):
        Finale(dataclasses.replace(FinaleSettings(), **changes), tmp_path / "out", Reporter())
    assert not (tmp_path / "out").exists()


def test_a_scale_is_for_the_generated_graph():
    with pytest.raises(InputError, match="has one size"):
        run(["finale", "--dataset", "ogbn-products", "--scale", "0.1"])


def test_startup_is_unknown_without_steps(tmp_path):
    """A full disk ends events.jsonl early, not the job."""
    (tmp_path / "events.jsonl").write_text('{"kind": "stage", "time": 5.0}\n{"kind": "st')
    assert startup_of(tmp_path / "events.jsonl") is None
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('\n{"kind": "step", "time": 9.5}\n')
    assert startup_of(tmp_path / "events.jsonl") == 4.5


def test_several_machines_for_scaling_need_machines():
    with pytest.raises(InputError, match="several machines"):
        FinaleSettings(layout=Layout(emulate=None), scaling=(1, 2))
    with pytest.raises(InputError, match="at least 1"):
        FinaleSettings(scaling=(0, 2))


def test_the_published_recipe_makes_the_same_steps_on_any_number_of_ranks():
    assert recipe(1) == {"epochs": 20, "batch_size": 1024, "learning_rate": 0.003}
    assert [recipe(ranks)["batch_size"] * ranks for ranks in (2, 4, 8)] == [1024] * 3
    assert recipe(3)["batch_size"] == 342


def test_the_full_recipe_is_not_started_by_mistake(tmp_path, monkeypatch):
    """No folder is made; --full has the published recipe, and an option of the user's goes before it."""
    seen = []
    monkeypatch.setattr(Forecast, "of", lambda settings: seen.append(settings) or Forecast(1, 1, 9e9, 8e9, 0.0, 60.0))
    words = ["finale", "--dataset", "synthetic-products", "--full", "--out", str(tmp_path / "out")]
    for more in ([], ["--epochs", "3", "--batch-size", "100"]):
        with pytest.raises(InputError, match="nobody can be asked"):
            run([*words, *more])
    assert not (tmp_path / "out").exists()
    configs = [(s.config.epochs, s.config.batch_size, s.config.learning_rate) for s in seen]
    assert configs == [(20, 512, 0.003), (3, 100, 0.003)]
    assert seen[0].source.scale == 1.0


def test_a_default_finale_has_its_own_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(Finale, "run", _stop)
    with pytest.raises(_Stopped) as stopped:
        run(["finale", "--yes", "--root", str(tmp_path), "--out", str(tmp_path / "out")])
    settings = stopped.value.args[0]
    assert settings == dataclasses.replace(
        FinaleSettings(), source=dataclasses.replace(FinaleSettings().source, root=tmp_path)
    )


class _Stopped(Exception):
    pass


def _stop(finale: Finale) -> None:
    raise _Stopped(finale.settings)


def test_a_data_set_that_appears_meanwhile_is_not_what_is_continued(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Finale, "run", lambda finale: seen.append(finale) or _stop(finale))
    root, out = tmp_path / "root", tmp_path / "out"
    with pytest.raises(_Stopped):
        run(["finale", "--yes", "--root", str(root), "--out", str(out)])
    write_as_ogb(load_dataset("synthetic-products", scale=0.002, root=tmp_path), root / "ogbn_products")
    out.mkdir(exist_ok=True)
    write_json(out / "options.json", seen[0].options)
    with pytest.raises(_Stopped):
        run(["finale", "--resume", "--trust", "--out", str(out)])
    assert [finale.settings.source.name for finale in seen] == ["synthetic-products"] * 2


def test_resume_needs_a_finale(tmp_path):
    for words in (["--resume"], ["--resume", "--out", str(tmp_path)]):
        with pytest.raises(InputError, match="--resume needs --out, the folder of a finale"):
            run(["finale", *words])


def test_published_figures_stand_beside_the_published_graph_only():
    def of(dataset: str, nodes: list[int]):
        accuracies = {"val_accuracy": 0.9, "test_accuracy": 0.7}
        return comparison_table({"dataset": dataset, "partition": {"nodes": nodes}, **accuracies})

    assert of("ogbn-products", [PUBLISHED_NODES - 9, 9]).columns[2]._cells == ["0.9170 +/- 0.0009", "0.7870 +/- 0.0036"]
    assert "not the published graph" in of("ogbn-products", [60])
    assert "not ogbn-products" in of("synthetic-products", [PUBLISHED_NODES])


def test_numbers_of_machines():
    assert parse_machine_counts("4,1,4") == (1, 4)
    assert parse_machine_counts("none") == ()
    with pytest.raises(InputError, match="--scaling 'many'"):
        parse_machine_counts("many")


def test_no_report_before_there_is_a_result(tmp_path):
    State(tmp_path, FinaleSettings()).finish("machines", {})
    with pytest.raises(InputError, match="nothing to report"):
        write_report(tmp_path)


def test_the_numbers_in_the_pictures_have_the_units_of_their_labels():
    memory = memory_figure({"machine-0": {"server": 300_000_000, "trainer": 1_700_000_000}}).axes[0]
    assert [text.get_text() for text in memory.texts] == ["0.30", "1.70"]
    assert [label.get_text() for label in memory.get_yticklabels()] == ["machine-0 server", "machine-0 trainer"]
    assert memory.get_xlabel().startswith("GB of resident memory")
    assert [bar.get_width() for bar in memory.patches] == pytest.approx([0.3, 1.7])
    run = {"seconds": 1.5, "remote_bytes": 2e6, "startup": None, "val_accuracy": 0.7}
    seconds, wire, accuracy, startup = scaling_figure([{**run, "machines": k, "steps": 40 // k} for k in (1, 2)]).axes
    assert [text.get_text() for text in seconds.texts] == ["1.5", "1.5"]
    assert [text.get_text() for text in wire.texts] == ["2", "2"]
    assert wire.get_title().startswith("MB over the wire")
    assert [text.get_text() for text in accuracy.texts] == ["0.7", "0.7"]
    assert [bar.get_height() for bar in wire.patches] == pytest.approx([2, 2])
    assert [text.get_text() for text in startup.texts] == ["?", "?"]
    assert [label.get_text() for label in startup.get_xticklabels()] == ["1\n40 steps", "2\n20 steps"]


def test_peak_memory_is_that_of_the_block():
    with PeakMemory() as large:
        np.ones(40_000_000)
    with PeakMemory() as small:
        pass
    assert large.peak - small.peak > 200_000_000


def write_as_ogb(dataset: Dataset, folder: Path) -> None:
    """A data set in the files of ogbn-products: one row for both directions of an edge."""

    def write(name: str, values) -> None:
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(values).to_csv(path, header=False, index=False, compression={"method": "gzip", "compresslevel": 1})

    graph = dataset.graph
    rows = np.stack([ends.numpy() for ends in graph.edges(order="eid")], axis=1)
    rows = rows[rows[:, 0] < rows[:, 1]]
    write("raw/edge", rows)
    write("raw/num-node-list", [graph.num_nodes()])
    write("raw/num-edge-list", [len(rows)])
    write("raw/node-label", graph.ndata["label"].numpy())
    write("raw/node-feat", graph.ndata["feat"].numpy().round(3))
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        write(f"split/sales_ranking/{theirs}", graph.ndata[f"{ours}_mask"].nonzero().flatten().numpy())
    (folder / "RELEASE_v1.txt").write_text("v1\n")


@pytest.mark.cluster
def test_the_files_of_ogbn_products_are_taken_when_they_are_there(
    emulation, nothing_left, tmp_path, monkeypatch, capsys
):
    """The same command as for the real data; only the published counts, model and wire are those of a small data set.

    It runs the published recipe. No published figure is named, as the graph is another one; of the published one it is.
    """
    small = load_dataset("synthetic-products", scale=0.002, root=tmp_path / "generated")
    counts = (small.graph.num_nodes(), small.graph.num_edges())
    monkeypatch.setitem(SPECS, "ogbn-products", (*counts, *SPECS["ogbn-products"][2:]))
    write_as_ogb(small, tmp_path / "root" / "ogbn_products")
    out = tmp_path / "finale"
    arguments = ["finale", *QUICK]
    arguments += ["--root", str(tmp_path / "root"), "--out", str(out)]
    run(arguments)
    printed = capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert result["dataset"] == "ogbn-products"
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(20))
    assert (result["config"]["batch_size"], result["config"]["learning_rate"]) == (512, 0.003)
    check_predictions(out, result, load_dataset("ogbn-products", root=tmp_path / "root"))
    page = (out / "report.html").read_text()
    assert "<strong>not</strong> the published one" in page
    assert "0.7870" not in page + printed
    assert page.count("data:image/png;base64,") == 3
    assert "Bytes that each machine sent" in page
    assert "python -m tutorial_lib trace" in page
    assert "src=" not in page.replace('src="data:image', "")
    assert "2 (emulated)" in page
    assert "<td>not shaped</td>" in page
    run(arguments)
    printed = capsys.readouterr().out
    assert printed.count("done before") == 5
    assert "rank 0 joined" not in printed
    assert (out / "report.html").read_text() == page
    state = json.loads((out / "finale.json").read_text())
    state["steps"]["data"]["nodes"] = PUBLISHED_NODES
    (out / "finale.json").write_text(json.dumps(state))
    assert "0.7870 ± 0.0036" in write_report(out).read_text()
    state["settings"]["layout"] |= {"emulate": None, "real": {"ssh_port": 22}}  # what they are, nobody knows
    (out / "finale.json").write_text(json.dumps(state))
    page = write_report(out).read_text()
    assert "2 (over ssh)" in page
    assert "<td>not set by this command</td>" in page


@pytest.mark.cluster
def test_broken_off_and_continued(emulation, nothing_left, data_root, tmp_path):
    out = tmp_path / "finale"
    arguments = [sys.executable, "-m", "tutorial_lib", "finale", "--scale", "0.005", "--epochs", "12", *QUICK]
    arguments += ["--batch-size", "100", "--scaling", "1,2", "--root", str(data_root), "--out", str(out)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(arguments, **options, start_new_session=True, preexec_fn=heed_ctrl_c)
    try:
        wait_for_event(out / "run", "checkpoint", first)
        os.killpg(first.pid, signal.SIGINT)
        errors = first.communicate(timeout=60)[1]
    finally:
        first.kill()
    assert first.returncode == 130
    again = f"finale --resume --out {out}"
    assert f"to continue: python -m tutorial_lib {again}\n" in errors
    assert not (out / "result.json").exists()
    (out / "scaling" / "1-machines").mkdir(parents=True)  # what a start that was broken off there would leave
    (out / "scaling" / "1-machines" / "events.jsonl").write_text("")
    second = subprocess.run([*arguments[:3], *again.split(), "--trust"], **options, timeout=300)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "the data set: done before" in second.stdout
    for words in ("from the checkpoint", "synthetic-products, not ogbn-products: no published accuracy"):
        assert words in second.stdout
    result = json.loads((out / "result.json").read_text())
    assert result["resumed_epochs"] >= 1
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(12))
    assert (out / "scaling" / "1-machines-broken-1").is_dir()
    page = (out / "report.html").read_text()
    assert "not ogbn-products" in page
    assert "With more machines" in page
    scaling = json.loads((out / "finale.json").read_text())["steps"]
    rates = [scaling[f"scaling-{count}"]["result"]["config"]["learning_rate"] for count in (1, 2)]
    assert rates == pytest.approx([0.003, 0.006])  # it grows with the machines; the training has two
    other = subprocess.run([*arguments, "--seed", "7"], **options, timeout=60)
    assert other.returncode == 2
    assert other.stderr.startswith(f"error: {out} holds a finale with other settings: ")
    assert "source.seed was 0, now 7" in other.stderr
