"""The hook in the processes of a job, without DGL: failed ranks end at once, workers end with their rank."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from commands import wait_until

from tutorial_lib.launcher import environment

HOOK = Path(environment.__file__).with_name("hook")
# As DGL's exit handler does, this one waits for ranks that wait for this one.
WAITS_AT_EXIT = "import atexit, os, sys, time; atexit.register(time.sleep, 100)\n"


def start(folder: Path, code: str, python_path: str = "", **more: str) -> subprocess.Popen:
    """Start a Python program as rank 1 of a job whose logs are in ``folder``."""
    rank = {"TUTORIAL_ROLE": "trainer", "TUTORIAL_INDEX": "0", "TUTORIAL_RANKED": "1", "RANK": "1", "LOCAL_RANK": "0"}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), python_path])), "TUTORIAL_LOG_DIR": str(folder)}
    options = {"env": {**os.environ, **rank, **paths, **more}, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize(
    ("end", "code", "exception"),
    [("raise ValueError('no such row')", 1, "ValueError"), ("sys.exit(3)", 3, "SystemExit")],
)
def test_failed_rank_skips_exit_handlers(tmp_path, end, code, exception):
    """L9. The rank leaves a failure event and ends."""
    rank = start(tmp_path, WAITS_AT_EXIT + end)
    rank.communicate(timeout=20)
    assert rank.returncode == code
    event = json.loads((tmp_path / "events-0.jsonl").read_text())
    assert (event["kind"], event["rank"], event["exception"]) == ("failure", 1, exception)


def test_worker_ends_when_its_rank_is_killed(tmp_path):
    """L11. The worker of a killed rank would wait for work forever."""
    (tmp_path / "workers.py").write_text("import time\ndef work():\n    time.sleep(100)\n")
    code = "import multiprocessing as mp, time, workers\n"
    code += "worker = mp.get_context('spawn').Process(target=workers.work)\n"
    code += "if __name__ == '__main__':\n    worker.start()\n    print(worker.pid, flush=True)\n    time.sleep(100)"
    rank = start(tmp_path, code, str(tmp_path))
    pid = int(rank.stdout.readline())
    registered = tmp_path / ".processes"
    wait_until(lambda: list(registered.glob(f"worker-0-{pid}")), "the worker")
    rank.send_signal(signal.SIGKILL)
    rank.communicate()
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "the end of the worker")


def test_sitecustomize_of_user_also_runs(tmp_path):
    """L30. The hook has the same name."""
    (tmp_path / "sitecustomize.py").write_text("print('of the user')\n")
    output, _ = start(tmp_path, "print('program')", str(tmp_path)).communicate(timeout=20)
    assert output.splitlines() == ["of the user", "program"]
