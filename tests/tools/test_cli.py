"""Command line: a user's mistake is one line and exit code 2, found before anything is written or started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer.main
from commands import tutorial

from tutorial_lib.job.folder import Continuation
from tutorial_lib.job.launch import LaunchRequest
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli import app
from tutorial_lib.tools.cli.options import Given
from tutorial_lib.trainer.config import TrainConfig


def test_a_mistake_in_a_process_of_its_own():
    done = tutorial("train", "--dataset", "cora", code=2)
    assert done.stderr.startswith("error: unknown data set 'cora'")
    assert "Traceback" not in done.stderr


COMMANDS = "doctor data partition plan train launch finale trace explain submit fetch machines on"


@pytest.mark.parametrize("command", COMMANDS.split())
def test_help(command, run_here):
    done = run_here(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--help"], "--embedding-learning-rate"),
        (["--help"], "For example"),
        (["--dataset", "cora"], "unknown data set"),
    ],
)
def test_help_and_a_misspelt_name_wait_for_neither_torch_nor_dgl(words, says):
    code = f"import sys\nfrom tutorial_lib.tools.cli import main\ntry:\n    main(['train', *{words!r}])\n"
    code += "finally:\n    print({'torch', 'dgl', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    wide = {**os.environ, "COLUMNS": "150"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=wide)
    assert done.stderr.splitlines()[-1] == "set()"
    assert says in done.stdout + done.stderr


@pytest.mark.parametrize("words", [["data", "cora"], ["train", "--dataset", "cora"], ["finale", "--dataset", "cora"]])
def test_a_misspelt_data_set_is_refused_before_torch_and_dgl_are_imported(words):
    code = f"import sys\nfrom tutorial_lib.tools.cli import main\ntry:\n    main({words})\n"
    code += "finally:\n    print({'torch', 'dgl', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "set()\n")
    assert done.stderr.startswith("error: unknown data set 'cora'")


def given_to(command: str, *words: str) -> Given:
    """What a command understands by its arguments, without running it."""
    made = typer.main.get_command(app).commands[command]
    return Given(**made.make_context(command, list(words)).params)


def test_a_command_without_options_has_the_defaults_of_the_dataclasses():
    given = given_to("train")
    config = TrainConfig()
    assert (given.fanouts, given.cache) == ("15,10,5", "256MB")
    assert given.make(TrainConfig, cache=config.cache) == config
    assert given.make(DataSource) == DataSource("synthetic-products")
    assert given.make(Layout) == Layout(emulate=None)
    assert given.make(Continuation) == Continuation()
    assert given.make(RealMachines, ip_config=Path("x")) == RealMachines(Path("x"))
    launched = given_to("launch", "--part_config", "p.json", "true")
    files = {"part_config": Path("p.json"), "ip_config": Path("ip_config.txt"), "out": None}
    expected = LaunchRequest(command=["true"], workspace=Path(), **files)
    assert launched.make(LaunchRequest, command=["true"], real=None) == expected


def test_each_option_arrives_in_its_field():
    words = "--fanouts 3,-1 --batch-size 7 --ahead 5 --seed 5 --stall-timeout 0 --trainers 3 --resume"
    words += " --checkpoint-every 4 --ip_config ip.txt --remote_python py --allow_public_addresses"
    given = given_to("train", *words.split())
    config = given.make(TrainConfig, cache=0)
    assert (config.fanouts, config.batch_size, config.ahead, config.seed) == ((3, -1), 7, 5, 5)
    assert (given.make(Continuation), given.make(DataSource).seed) == (Continuation(True, 4), 5)
    layout = given.make(Layout, real=given.make(RealMachines))
    assert layout.real == RealMachines(Path("ip.txt"), python="py", allow_public=True)
    assert (layout.trainers, layout.limits().stall) == (3, None)
    words = "--num_trainers 2 --num_samplers 1 --num_servers 3 --extra_envs A=1 --timeout 9 --part_config p.json true"
    request = given_to("launch", *words.split()).make(LaunchRequest)
    assert (request.trainers, request.samplers, request.servers, request.command) == (2, 1, 3, ["true"])
    assert (request.extra_envs, request.limits().job) == (["A=1"], 9)


def test_a_run_goes_on_with_what_it_was_started_with(tmp_path):
    """What is said anew replaces it; a place that is said anew replaces every place."""
    begun = given_to("train", "--emulate", "2", "--fanouts", "3", "--root", "somewhere")
    (tmp_path / "options.json").write_text(json.dumps({**begun.to_json(), "cache": "512000000"}))
    again = given_to("train", "--resume", "--batch-size", "7")
    again.said, again.trust = {"resume", "batch_size"}, True
    again.recall(tmp_path)
    assert (again.emulate, again.fanouts, again.cache, again.batch_size) == (2, "3", "512000000", 7)
    assert again.root == Path("somewhere").absolute()
    elsewhere = given_to("train", "--resume", "--single-process")
    elsewhere.said, elsewhere.root = {"resume", "single_process", "root"}, Path("somewhere")
    elsewhere.recall(tmp_path)
    assert (elsewhere.emulate, elsewhere.single_process, elsewhere.fanouts) == (None, True, "3")


def test_options_of_the_places_arrive():
    assert given_to("train", "--show-output").make(Layout).show_output
    assert given_to("finale", "--on", "lab").make(Layout).on == "lab"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--dataset", "cora"], "unknown data set 'cora'"),
        (["train", "--scale", "9"], "scale"),
        (["train", "--scale", "nan"], "scale"),
        (["train", "--wire", "fast"], "--wire 'fast' is not a rate"),
        (["train", "--wire", "1gbit", "--machines", "1"], "it needs --emulate N"),
        (["train", "--machines", "2"], "--machines 2: only 1 is possible"),
        (["train", "--emulate", "2", "--single-process"], "choose one of"),
        (["train", "--emulate", "0"], "cannot emulate 0 machines"),
        (["train", "--trainers", "0"], "--trainers must be at least 1"),
        (["train", "--servers", "0"], "--servers must be at least 1"),
        (["train", "--samplers", "-1"], "--samplers must be at least 0"),
        (["train", "--single-process", "--trainers", "4"], "--single-process has no --trainers"),
        (["partition", "--dataset", "synthetic-products", "--parts", "2", "--out", "/dev/null"], "is not a partition"),
        (
            ["partition", "--dataset", "synthetic-products", "--scale", "0.002", "--parts", "4000", "--out", "p"],
            "cut 4898",
        ),
        (["train", "--fanouts", "a,b"], "--fanouts 'a,b' is not a list"),
        (["plan", "--dataset", "synthetic-products", "--machines", "0"], "machines 0: plan accepts 1 to"),
        (["train", "--fanouts", "10,0"], "--fanouts '10,0' is not a list"),
        (["train", "--fanouts", "99999999999999999999"], "is not a list of neighbour counts, 1 to 2147483647"),
        (["data", "no-such-file.npz"], "no-such-file.npz"),
        (["data", "ogbn-products"], "ogbn-products"),
        (["partition", "--dataset", "synthetic-products", "--parts", "0", "--out", "p"], "into 0 parts"),
        (
            ["partition", "--dataset", "synthetic-products", "--parts", "2", "--out", "p", "--method", "x"],
            "method x does",
        ),
        (
            ["partition", "--dataset", "synthetic-products", "--parts", "2", "--out", "p", "--max-memory", "1GB"],
            "--max-memory was removed",
        ),
        (["train", "--trace"], "--trace was removed"),
        (["train", "--sampler", "labor"], "--sampler was removed"),
        (["train", "--batch-dependency=16"], "--batch-dependency was removed"),
        (["plan", "--dataset", "synthetic-products", "--layers=3"], "--layers was removed"),
        (["plan", "--dataset", "synthetic-products", "--no-calibrate"], "--no-calibrate was removed"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(arguments, words, tmp_path, run_here):
    done = run_here(*arguments, "--root", str(tmp_path / "data"))
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"data"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--machines", "1", "--extra_envs", "A='x"], "--extra_envs: cannot read"),
        (["--machines", "1", "--ssh_port", "22"], "are for machines reached over ssh"),
        (["--machines", "1"], "lists other machines than 127.0.0.1"),
        (["--ip_config", "binary.txt"], "is not a text file"),
    ],
)
def test_a_mistake_in_launch(options, words, tmp_path, run_here, partition_of):
    (tmp_path / "ip_config.txt").write_text("10.0.0.1\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    done = run_here("launch", "--part_config", str(partition_of(1).config), *options, "true")
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.splitlines()[0]
    assert (tmp_path / "ip_config.txt").read_text() == "10.0.0.1\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--epochs", "0"],
        ["train", "--epochs", "x"],
        ["train", "--no-such"],
        *(["train", name, "9" * 20] for name in ("--hidden-size", "--batch-size", "--epochs", "--servers")),
        *(["train", name, value] for name in ("--stall-timeout", "--collective-timeout") for value in ("inf", "nan")),
        ["launch", "--serving-timeout", "0", "--part_config", "x", "true"],
    ],
)
def test_wrong_options(arguments, run_here):
    done = run_here(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_earlier_run_is_not_overwritten(tmp_path, run_here):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    done = run_here("train", "--out", str(tmp_path / "run"), "--root", str(tmp_path / "data"))
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert (tmp_path / "run" / "result.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("saved", "command"),
    [
        ("checkpoint/manifest.json", "train --resume --out 'my runs/a'"),
        ("delivery.json", "fetch 'my runs/a'"),  # a checkpoint may still be on the machines
        (None, None),
    ],
)
@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_the_end_names_the_command_that_continues_the_run(end, code, saved, command, tmp_path, run_here, monkeypatch):
    from tutorial_lib.job import train

    def run_single(_source, _config, out, *_more, **_options):
        (out / "checkpoint").mkdir(parents=True)
        if saved:
            (out / saved).write_text("{}")
        raise end

    monkeypatch.setattr(train, "run_single", run_single)
    monkeypatch.chdir(tmp_path)
    done = run_here("train", "--single-process", "--out", "my runs/a")
    assert done.returncode == code
    last = done.stderr.splitlines()[-1]
    if command:
        assert last == f"to continue: python -m tutorial_lib {command}".replace("my runs", f"{tmp_path}/my runs")
    else:
        assert last.endswith("; everything that was started has been stopped")


def test_a_run_folder_that_is_a_file_or_below_one(tmp_path, run_here):
    (tmp_path / "file").write_text("mine")
    for out, words in [("file", "is a file, not a folder"), ("file/run", "file is a file, not a folder")]:
        done = run_here("train", "--out", str(tmp_path / out), "--root", str(tmp_path / "data"))
        assert done.returncode == 2
        assert words in done.stderr.splitlines()[0]
        assert "Traceback" not in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_time_limits_are_options(tmp_path, run_here, partition_of):
    """A program that never serves ends after the seconds that were given, and the plan has those of the collectives."""
    seen = []
    real = LaunchRequest.plan
    limits = ["--serving-timeout", "2", "--collective-timeout", "33"]
    arguments = ["--machines", "1", "--part_config", str(partition_of(1).config), *limits, "--out", "logs"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaunchRequest, "plan", lambda *args, **more: seen.append(real(*args, **more)) or seen[-1])
        done = run_here("launch", *arguments, "sleep", "100")
    assert done.returncode == 1
    assert "waited 2 s for the servers to load their parts and listen" in done.stderr.splitlines()[0]
    assert [plan.collective_seconds for plan in seen] == [33]
    assert Layout(serving_timeout=7).limits().serving == 7


def test_data_as_json(data_root, run_here):
    done = run_here("data", "synthetic-products", "--scale", "0.005", "--root", str(data_root), "--json")
    described = json.loads(done.stdout)
    assert described["nodes"] == round(2_449_029 * 0.005)
    assert described["classes"] == 47
    assert described["train_nodes"] + described["val_nodes"] + described["test_nodes"] == described["nodes"]


def test_partition_as_json(data_root, tmp_path, run_here):
    arguments = ["--dataset", "synthetic-products", "--scale", "0.005", "--parts", "2", "--out", str(tmp_path / "p")]
    first = json.loads(run_here("partition", *arguments, "--root", str(data_root), "--json").stdout)
    second = json.loads(run_here("partition", *arguments, "--root", str(data_root), "--json").stdout)
    assert (first["reused"], second["reused"]) == (False, True)
    assert first["edge_cut"] == second["edge_cut"] > 0


def test_a_corrupt_file_ends_a_training_before_it_starts(tmp_path, run_here):
    np.savez(tmp_path / "bad.npz", labels=np.arange(3))
    done = run_here("train", "--dataset", str(tmp_path / "bad.npz"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert os.listdir(tmp_path) == ["bad.npz"]


def test_doctor_works_without_torch():
    """It must be able to say that torch is missing."""
    code = (
        "import sys, runpy\n"
        "sys.modules['torch'] = None\n"
        "sys.argv[1:] = ['doctor']\n"
        "runpy.run_module('tutorial_lib', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "[ok]   python" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_fails_with_a_remedy(tmp_path):
    """A foreign torch in the way: seen before dgl is imported."""
    (tmp_path / "torch-1.13.1.dist-info").mkdir()
    (tmp_path / "torch-1.13.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.13.1\n")
    done = subprocess.run(
        [sys.executable, "-m", "tutorial_lib", "doctor"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "[fail] torch: 1.13.1" in done.stdout
    assert "pip install -r requirements.lock" in done.stdout
