"""Run folders and caches: files of the user are kept, and folders are locked before a program writes to them."""

import os
import re
import subprocess
import sys

import pytest

from tutorial_lib.errors import InputError, JobError, WaitedTooLong
from tutorial_lib.files import lock_folder, sibling_folder, write_json
from tutorial_lib.job.display import SILENT
from tutorial_lib.job.folder import CheckpointOptions, check_run_folder, default_run_folder, open_run
from tutorial_lib.trainer.manifest import Manifest, publish_checkpoint


def test_run_folder_in_use_is_refused_and_unchanged(tmp_path):
    """L38. The error names the process that uses the folder. An incomplete last event is removed."""
    names = {default_run_folder("synthetic-products") for _ in range(20)}
    assert len(names) > 15  # the random digits of two folders may be equal
    out, resume = check_run_folder(tmp_path / "run"), CheckpointOptions(resume=True)
    with open_run(out, SILENT, CheckpointOptions()) as log:
        log.write({"kind": "stage", "stage": "checks"})
        written = (out / "events.jsonl").read_bytes()
        for checkpointing in (CheckpointOptions(), resume):
            words = f"process {os.getpid()} .*which is writing to {out}"
            with pytest.raises(WaitedTooLong, match=words), open_run(out, SILENT, checkpointing):
                pass
        assert (out / "events.jsonl").read_bytes() == written != b""
    with pytest.raises(InputError, match="is not empty"), open_run(out, SILENT, CheckpointOptions()):
        pass  # the first program has ended
    with (out / "events.jsonl").open("a") as file:
        file.write('{"kind": "sta')
    (out / "checkpoint").mkdir()
    publish_checkpoint(out / "checkpoint", Manifest("epoch-0001", [], {}, {}))
    with open_run(out, SILENT, resume):
        pass
    assert (out / "events.jsonl").read_bytes() == written


def test_refused_job_leaves_no_run_folder(tmp_path):
    """The files of a started job and of a continued run are kept."""
    out = tmp_path / "run"
    with pytest.raises(InputError, match="a failed check"), open_run(out, SILENT, CheckpointOptions()) as log:
        log.write({"kind": "stage", "stage": "checks"})
        (out / "logs" / "machine-0").mkdir(parents=True)
        raise InputError("a failed check")
    assert not out.exists()
    with pytest.raises(JobError), open_run(out, SILENT, CheckpointOptions()):
        raise JobError("a failed job")
    (out / "checkpoint").mkdir()
    publish_checkpoint(out / "checkpoint", Manifest("epoch-0001", [], {}, {}))
    with pytest.raises(InputError, match="a failed check"), open_run(out, SILENT, CheckpointOptions(resume=True)):
        raise InputError("a failed check")
    assert sorted(os.listdir(out)) == ["checkpoint", "events.jsonl"]


def test_wait_for_cache_lock_names_holder_and_times_out(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("tutorial_lib.errors.NOTICE_SECONDS", 0.1)
    with lock_folder(tmp_path) as alone, pytest.raises(WaitedTooLong), lock_folder(tmp_path, seconds=0.5):
        pass
    assert alone
    words = f"waiting for process {os.getpid()} \\(.*, which is writing to {tmp_path} \\(for at most 0.5 s"
    assert re.search(words, capfd.readouterr().err)


def test_only_folders_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".made.tmp").mkdir()
    (tmp_path / ".made.tmp" / "x.npy").write_bytes(b"half")
    (tmp_path / ".made.tmp-of-mine").mkdir()
    with sibling_folder(tmp_path / "made") as new:
        assert list(new.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == [".made.tmp-of-mine"]


def test_failed_json_write_leaves_no_file(tmp_path):
    """The error of a full disk names the file."""
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
