"""Interrupted runs that continue have the same losses as an uninterrupted run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_support import flip_bit, make_epochs, save
from commands import find_trainers, kill_trainer, read_events, read_losses, start_and_kill, tutorial, wait_until
from runtime_support import MARK, marked_processes

from tutorial_lib.errors import InputError
from tutorial_lib.job import train
from tutorial_lib.job.display import SILENT, RunDisplay
from tutorial_lib.job.folder import CheckpointOptions, open_run
from tutorial_lib.job.layout import Layout
from tutorial_lib.trainer.config import TrainConfig

pytestmark = pytest.mark.whole_run
EPOCHS = 3


@pytest.mark.cluster
def test_resume_on_two_machines_after_kills(finished_run, nothing_left, tmp_path):
    """A killed and resumed run has the losses of an uninterrupted run with the same options."""
    common, finished, out = finished_run.options, finished_run.out, tmp_path / "killed"
    printed = start_and_kill(common, out, 1, kill_trainer(1))
    assert "trainer 0 (rank 1) on machine-1: killed by signal 9" in printed
    assert tutorial("explain", str(out)).stdout.startswith("a process that was killed\n")
    assert (out / "checkpoint" / "epoch-0001").exists()
    start_and_kill([*common, "--resume"], out, 2, lambda run: run.send_signal(signal.SIGKILL))
    wait_until(lambda: not marked_processes(os.environ[MARK]), "the end of its machines")
    tutorial("train", *common, "--resume", "--out", str(out))

    assert read_losses(out) == pytest.approx(read_losses(finished), rel=1e-5)
    results = [json.loads((folder / "result.json").read_text()) for folder in (finished, out)]
    for key in ("val_accuracy", "test_accuracy"):
        assert results[0][key] == pytest.approx(results[1][key], abs=2e-3)
    assert (results[0]["resumed_epochs"], results[1]["resumed_epochs"]) == (0, 2)
    same = np.load(out / "predictions.npy") == np.load(finished / "predictions.npy")
    assert same.mean() > 0.999
    events = read_events(out)
    assert [event["epochs"] for event in events if event["kind"] == "resumed"] == [1, 2]
    assert [event["epochs"] for event in events if event["kind"] == "checkpoint"] == [1, 2, 3]
    assert [phases["epochs"] for phases in results[1]["phases"]] == [1, 1]  # of the last start
    assert {path.name for path in (out / "logs").iterdir()} == {
        *("failure.txt", "machine-0", "machine-1", "resume-1", "resume-2")
    }
    names = ["config.json", "epoch-0002", "epoch-0003", "manifest-previous.json", "manifest.json", "model.safetensors"]
    assert sorted(path.name for path in (out / "checkpoint").iterdir()) == names


@pytest.mark.cluster
def test_resume_on_two_machines_in_mid_epoch(finished_run, nothing_left, tmp_path):
    """L2. The first SIGTERM saves in the middle of an epoch. The resumed run repeats no step and has equal losses."""
    common, finished, out = [*finished_run.options], finished_run.out, tmp_path / "run"
    slow = [*common, "--wire", "50mbit"]  # the signal must arrive in the middle of an epoch
    printed = start_and_kill(slow, out, 1, lambda run: run.send_signal(signal.SIGTERM), code=143)
    (saved,) = (event for event in read_events(out) if event["kind"] == "checkpoint" and "step" in event)
    epochs, step = saved["epochs"], saved["step"]
    assert (
        f"stopped after step {step} of epoch {epochs + 1}; continue with --resume\nterminated by SIGTERM; " in printed
    )
    assert printed.endswith(f"\nto continue: python -m tutorial_lib train --resume --out {out}\n")
    assert tutorial("explain", str(out)).stdout.startswith("an interrupted job\n")
    steps = [(event["epoch"], event["step"]) for event in read_events(out) if event["kind"] == "step"]
    assert max(steps) == (epochs, step - 1)  # counted from 0
    assert {event["code"] for event in read_events(out) if event["kind"] == "exited"} == {0}  # no server was killed
    done = tutorial("train", *common, "--resume", "--out", str(out))
    assert f"continuing after step {step} of epoch {epochs + 1} from the checkpoint" in done.stdout

    def step_losses(run: Path) -> list[tuple[int, int, int, float]]:
        found = (event for event in read_events(run) if event["kind"] == "step")
        return sorted((event["rank"], event["epoch"], event["step"], event["loss"]) for event in found)

    assert step_losses(out) == step_losses(finished)
    results = [json.loads((folder / "result.json").read_text()) for folder in (finished, out)]
    scores = [[(epoch["loss"], epoch["val_score"]) for epoch in result["epochs"]] for result in results]
    assert scores[0] == scores[1]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"]
    assert np.array_equal(np.load(out / "predictions.npy"), np.load(finished / "predictions.npy"))


@pytest.mark.cluster
def test_job_that_cannot_save_ends_at_time_limit(emulation, nothing_left, partition_of, tmp_path, monkeypatch):
    """One trainer is frozen, so the others cannot save. The job ends at its time limit."""
    monkeypatch.setattr(train, "SAVING_SECONDS", 1.0)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    told: list[float] = []

    class Freezing(RunDisplay):
        def on_event(self, event: dict) -> None:
            if event["kind"] == "step" and not told:
                told.append(time.monotonic())
                (rank_1,) = find_trainers(1)
                rank_1.suspend()
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        config = TrainConfig(epochs=1, batch_size=5, fanouts=(5, 5))
        with pytest.raises(SystemExit) as end:
            train.run_distributed(partition_of(2), Layout(emulate=2), config, tmp_path / "run", Freezing())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == 143
    assert 1.0 < time.monotonic() - told[0] < 15
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_resume_with_more_epochs(single_run, tmp_path):
    """A run that resumes after 2 epochs has the losses of a run with 3. A start without a regular checkpoint saves at
    its end. All other options are stored in the run folder, so the working directory does not matter.
    """
    out = tmp_path / "run"
    tutorial("train", *single_run.options, "--epochs", "2", "--checkpoint-every", "10", "--out", str(out))
    tutorial("train", "--resume", "--trust", "--epochs", "3", "--out", str(out), cwd=tmp_path)
    assert read_losses(out) == pytest.approx(read_losses(single_run.out), rel=1e-6)


def test_resume_with_other_settings_is_refused(single_run, run_here):
    options = ["--epochs", "4", "--learning-rate", "0.1", "--fanouts", "5,4"]
    before = {path: path.read_bytes() for path in single_run.out.rglob("*") if path.is_file()}
    done = run_here("train", *single_run.options, "--resume", "--out", str(single_run.out), *options)
    assert done.returncode == 2
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "fanouts [5, 5] in the checkpoint, [5, 4] now; learning_rate 0.006 in the checkpoint, 0.1 now" in error
    assert {path: path.read_bytes() for path in single_run.out.rglob("*") if path.is_file()} == before


def test_resume_without_checkpoint_is_refused(tmp_path, run_here):
    for out, words in (([], "--resume needs --out"), (["--out", str(tmp_path)], f"no checkpoint in {tmp_path}")):
        done = run_here("train", "--resume", *out)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_resume_with_damaged_checkpoints(single_run, tmp_path, record_fault, run_here):
    """Files of the user in checkpoint/ are ignored and kept."""
    out = tmp_path / "run"
    shutil.copytree(single_run.out, out)
    keep, notes = out / "checkpoint" / "epoch-0002-best-keep", out / "checkpoint" / ".ipynb_checkpoints"
    shutil.copytree(out / "checkpoint" / "epoch-0002", keep)
    notes.mkdir()
    path = out / "checkpoint" / f"epoch-000{EPOCHS}" / "optimizer.safetensors"
    flip_bit(path, 1000)
    done = tutorial("train", *single_run.options, "--resume", "--out", str(out))
    sentence = f"damaged checkpoint: {path} has changed since it was written (checksum)"
    assert f"{sentence}; using the previous checkpoint" in done.stdout
    assert f"continuing after epoch {EPOCHS - 1} from the checkpoint" in done.stdout
    assert read_losses(out) == pytest.approx(read_losses(single_run.out), rel=1e-6)
    assert np.array_equal(np.load(out / "predictions.npy"), np.load(single_run.out / "predictions.npy"))
    assert (keep / "model.safetensors").exists()
    assert notes.is_dir()
    record_fault("a flipped bit in the newest checkpoint", f"none: {sentence}; using the previous checkpoint", None)
    flip_bit(path, 1000)
    flip_bit(out / "checkpoint" / f"epoch-000{EPOCHS - 1}" / "model.safetensors", 1000)
    done = run_here("train", *single_run.options, "--epochs", "9", "--resume", "--out", str(out))
    assert done.returncode == 2
    assert f"error: {sentence}; previous checkpoint: damaged checkpoint: " in done.stderr


def test_resume_after_last_epoch_only_evaluates(single_run, tmp_path):
    """The run was stopped after its last checkpoint. It trains no further epoch and evaluates the model."""
    out = tmp_path / "run"
    shutil.copytree(single_run.out, out)
    for name in ("result.json", "predictions.npy"):
        (out / name).unlink()
    tutorial("train", *single_run.options, "--resume", "--out", str(out))
    assert read_losses(out) == pytest.approx(read_losses(single_run.out), rel=1e-6)
    result, expected = (json.loads((folder / "result.json").read_text()) for folder in (out, single_run.out))
    assert (result["resumed_epochs"], result["test_accuracy"]) == (EPOCHS, expected["test_accuracy"])
    assert np.array_equal(np.load(out / "predictions.npy"), np.load(single_run.out / "predictions.npy"))


def test_resume_with_other_partition_is_refused(tmp_path):
    """Rows of embeddings and shares of seed nodes belong to one partition, which the settings name by its node map."""
    settings, model = {"partition": "cut one"}, torch.nn.Linear(2, 2)
    save(tmp_path / "checkpoint", model, torch.optim.Adam(model.parameters()), 1, settings)
    writing = tmp_path / "checkpoint" / "epoch-0002"
    writing.mkdir()
    again, words = CheckpointOptions(resume=True), "partition cut one in the checkpoint, cut two now"
    with pytest.raises(InputError, match=words), open_run(tmp_path, SILENT, again, {"partition": "cut two"}):
        pass
    assert writing.exists()
    with open_run(tmp_path, SILENT, again, settings) as log:
        assert log.resumed == make_epochs(1)
    assert not writing.exists()


def test_nonfinite_loss_ends_the_run(single_run, tmp_path, record_fault):
    """D21. A loss that is not finite ends the run with an error that names the epoch and the step."""
    done = tutorial("train", *single_run.options, "--learning-rate", "1e30", "--out", str(tmp_path / "run"), code=1)
    assert "error: loss is nan in epoch 1, step 2; try a smaller --learning-rate" in done.stderr
    assert "Traceback" not in done.stderr
    error = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    record_fault("a loss that is no number", error.removeprefix("error: "), "at once")


FULL_DISK = """
import subprocess, sys
from pathlib import Path
from tutorial_lib.launcher.backends.namespaces import new_user_namespace, mount, unshare
folder = Path(sys.argv[1])
new_user_namespace()
unshare("mnt")
mount("tmpfs", str(folder), "tmpfs", 0, "size=600k")
(folder / "other").write_bytes(bytes(400_000))
train = [sys.executable, "-m", "tutorial_lib", "train", *sys.argv[2:], "--out", str(folder / "run")]
first = subprocess.run(train, capture_output=True, text=True)
print(first.returncode, next(line for line in first.stderr.splitlines() if line.startswith("error: ")))
assert (folder / "run" / "checkpoint" / "epoch-0001").exists()
(folder / "other").unlink()
second = subprocess.run([*train, "--resume"], capture_output=True, text=True)
print(second.returncode, second.stderr)
print((folder / "run" / "result.json").read_text())
"""


def test_resume_after_full_disk(single_run, emulation, tmp_path, record_fault):
    """One checkpoint has about 115 kB. There is space for the first one only."""
    arguments = single_run.options
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, *result = done.stdout.splitlines()
    assert first.startswith("1 error: ")
    assert "cannot write the checkpoint: No space left on device" in first
    assert "/checkpoint/epoch-0002/" in first
    assert second.startswith("0 ")
    found = json.loads("\n".join(result[result.index("{") :]))
    assert [epoch["loss"] for epoch in found["epochs"]] == pytest.approx(read_losses(single_run.out), rel=1e-6)
    record_fault(
        "disk full while a checkpoint is written; the one before survives", first.removeprefix("1 error: "), "at once"
    )
