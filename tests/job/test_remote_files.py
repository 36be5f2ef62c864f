"""Uploads to machines with private disks, and downloads of results. The tests write the files of the trainers."""

import hashlib
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import wait_until
from ssh_support import assert_private, needs_rsync

from tutorial_lib.errors import InputError, JobError
from tutorial_lib.job import remote_files
from tutorial_lib.job.remote_files import RemoteFiles, read_pending_download
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.trainer.manifest import (
    EpochResult,
    FileRecord,
    Manifest,
    publish_checkpoint,
    read_checkpoint,
    remove_checkpoints,
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]


class Lab:
    """Two machines with private disks, and a run folder on this computer.

    A program in the folder ``bin`` of a machine replaces rsync there.
    """

    def __init__(self, folder: Path, cluster: EmulatedBackend) -> None:
        self.cluster, self.run, self.workspace = cluster, folder / "my run", folder / "job"
        self.copy_to, self.bin = folder / "copy", folder / "bin"
        cluster.traits = replace(cluster.traits, copy_to=str(self.copy_to), ssh_options={})  # as if over ssh
        self.run.mkdir()
        self.events: list[dict] = []
        for name in ("train.py", "parts/part0/graph", "parts/part1/graph", "runs/old", ".hidden"):
            (self.workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (self.workspace / name).write_text(name)
        (self.workspace / "large").write_bytes(os.urandom(3_000_000))
        parts = {f"part-{k}": {"part_graph": f"part{k}/graph"} for k in range(2)}
        (self.workspace / "parts" / "graph.json").write_text(json.dumps(parts))

    def files(self) -> RemoteFiles:
        uploads = [(self.workspace, "", self.workspace / "parts")]
        files = RemoteFiles(self.cluster, self.run, self.events.append, uploads)
        self.results = Path(files.folder)
        return files

    def path_on(self, k: int, path: Path | str = "") -> Path:
        """Where this computer stores a file of the results folder, or another file, of machine k."""
        return self.cluster.on_disk(self.cluster.machines[k], self.results / path)

    def write(self, k: int, name: str, content: bytes) -> Path:
        path = self.path_on(k, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def save(self, epochs: int, size: int = 100) -> dict:
        """Write a checkpoint as the trainers of two machines do, and return its event."""
        folder, files = f"epoch-{epochs:04d}", {}
        for k, name in ((0, "model"), (0, "embeddings-machine-0"), (1, "embeddings-machine-1")):
            content = bytes([epochs, k]) * size
            self.write(k, f"checkpoint/{folder}/{name}.safetensors", content)
            machine = f"machine-{k}" if name != "model" else None
            digest = hashlib.sha256(content).hexdigest()
            files[f"{name}.safetensors"] = FileRecord(len(content), digest, machine)
        results = [EpochResult(epoch, 1.0, 1.0, 0.5) for epoch in range(epochs)]
        publish_checkpoint(self.path_on(0, "checkpoint"), Manifest(folder, results, {}, files))
        for k in range(2):
            remove_checkpoints(self.path_on(k, "checkpoint"), [folder, f"epoch-{epochs - 1:04d}"])
        return {"kind": "checkpoint", "epochs": epochs}

    def downloaded_epochs(self) -> int:
        """Return the epochs of the newest checkpoint on this computer, which must be intact, or 0."""
        if not (self.run / "checkpoint" / "manifest.json").exists():
            return 0
        found = read_checkpoint(self.run / "checkpoint")
        assert all((found.folder / name).is_file() for name in found.manifest.files)
        return len(found.manifest.epochs)

    def event_texts(self) -> list[str]:
        return [event["text"] for event in self.events if "text" in event]


@pytest.fixture
def lab(emulation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    needs_rsync()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with EmulatedBackend(2, own_disks=True, private=[tmp_path]) as cluster:
        assert_private(cluster, cluster.machines, tmp_path)
        yield Lab(tmp_path, cluster)


def test_checkpoints_are_downloaded_during_the_job(lab):
    """L36. The two newest checkpoints are downloaded, and the machines keep only the workspace."""
    with lab.files() as files:
        for epochs in range(1, 4):
            files.on_event(lab.save(epochs))
            wait_until(lambda: lab.downloaded_epochs() == epochs, f"epoch {epochs}")  # noqa: B023
        lab.save(4)  # the job ends before this event
        for k in range(2):
            lab.write(k, f"logs/resume-1/machine-{k}/trainer-0.log", b"log")
        lab.write(0, "predictions.npy", b"0")
        lab.write(0, "job.json", b"paths of the machines")
    assert lab.downloaded_epochs() == 4
    names = {str(path.relative_to(lab.run)) for path in lab.run.rglob("*") if path.is_file()}
    rows = ("embeddings-machine-0", "embeddings-machine-1")
    saved = {f"checkpoint/epoch-000{k}/{name}.safetensors" for k in (3, 4) for name in ("model", *rows)}
    logs = {f"logs/resume-1/machine-{k}/trainer-0.log" for k in range(2)}
    manifests = {"checkpoint/manifest.json", "checkpoint/manifest-previous.json"}
    assert names == {"predictions.npy", *saved, *logs, *manifests}
    assert read_pending_download(lab.run) is None
    assert not any(lab.path_on(k).exists() for k in range(2))
    assert lab.path_on(1, lab.copy_to / "train.py").read_text() == "train.py"


def test_downloaded_checkpoint_is_always_valid(lab):
    """L36. The trainers replace checkpoints faster than rsync copies them."""
    seen, end = [], threading.Event()

    def watch() -> None:
        while not end.wait(0.005):
            try:
                seen.append(lab.downloaded_epochs())
            except (InputError, AssertionError):  # the copy replaced the checkpoint between two reads
                seen.append(lab.downloaded_epochs())

    with lab.files() as files:
        watcher = threading.Thread(target=watch)
        watcher.start()
        for epochs in range(1, 8):
            files.on_event(lab.save(epochs, size=2_000_000))
        wait_until(lambda: lab.downloaded_epochs() == 7, "the last checkpoint")
        end.set()
        watcher.join(timeout=10)
    assert seen == sorted(seen)
    assert lab.downloaded_epochs() == 7
    assert not any("could not be downloaded" in text for text in lab.event_texts())


def test_download_keeps_settings_and_skips_symlinks(lab, tmp_path):
    """Only the manifest of the first machine is used, even if another machine has a newer one."""
    with lab.files():
        lab.save(2)
        publish_checkpoint(
            lab.path_on(1, "checkpoint"), Manifest("epoch-0009", [EpochResult(0, 1.0, 1.0, 0.5)] * 9, {}, {})
        )
        for name in ("options.json", "events.jsonl"):
            lab.write(0, name, b"stale")
        lab.path_on(0, "secret").symlink_to("/etc/passwd")
        lab.path_on(0, "out").symlink_to(tmp_path)
    assert lab.downloaded_epochs() == 2
    assert {path.name for path in lab.run.iterdir()} == {"checkpoint"}


def test_failed_download_keeps_files_on_machines(lab, tmp_path, record_fault):
    """L37. The folders on the machines are kept until all files are downloaded."""
    files = lab.files()
    with pytest.raises(JobError) as caught, files:
        files.on_event(lab.save(1))
        wait_until(lambda: lab.downloaded_epochs() == 1, "a checkpoint")
        lab.save(2)
        lab.path_on(1).rename(lab.path_on(1).parent / "gone")
    assert "some of its results were not downloaded: copying from machine-1: rsync: " in caught.value.message
    assert f"machine-1 (10.77.0.2) still has its results in {lab.results}" in caught.value.message
    assert f"python -m tutorial_lib fetch '{lab.run}'" in caught.value.remedy
    assert lab.downloaded_epochs() == 1  # some rows of the second one are on machine-1 only
    assert lab.path_on(0).exists()
    assert len(read_pending_download(lab.run).machines) == 2
    record_fault("the disk of a machine is gone when results are fetched", caught.value.message, "after the job")
    (lab.path_on(1).parent / "gone").rename(lab.path_on(1))
    again = lab.files()
    assert (again.folder, again.finish(), lab.downloaded_epochs()) == (files.folder, [], 2)
    assert not lab.path_on(1).exists()


def test_full_local_disk_does_not_hide_cause_of_failed_job(lab):
    """L37. The limit of file sizes refuses the next byte, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    files = lab.files()
    try:
        with pytest.raises(JobError, match="the cause"), files:
            lab.write(0, "predictions.npy", bytes(2_000_000))
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
            raise JobError("the cause")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "copying from machine-0: " in lab.event_texts()[-2]
    assert lab.path_on(0, "predictions.npy").exists()


def test_download_writes_only_to_the_run_folder(lab, monkeypatch):
    """Therefore a command that is killed during a download leaves no files in the temporary folder."""
    targets = []
    monkeypatch.setattr(RemoteFiles, "_fetch", lambda _self, _machine, target, rules: targets.append((target, rules)))
    lab.files().finish()
    assert len(targets) == 3  # the manifest, and the results of each machine
    assert all(target.is_relative_to(lab.run) for target, _rules in targets)


def test_only_changed_files_are_uploaded(lab):
    """Each machine gets its own part. A damaged file with the size and the time of the original is replaced."""
    with lab.files():
        assert not lab.path_on(0, lab.copy_to / "parts" / "part1").exists()
        assert not lab.path_on(0, lab.copy_to / "runs").exists()
        assert not lab.path_on(0, lab.copy_to / ".hidden").exists()
    damaged = lab.path_on(1, lab.copy_to / "parts" / "part1" / "graph")
    before = damaged.stat()
    damaged.write_text("PARTS/part1/graph")
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    with lab.files():
        assert damaged.read_text() == "parts/part1/graph"
    counts = {(0, 4), (1, 4), (0, 0), (1, 1)}
    assert set(lab.event_texts()) == {f"machine-{k}: {n} files copied, checksums verified" for k, n in counts}


@pytest.mark.parametrize(
    ("program", "message", "remedy"),
    [
        ("echo Welcome", "is your shell clean", ".bashrc must print nothing to programs"),
        ("echo sh: rsync: not found >&2; exit 127", "rsync: not found", "sudo apt install rsync"),
        ("exec sleep 30", "io timeout after 2 seconds", ""),
        ("echo disk on fire >&2; exit 9", "disk on fire", ""),
    ],
)
def test_failed_upload_names_machine_and_cause(program, message, remedy, lab, monkeypatch):
    """The error names the machine and the cause, and the other machine keeps no files."""
    monkeypatch.setattr(remote_files, "SILENCE_SECONDS", 2)
    files = lab.files()
    path = lab.cluster.on_disk(lab.cluster.machines[1], lab.bin / "rsync")
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    start = time.monotonic()
    with pytest.raises(JobError, match=f"copying to machine-1: .*{message}") as caught, files:
        raise AssertionError("the job was started")
    assert time.monotonic() - start < 60
    assert remedy in caught.value.remedy
    assert not lab.path_on(0).exists()
    assert read_pending_download(lab.run) is None
