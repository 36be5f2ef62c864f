"""Files of the user stay. Folders are locked before anything is written, and new files have the rights of the umask."""

import os
import subprocess
import sys
from pathlib import Path

import dgl
import numpy as np
import pytest
import torch

from support.processes import fix_openmp, fork
from tutorial_lib.data.base import Dataset
from tutorial_lib.data.cache import load_generated, sibling_folder
from tutorial_lib.errors import InputError, JobError, WaitedTooLong, attempts
from tutorial_lib.files import lock_folder, write_json
from tutorial_lib.job.display import SILENT
from tutorial_lib.job.folder import (
    NEW_RUN,
    Continuation,
    check_run_folder,
    default_run_folder,
    open_run,
)
from tutorial_lib.partition import partition_dataset
from tutorial_lib.trainer.manifest import Manifest, publish_checkpoint

HOLD = """
import sys, time
from pathlib import Path
from tutorial_lib.files import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def hold():
    """``hold(folder, seconds)``: another process that has a folder's lock."""
    processes = []

    def start(folder: Path, seconds: float) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLD, str(folder), str(seconds)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_second_program_in_a_run_folder_is_refused_before_it_touches_a_file(tmp_path):
    """L38. The holder of a run folder is named, and the last event may be cut off."""
    names = {default_run_folder("synthetic-products") for _ in range(20)}
    assert len(names) > 15  # two of the four random digits may well be equal
    out, resume = check_run_folder(tmp_path / "run"), Continuation(resume=True)
    with open_run(out, SILENT) as log:
        log.write({"kind": "stage", "stage": "checks"})
        log.write({"kind": "step", "rank": 0, "epoch": []})
        written = (out / "events.jsonl").read_bytes()
        for keep in (NEW_RUN, resume):
            words = f"another program is running in {out}: process {os.getpid()} "
            with pytest.raises(InputError, match=words), open_run(out, SILENT, keep):
                pass
        assert (out / "events.jsonl").read_bytes() == written != b""
    with pytest.raises(InputError, match="is not empty"), open_run(out, SILENT):
        pass  # the first one has ended meanwhile
    with (out / "events.jsonl").open("a") as file:
        file.write('{"kind": "sta')
    (out / "checkpoint").mkdir()
    publish_checkpoint(out / "checkpoint", Manifest("epoch-0001", [], {}, {}))
    with open_run(out, SILENT, resume) as log:
        assert [event["kind"] for event in log.earlier] == ["stage"]  # a step needs numbers
    assert (out / "events.jsonl").read_bytes() == written


@pytest.mark.parametrize("existed", [False, True])
def test_a_job_that_was_not_started_leaves_its_folder_as_it_was(tmp_path, existed):
    """A later start may use the folder. The files of a job that was started stay, also those of a continued run."""
    out = tmp_path / "run"
    if existed:
        out.mkdir()
    for _ in range(2):
        with pytest.raises(InputError, match="a failed check"), open_run(out, SILENT) as log:
            log.write({"kind": "stage", "stage": "checks"})
            (out / "logs" / "machine-0").mkdir(parents=True)
            (out / "logs" / "machine-0" / "agent.log").write_text("hello")
            write_json(out / "job.json", {})
            raise InputError("a failed check")
        assert out.exists() == existed
        assert not existed or os.listdir(out) == []
    with pytest.raises(JobError), open_run(out, SILENT):
        raise JobError("a failed job")
    (out / "checkpoint").mkdir()
    publish_checkpoint(out / "checkpoint", Manifest("epoch-0001", [], {}, {}))
    with pytest.raises(InputError, match="a failed check"), open_run(out, SILENT, Continuation(resume=True)):
        raise InputError("a failed check")
    assert sorted(os.listdir(out)) == ["checkpoint", "events.jsonl"]


def test_a_wait_for_a_cache_names_the_holder_and_has_a_limit(tmp_path, hold, capfd):
    holder = hold(tmp_path, 3.5)
    words = f"(?s)waited 0.3 s for process {holder.pid} .*, which is writing to {tmp_path}"
    with pytest.raises(WaitedTooLong, match=words), lock_folder(tmp_path, seconds=0.3):
        pass
    with lock_folder(tmp_path) as alone:
        assert alone
    assert f"waiting for process {holder.pid} (" in (said := capfd.readouterr().err)
    assert f"which is writing to {tmp_path} (for at most 1800 s)" in said


def test_attempts_begin_at_once_and_end_with_one_at_the_limit(monkeypatch):
    monkeypatch.setattr("tutorial_lib.errors.NOTICE_SECONDS", 0.05)
    tried, said = [], []
    with pytest.raises(WaitedTooLong, match=r"^waited 0\.2 s for the moon$"):
        for left in attempts("the moon", 0.2, pause=0.15, say=said.append):
            tried.append(left)
    assert tried == [pytest.approx(0.2, abs=0.1), pytest.approx(0.05, abs=0.05), 0]
    assert said == ["waiting for the moon (for at most 0.2 s)"]


def test_left_over_folders_of_killed_processes_go_and_others_stay(tmp_path):
    (tmp_path / ".made.tmp").mkdir()
    (tmp_path / ".made.tmp" / "x.npy").write_bytes(b"half")
    (tmp_path / ".made.tmp-of-mine").mkdir()
    with sibling_folder(tmp_path / "made") as new:
        assert list(new.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == [".made.tmp-of-mine"]


def test_json_that_cannot_be_written_leaves_nothing(tmp_path):
    """A full disk is named with the file."""
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert os.listdir(tmp_path) == []
    code = (
        "import resource, signal, sys; from pathlib import Path; from tutorial_lib.files import write_json\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "write_json(Path(sys.argv[1]), list(range(10_000)))"
    )
    path = tmp_path / "x.json"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == f"OSError: [Errno 27] File too large: '{path}'"
    assert os.listdir(tmp_path) == []


def write_everything(_rank: int, _ranks: int, out: Path, dataset: Dataset, umask: int) -> None:
    os.umask(umask)
    partition_dataset(dataset, 2, out / "kaminpar", method="kaminpar")
    partition_dataset(dataset, 2, out / "random", method="random")
    load_generated(out, "made", 1, 0.01, 0, lambda *_: iter([("x", np.arange(3))]))
    write_json(out / "x.json", {})


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_rights_are_those_that_the_umask_gives(tmp_path, umask):
    """In a copy of this process: it has one umask for all threads."""
    os.chmod(tmp_path, 0o777)
    graph = dgl.rand_graph(60, 400)
    graph.ndata["feat"], graph.ndata["label"] = torch.rand(60, 4), torch.arange(60) % 3
    for k, name in enumerate(("train_mask", "val_mask", "test_mask")):
        graph.ndata[name] = torch.arange(60) % 3 == k
    fork(fix_openmp(write_everything), 1, (tmp_path, Dataset("toy", graph, 3, {}), umask), threads=1)
    wrong = {
        str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o777)
        for path in tmp_path.rglob("*")
        if path.stat().st_mode & 0o777 != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert wrong == {}
    assert (tmp_path / "kaminpar" / "part1").is_dir()
