"""``finale`` and its report: recipe, estimate and checked predictions. Lesson 12 runs a finale."""

import contextlib
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support import finale_report
from tutorial_lib.errors import InputError, JobError
from tutorial_lib.job import train
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools import jobs
from tutorial_lib.trainer.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]


def confirm(scale: float, epochs: int) -> None:
    source = DataSource("synthetic-products", scale=scale)
    jobs.confirm_large_run(source, Layout(2).make_backend(), 1, TrainConfig(epochs=epochs), yes=False)


def test_large_run_needs_confirmation(monkeypatch, capsys):
    confirm(0.01, epochs=1)
    assert re.search(r"estimate: .* about [\d.]+ MB of memory on each machine, 1 min", capsys.readouterr().out)
    for answer in (True, False):
        monkeypatch.setattr(jobs, "ask_yes_no", lambda _question, answer=answer: answer)
        with contextlib.nullcontext() if answer else pytest.raises(InputError, match="was not confirmed"):
            confirm(0.1, epochs=100_000)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ("synthetic-products", 0.1, 10, 1000, 0.006)),
        ("--full --emulate 4", ("synthetic-products", 1.0, 20, 256, 0.003)),
        ("--full --epochs 3 --machines 1", ("synthetic-products", 1.0, 3, 1024, 0.003)),
    ],
)
def test_defaults_and_the_published_recipe(words, expected, monkeypatch, run_here):
    """``--full`` selects the published recipe: 1024 seed nodes in a step of all trainers together."""
    seen = []

    def stop(source, _layout, config, *_more) -> None:
        seen.append((source.name, source.scale, config.epochs, config.batch_size, config.learning_rate))
        raise InputError("stopped")

    monkeypatch.setattr(train, "run_distributed", stop)
    assert "stopped" in run_here("finale", "--yes", *words.split()).stderr
    assert seen == [expected]


def test_wrong_predictions_are_an_error(data_root, tmp_path):
    source = DataSource("synthetic-products", scale=0.002, root=data_root)
    data = source.load().target_data
    predictions, result = data["label"].numpy().copy(), {"val_accuracy": 1.0, "test_accuracy": 1.0}
    np.save(tmp_path / "predictions.npy", predictions)
    jobs.check_predictions(source, tmp_path, result)
    predictions[data["test_mask"].numpy().nonzero()[0][0]] += 1
    np.save(tmp_path / "predictions.npy", predictions)
    with pytest.raises(
        JobError, match=r"the test accuracy of predictions\.npy is 0\.99\d+, but the trainers counted 1\.0"
    ):
        jobs.check_predictions(source, tmp_path, result)


def test_published_figures_are_shown_only_for_the_published_graph(tmp_path):
    with pytest.raises(InputError, match="finished training"):
        finale_report.write_report(tmp_path)
    for dataset, nodes in (("ogbn-products", jobs.PUBLISHED_NODES), ("ogbn-products", 60), ("mine", 60)):
        result = {"dataset": dataset, "partition": {"nodes": [9, nodes - 9]}}
        assert bool(jobs.published_accuracies(result)) == (nodes == jobs.PUBLISHED_NODES)


@pytest.mark.cluster
def test_report_is_one_page_without_other_files(finished_run, tmp_path):
    out = shutil.copytree(finished_run.out, tmp_path / "run")
    page = finale_report.write_report(out).read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "src=" not in page.replace('src="data:image', "")


def test_report_of_my_finale_names_failures_and_options(tmp_path):
    epochs = [{"epoch": 0, "loss": 1.0, "val_accuracy": 0.5}, {"epoch": 1, "loss": 0.5, "val_accuracy": 0.8}]
    phases = [{"name": name, "start": begin, "end": begin + 1.0, "bytes": 0} for begin, name in enumerate("abc")]
    phases[1]["error"] = "machine-1/server-1 failed"
    partition = {"method": "file-d1ce86", "nodes": [5, 4], "edges": [9, 7], "edge_cut_share": 0.25}
    result = {"dataset": "mine", "machines": 2, "partition": partition, "timeline": phases, "epochs": epochs}
    (tmp_path / "finale.json").write_text(
        json.dumps({**result, "best_epoch": 1, "val_accuracy": 0.8, "test_accuracy": 0.75})
    )
    plan = {"machines": {"red": "10.0.0.1", "blue": "10.0.0.2"}, "spares": {}, "options": "--num_epochs 2"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    page = finale_report.write_report(tmp_path).read_text()
    for text in ("machine-1/server-1 failed", "red, blue;", "--num_epochs 2", "is number 2", "from a file", ">3 s,"):
        assert text in page


def test_make_finale_replaces_a_machine_and_writes_both_reports(emulation, tmp_path):
    command = [sys.executable, "scripts/finale.py", "--scale", "0.003", "--epochs", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "machine-1/server-1 failed with exit code -9" in (tmp_path / "run/my_finale/report.html").read_text()
    assert (tmp_path / "run/finale/report.html").exists()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (again.returncode, "already exists" in again.stderr) == (1, True)


def test_programs_of_lessons_reject_wrong_tables(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks" / "scripts")
    finale_plan, own_parts = importlib.import_module("finale_plan"), importlib.import_module("own_parts")
    with pytest.raises(ValueError, match="use only its name"):
        finale_plan.prepare(finale_plan.Plan(str(tmp_path), {"red": "10.0.0.1"}, "", dataset="/my/tables"))
    for row, problem in {"train,x": "lines 2 to 2: a cell of 'p'", "train,": "of 'p'", "val,1": "'val' is"}.items():
        (path := tmp_path / "nodes.csv").write_text(f"id,label,split,p\na,c,{row}\n")
        with pytest.raises(ValueError, match=problem):
            own_parts.part_rows(path, ["p"], pa.array(["a"]), pa.array(["c"]), np.zeros(1, np.int64), 0, 1)


def test_timeline_contains_the_last_start():
    kinds = [("stage", 1.0, "checks"), ("traffic", 2.0, 50), ("stage", 3.0, "checks"), ("stage", 4.0, "servers")]
    kinds += [("traffic", 5.0, 7), ("stage", 6.0, "trainers"), ("traffic", 8.0, 30), ("split", 7.0, None)]
    events = [{"kind": k, "time": t, "machine": "a", "stage" if k == "stage" else "bytes_sent": v} for k, t, v in kinds]
    timeline = [tuple(phase.values()) for phase in finale_report.read_timeline(events)]
    assert timeline[:2] == [("checks", 3.0, 4.0, 0), ("servers load parts", 4.0, 6.0, 7)]
    assert timeline[2:] == [("trainers start", 6.0, 7.0, 0), ("epochs", 7.0, 8.0, 23)]
