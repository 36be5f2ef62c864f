"""What comes home from machines with disks of their own, without a job: a program there writes what trainers would."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import wait_until
from ssh_support import assert_private, needs_pkill

from tutorial_lib.cluster import homecoming, manifests
from tutorial_lib.cluster.delivery import LIST, Delivery, Start, checkpoint_files, read_starts
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.failure import JobFailed
from tutorial_lib.cluster.homecoming import Homecoming
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.errors import JobError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]

# As checkpoint.save: the folder, then the manifest in one step, then the oldest of three goes.
SAVE = """
import hashlib, json, os, shutil, sys
from pathlib import Path
folder, epochs, machine, size, manifest = Path(sys.argv[1]), *json.loads(sys.argv[2])
name = f"epoch-{epochs:04d}"
(folder / name).mkdir(parents=True, exist_ok=True)
if machine == "machine-0":
    (folder / name / "model.safetensors").write_bytes(bytes([epochs]) * size)
(folder / name / f"embeddings-{machine}.safetensors").write_bytes(bytes([epochs, int(machine[-1])]) * 50)
if manifest:
    if (folder / "manifest.json").exists():
        os.replace(folder / "manifest.json", folder / "manifest-previous.json")
    (folder / ".manifest").write_text(json.dumps(manifest))
    os.replace(folder / ".manifest", folder / "manifest.json")
for old in sorted(folder.glob("epoch-*"))[:-2]:
    shutil.rmtree(old)
"""


def manifest_of(epochs: int, size: int = 100) -> dict:
    """Of a checkpoint that ``SAVE`` writes on two machines."""
    content = {"model.safetensors": (bytes([epochs]) * size, None)}
    for k in range(2):
        content[f"embeddings-machine-{k}.safetensors"] = (bytes([epochs, k]) * 50, f"machine-{k}")
    files = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "machine": machine}
        for name, (data, machine) in content.items()
    }
    return {"format": 3, "folder": f"epoch-{epochs:04d}", "epochs": [{}] * epochs, "step": 0, "files": files}


class Lab:
    """Two machines with private disks, and a run folder here."""

    def __init__(self, folder: Path, cluster: EmulatedCluster) -> None:
        self.cluster, self.run, self.disk = cluster, folder / "run", folder / "disk"
        self.events: list[dict] = []
        cluster.reach = {"ssh": {}}  # as if they stayed after this command
        for k in range(2):
            self.on(k, f"mkdir -p {self.disk}")

    def on(self, k: int, command: str) -> str:
        words = ["bash", "-c", command]
        process = self.cluster.popen(self.cluster.machines[k], words, stdout=subprocess.PIPE, text=True)
        output = process.communicate(timeout=20)[0]
        assert process.returncode == 0, command
        return output

    def save(self, k: int, epochs: int, *, manifest: bool, size: int = 100) -> None:
        """Machine k's share of a checkpoint."""
        words = [epochs, f"machine-{k}", size, manifest_of(epochs, size) if manifest else None]
        argv = [sys.executable, "-c", SAVE, f"{self.results}/checkpoint", json.dumps(words)]
        assert self.cluster.popen(self.cluster.machines[k], argv).wait(timeout=20) == 0

    def save_all(self, epochs: int, size: int = 100) -> None:
        self.save(1, epochs, manifest=False)
        self.save(0, epochs, manifest=True, size=size)

    def homecoming(self) -> Homecoming:
        """Of a job that writes its results below the disk."""
        plan = JobPlan(self.cluster.machines, [], "", "", "", str(self.disk), 0)
        start = Start.of(plan, f"{self.disk}/copy", "run", logs="logs")
        self.results = start.folder
        source = self.run.parent / "source.txt"
        source.write_text("a file of the workspace")
        given = {"source.txt": source, f"{self.results[len(str(self.disk)) + 6 :]}/job.json": source}
        return Homecoming(self.cluster, Delivery(plan, [given, given], start), self.run, self.events.append)

    def epochs_at_home(self) -> list[int]:
        """Of the checkpoints that are at home and whole."""
        found = []
        for name in (manifests.NEWEST, manifests.BEFORE):
            path = self.run / "checkpoint" / name
            if path.exists():
                manifest = json.loads(path.read_text())
                for file, about in manifest["files"].items():
                    content = (path.parent / manifest["folder"] / file).read_bytes()
                    assert hashlib.sha256(content).hexdigest() == about["sha256"]
                found.append(len(manifest["epochs"]))
        return found

    def newest_at_home(self) -> int:
        return max([manifest.done[0] for manifest in manifests.kept(self.run)], default=0)

    def wait_for(self, epochs: list[int], seconds: float = 10) -> None:
        wait_until(lambda: self.epochs_at_home() == epochs, f"epochs {epochs} at home", seconds)

    def left(self, k: int) -> list[str]:
        """Folders of starts on a machine."""
        return self.on(k, f"ls -A {self.disk}/copy/.tutorial_lib 2>/dev/null || true").split()


