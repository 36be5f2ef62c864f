"""The finale and its report: checks before the first step, trainings that are kept, and two real finales."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import heed_ctrl_c, wait_for_event

from support import finale_report
from tutorial_lib.data import load_dataset
from tutorial_lib.errors import InputError, JobError
from tutorial_lib.files import write_json
from tutorial_lib.job.display import Reporter
from tutorial_lib.job.folder import own_run_folder
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.findings import Findings
from tutorial_lib.tools import finale as module
from tutorial_lib.tools.finale import Finale
from tutorial_lib.tools.published import PUBLISHED_NODES
from tutorial_lib.trainer.config import TrainConfig


def make_finale(out: Path, scale: float = 0.1, layout: Layout | None = None, scaling=(), **config) -> Finale:
    source = DataSource("synthetic-products", scale=scale)
    return Finale(source, layout or Layout(2), TrainConfig(**config), scaling, out, Reporter())


# --- before the first step


@pytest.mark.parametrize(
    ("layout", "scaling", "words"),
    [
        (Layout(2, "fast"), (), "'fast' is not a rate"),
        (Layout(2, device="cuda"), (), "cuda"),
        (Layout(2), (1, 1000), "cannot emulate 1000"),
        (Layout(None), (1, 2), r"--scaling 2: there are 1 machine\(s\)"),
    ],
)
def test_wrong_settings_are_found_before_the_first_step(layout, scaling, words, tmp_path):
    with pytest.raises(InputError, match=words):
        make_finale(tmp_path / "out", layout=layout, scaling=scaling)
    assert not (tmp_path / "out").exists()


def test_short_runs_use_the_first_real_machines(tmp_path):
    (tmp_path / "ip_config.txt").write_text("10.0.0.1\n10.0.0.2\n")
    layout = Layout(None, real=RealMachines(tmp_path / "ip_config.txt"))
    layouts = make_finale(tmp_path / "out", layout=layout, scaling=(1, 2)).layouts
    assert [len(layouts[count].cluster().machines) for count in (1, 2)] == [1, 2]
    with pytest.raises(InputError, match=r"--scaling 4: there are 2 machine\(s\)"):
        make_finale(tmp_path / "out", layout=layout, scaling=(4,))


def test_a_folder_of_somebody_else_is_refused_and_not_changed(tmp_path):
    with own_run_folder(tmp_path), pytest.raises(InputError, match="another program is running"):
        make_finale(tmp_path).run({})
    (tmp_path / "options.json").write_text("of a run of train")
    with pytest.raises(InputError, match="is not a finale with these settings"):
        make_finale(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of a run of train"]


def test_the_estimate_is_near_the_measured_finale_at_full_size(tmp_path, monkeypatch, capsys):
    """benchmarks/RESULTS.md: 28 minutes on two cores, with the published recipe."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(module, "ask", lambda _question: pytest.fail("a question"))
    make_finale(tmp_path, 1.0, epochs=20, batch_size=512).confirm(yes=True)
    found = re.fullmatch(
        r"forecast: 2,449,029 nodes, 123,718,280 edges; about ([\d.]+) GB of memory on each machine, "
        r"(\d+) min \(it may be half or twice as much\)\n",
        capsys.readouterr().out,
    )
    assert 3 < float(found[1]) < 12
    assert 14 < float(found[2]) < 56