@pytest.fixture
def lab(emulation: None, tmp_path: Path) -> Iterator[Lab]:
    with EmulatedCluster(2, own_disks=True, private=[tmp_path]) as cluster:
        assert_private(cluster, cluster.machines, tmp_path)
        yield Lab(tmp_path, cluster)


def checkpoint(epochs: int) -> dict:
    return {"kind": "checkpoint", "epochs": epochs, "rank": 0, "time": time.time()}


def test_checkpoints_come_home_when_they_are_written_and_two_are_kept(lab):
    with lab.homecoming() as home:
        for epochs, expected in ((1, [1]), (2, [2, 1]), (3, [3, 2])):
            lab.save_all(epochs)
            home.on_event(checkpoint(epochs))
            lab.wait_for(expected)
        lab.save_all(4)  # nobody is told: the job ends
        for k in range(2):
            lab.on(k, f"mkdir -p {lab.results}/logs/machine-{k} && echo {k} > {lab.results}/logs/machine-{k}/log")
        lab.on(0, f"echo 0 > {lab.results}/predictions.npy")
    home.check()
    assert lab.epochs_at_home() == [4, 3]
    assert (lab.run / "predictions.npy").exists()
    assert [(lab.run / "logs" / f"machine-{k}" / "log").read_text() for k in range(2)] == ["0\n", "1\n"]
    assert not (lab.run / "job.json").exists()  # it was sent, with paths of the machines
    left = sorted(path.name for path in (lab.run / "checkpoint").iterdir())
    assert left == ["epoch-0003", "epoch-0004", "manifest-previous.json", "manifest.json"]
    assert read_starts(lab.run) == []
    assert [lab.left(k) for k in range(2)] == [[], []]
    assert lab.on(0, f"cat {lab.disk}/copy/source.txt") == "a file of the workspace"  # saves the next copy


def test_home_is_valid_at_any_moment_while_checkpoints_are_faster_than_the_way(lab):
    seen, end = [], threading.Event()

    def look() -> None:
        while not end.is_set():
            with contextlib.suppress(FileNotFoundError):  # the oldest of three went between two looks of ours
                seen.append(lab.epochs_at_home())
            time.sleep(0.005)

    with lab.homecoming() as home:
        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        for epochs in range(1, 8):
            lab.save_all(epochs, size=5_000_000)
            home.on_event(checkpoint(epochs))
        wait_until(lambda: lab.newest_at_home() == 7, "the last of seven checkpoints at home")
        end.set()
        watcher.join(timeout=10)
    home.check()
    assert lab.epochs_at_home() == [7, 6]
    newest = [epochs[0] for epochs in seen if epochs]
    assert newest == sorted(newest)  # never back
    left = sorted(path.name for path in (lab.run / "checkpoint").iterdir())
    assert left == ["epoch-0006", "epoch-0007", "manifest-previous.json", "manifest.json"]


def test_nobody_but_the_owner_gives_a_file(lab):
    """A manifest and a result that lie on the second machine, older or newer, are not those of the run."""
    with lab.homecoming() as home:
        lab.save_all(4)
        lab.save(1, 2, manifest=True)
        lab.on(
            1, f"echo stale > {lab.results}/predictions.npy; sleep 0.5; echo stale > {lab.results}/model.safetensors"
        )
        lab.on(0, f"echo right > {lab.results}/predictions.npy")
        lab.on(0, f"echo stale > {lab.results}/checkpoint/epoch-0004/embeddings-machine-1.safetensors")
    home.check()
    assert lab.epochs_at_home() == [4]
    assert (lab.run / "predictions.npy").read_text() == "right\n"
    assert not (lab.run / "model.safetensors").exists()