def test_a_large_run_needs_an_answer(tmp_path, monkeypatch):
    make_finale(tmp_path, 0.01, epochs=1).confirm(yes=False)
    for answer in (True, False, None):
        monkeypatch.setattr(module, "ask", lambda _question, answer=answer: answer)
        with contextlib.nullcontext() if answer else pytest.raises(InputError, match="nobody agreed"):
            make_finale(tmp_path, epochs=100_000).confirm(yes=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "synthetic-products", "--full", "--epochs", "1000", "--out", "out"], "nobody agreed to it"),
        (["--resume"], "--resume needs --out, the folder of the run"),
        (["--scaling", "many"], "--scaling 'many'"),
    ],
)
def test_the_command_refuses(words, message, run_here, tmp_path):
    done = run_here("finale", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ("synthetic-products", 0.1, 10, 1000, 0.006, ())),
        ("--full --emulate 4 --scaling 2,1,2", ("synthetic-products", 1.0, 20, 256, 0.003, (1, 2))),
        ("--full --epochs 3 --machines 1", ("synthetic-products", 1.0, 3, 1024, 0.003, ())),
    ],
)
def test_defaults_and_the_published_recipe(words, expected, monkeypatch, run_here):
    """``--full`` selects the published recipe: 1024 seed nodes in a step of all trainers together."""
    seen = []

    def stop(finale: Finale, _options: dict) -> None:
        seen.append(finale)
        raise InputError("stopped")

    monkeypatch.setattr(Finale, "run", stop)
    assert "stopped" in run_here("finale", "--yes", *words.split()).stderr
    source, config = seen[0].source, seen[0].config
    found = (source.name, source.scale, config.epochs, config.batch_size, config.learning_rate, seen[0].scaling)
    assert found == expected


# --- with trainings that take no time


@pytest.fixture
def trained(monkeypatch, data_root):
    """The trainings of a finale, which only write a result with wrong classes for the last ``wrong[0]`` test nodes."""
    calls, wrong = [], [0]

    def train(source, layout, config, out, _display, keep):
        rate, cores = round(config.learning_rate, 6), len(os.sched_getaffinity(0))
        calls.append((out.name, layout.emulate, rate, keep.resume, cores))
        data = load_dataset("synthetic-products", scale=0.002, root=data_root).target_data
        predictions, accuracy = data["label"].numpy().copy(), {"val_accuracy": 1.0, "test_accuracy": 1.0}
        predictions[data["test_mask"].nonzero()[: wrong[0]].numpy()] += 1
        out.mkdir(parents=True)
        np.save(out / "predictions.npy", predictions)
        nodes = source.report.nodes if hasattr(source, "report") else []
        result = {"config": config.to_dict(), "partition": {"nodes": nodes}, **accuracy}
        write_json(out / "result.json", result)
        return result

    monkeypatch.setattr(module, "run_distributed", train)
    monkeypatch.setattr(module, "examine_machines", lambda _layout: Findings())
    return calls, wrong


def run_again(out: Path, root: Path, scale: float = 0.002, **config) -> dict:
    finale = make_finale(out, scale, scaling=(1, 2), learning_rate=0.004, **config)
    finale.source = DataSource("synthetic-products", scale=scale, root=root)
    return finale.run({"epochs": 1})


def test_a_finished_training_is_not_repeated(trained, data_root, tmp_path):
    calls, _ = trained
    (tmp_path / "scaling" / "1-machines").mkdir(parents=True)  # an interrupted start without a checkpoint
    settings = {"dataset": "synthetic-products", "scale": 0.002, "machines": 2}
    settings |= TrainConfig(learning_rate=0.004).to_dict()
    write_json(tmp_path / "finale.json", {"settings": settings, "steps": {}})
    assert run_again(tmp_path, data_root)["test_accuracy"] == 1.0
    cores = len(os.sched_getaffinity(0))
    assert calls == [
        ("run", 2, 0.004, False, cores),
        ("1-machines", 1, 0.002, False, max(1, cores // 2)),
        ("2-machines", 2, 0.004, False, min(cores, 2 * max(1, cores // 2))),
    ]
    assert len(list(tmp_path.glob("scaling/1-machines-broken-*"))) == 1
    steps = json.loads((tmp_path / "finale.json").read_text())["steps"]
    assert list(steps) == ["machines", "data", "partition", "training", "predictions", "scaling-1", "scaling-2"]
    assert json.loads((tmp_path / "options.json").read_text()) == {"epochs": 1}
    run_again(tmp_path, data_root)
    assert len(calls) == 3


def test_other_settings_and_wrong_predictions_are_errors(trained, data_root, tmp_path):
    trained[1][0] = 1
    with pytest.raises(JobError, match=r"predictions\.npy has test accuracy 0\.99\d+, the trainers counted 1\.0"):
        run_again(tmp_path, data_root)
    for changes in ({"epochs": 3}, {"scale": 0.003}):
        with pytest.raises(InputError, match="is not a finale with these settings"):
            run_again(tmp_path, data_root, **changes)


# --- the report


def test_the_report_shows_published_figures_only_for_the_published_graph(tmp_path):
    with pytest.raises(InputError, match="finished training"):
        finale_report.write_report(tmp_path)
    write_json(tmp_path / "finale.json", {"steps": {"predictions": {"seconds": 1.0}}})
    write_json(tmp_path / "options.json", {"ip_config": "ip_config.txt"})
    result = {
        "dataset": "ogbn-products",
        **dict.fromkeys(("machines", "servers_per_machine", "trainers_per_machine"), 2),
        **dict.fromkeys(("samplers_per_trainer", "resumed_epochs"), 0),
        **{"val_accuracy": 0.9, "test_accuracy": 0.7, "config": TrainConfig().to_dict(), "versions": {}, "phases": []},
        "epochs": [{"epoch": k, "loss": 2.0 - k, "val_accuracy": 0.5, "seconds": 1.0 + k} for k in range(2)],
        **{"peak_rss": {"machine-0": {"server": 300_000_000}}, "bytes_sent": {"machine-0": 5_000_000}},
    }
    pages = []
    for nodes in (PUBLISHED_NODES - 9, 51):
        result["partition"] = {"nodes": [9, nodes], "edges": [7, 8], "edge_cut_share": 0.25}
        write_json(tmp_path / "result.json", result)
        pages.append(finale_report.write_report(tmp_path).read_text())
    assert ["0.7870 ± 0.0036" in page for page in pages] == [True, False]
    assert "src=" not in pages[1].replace('src="data:image', "")
    for words in ("published one: 60 nodes, 15 directed edges", "2 (real)", "server 300.0 MB</td>\n<td>5.0 MB"):
        assert words in pages[1]


@pytest.mark.cluster
def test_interrupted_and_continued(emulation, nothing_left, data_root, tmp_path):
    out = tmp_path / "finale"
    command = [sys.executable, "-m", "tutorial_lib"]
    settings = "--scale 0.005 --epochs 12 --fanouts 5,5 --hidden-size 32 --batch-size 100 --scaling 1,2"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [*command, "finale", *settings.split(), "--root", str(data_root), "--out", str(out)]
    first = subprocess.Popen(words, **options, start_new_session=True, preexec_fn=heed_ctrl_c)
    try:
        wait_for_event(out / "run", "checkpoint", first)
        os.killpg(first.pid, signal.SIGINT)
        printed = first.communicate(timeout=60)[0]
    finally:
        first.kill()
    assert first.returncode == 130
    again = f"finale --resume --out {out}"
    assert f"to continue after an interruption: python -m tutorial_lib {again}\n" in printed
    assert list(json.loads((out / "finale.json").read_text())["steps"]) == ["machines", "data", "partition"]
    second = subprocess.run([*command, *again.split(), "--trust"], **options, timeout=300)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "from the checkpoint" in second.stdout
    result = json.loads((out / "result.json").read_text())
    assert result["resumed_epochs"] >= 1
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(12))
    runs = [json.loads((out / "scaling" / f"{k}-machines" / "result.json").read_text()) for k in (1, 2)]
    assert [run["config"]["learning_rate"] for run in runs] == pytest.approx([0.003, 0.006])
    page = finale_report.write_report(out).read_text()
    assert "With more machines" in page
    assert page.count("data:image/png;base64,") == 2
    rows = finale_report.scaling_rows(out)
    assert [(row["machines"], row["steps"]) for row in rows] == [(1, 10), (2, 5)]
    assert all(row["startup"] > 0 for row in rows)
    assert finale_report.startup_seconds(b'{"kind": "stage", "time": 5.0}\n{"kind": "st') is None