def test_a_disk_that_is_gone_is_an_error_that_names_machine_folder_and_command(lab, saw):
    with lab.homecoming() as home:
        lab.save_all(1)
        home.on_event(checkpoint(1))
        lab.wait_for([1])
        lab.save_all(2)
        lab.on(1, f"mv {lab.disk} {lab.disk}-gone")
    with pytest.raises(JobError) as caught:
        home.check()
    error = caught.value
    assert f"copying from machine-1: there is no {lab.disk}/copy; is its disk mounted?" in error.message
    assert f"machine-1 (10.77.0.2) still has its results in {lab.results}" in error.message
    assert f"python -m tutorial_lib fetch {lab.run}" in error.remedy
    assert lab.epochs_at_home() == [1]  # rows of the second are on machine-1 alone
    assert lab.left(0) == []
    assert [start.left for start in read_starts(lab.run)] == [["machine-1"]]
    saw("the disk of a machine is gone when results are fetched", error.message, None)


def test_the_cause_of_a_failed_job_stays_the_first_line(lab, tmp_path):
    failed = JobFailed("trainer 0: it", machine="m", role="trainer", index=0, rank=0, log=tmp_path, tail=[])
    with pytest.raises(JobFailed) as caught, lab.homecoming():
        lab.on(1, f"mv {lab.disk} {lab.disk}-gone")
        raise failed
    assert caught.value.message == "trainer 0: it"
    first, second = caught.value.remedy.splitlines()
    assert first.startswith("copying from machine-1: there is no")
    assert f"python -m tutorial_lib fetch {lab.run}" in second


def test_a_copy_that_fails_before_the_start_leaves_nothing(lab, monkeypatch):
    lab.on(1, f"mount -t tmpfs -o size=4k none {lab.disk}")
    with pytest.raises(JobError, match="copying to machine-1: OSError"), lab.homecoming():
        raise AssertionError("the job was started")
    assert lab.left(0) == []
    assert json.loads((lab.run / LIST).read_text()) == {"starts": []}


def test_a_frozen_machine_does_not_hold_up_the_end(lab, monkeypatch):
    """The background copy is given up, and the last one has its limit."""
    needs_pkill()
    monkeypatch.setattr(homecoming, "COPY_SECONDS", 2.0)
    with lab.homecoming() as home:
        lab.save_all(1)
        lab.cluster.popen(  # whatever begins to copy there is stopped at once
            lab.cluster.machines[1], ["bash", "-c", "while sleep 0.01; do pkill -STOP -f cluster[.]transfer; done"]
        )
        home.on_event(checkpoint(1))
        wait_until(lambda: lab.on(1, "pgrep -r T -f cluster[.]transfer || true"), "a copy that is stopped")
        start = time.monotonic()
    assert time.monotonic() - start < 6
    with pytest.raises(JobError, match="copying from machine-1: nothing moved for 2 s"):
        home.check()
    lab.on(1, "pkill -KILL -f '[w]hile sleep'; pkill -KILL -f cluster[.]transfer; true")


def test_each_machine_gets_of_the_checkpoints_what_it_needs(tmp_path):
    folder = tmp_path / "checkpoint"
    for epochs, name in ((3, manifests.NEWEST), (2, manifests.BEFORE)):
        (folder / f"epoch-{epochs:04d}").mkdir(parents=True)
        (folder / name).write_text(json.dumps(manifest_of(epochs)))
        for file in manifest_of(epochs)["files"]:
            (folder / f"epoch-{epochs:04d}" / file).write_text("")
    (folder / "epoch-0002-best-keep").mkdir()
    (folder / "epoch-0002-best-keep" / "large").write_text("the user's")
    both = ["checkpoint/epoch-0002/", "checkpoint/epoch-0003/"]
    first = [f"{name}{file}" for name in both for file in ("embeddings-machine-0.safetensors", "model.safetensors")]
    shared = ["checkpoint/manifest-previous.json", "checkpoint/manifest.json"]
    start = Start("", "", "", {}, [("machine-0", ""), ("machine-1", "")], [])
    assert sorted(checkpoint_files(tmp_path, start, "machine-0")) == [*first, *shared]
    second = [f"{name}embeddings-machine-1.safetensors" for name in both]
    assert sorted(checkpoint_files(tmp_path, start, "machine-1")) == second


def test_a_start_that_was_continued_gives_its_logs_only(lab):
    with lab.homecoming() as home:
        lab.save_all(9)
        lab.on(0, f"mkdir -p {lab.results}/logs/machine-0 && echo 0 > {lab.results}/logs/machine-0/log")
        old = home.start
        old.superseded = True
    assert (lab.run / "logs" / "machine-0" / "log").exists()
    assert not (lab.run / "checkpoint").exists()
    assert isinstance(old, Start)
    assert lab.left(0) == []
