"""Ranks on one machine with real processes: results, failures, output, cleanup and fork."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import rank_functions as rf
import torch
from commands import wait_until

from support.processes import RankFailed, RanksTimedOut, fix_openmp, fork, spawn
from tutorial_lib.errors import InputError

pytestmark = pytest.mark.usefixtures("nothing_left")
METHODS = pytest.mark.parametrize("start", [fork, spawn])
LIMIT = 100.0  # against hangs: on a busy computer, a spawned rank needs half a minute to start
HELPERS = str(Path(__file__).parents[1] / "helpers")
ENVIRONMENT = {"PYTHONPATH": HELPERS, "OMP_NUM_THREADS": "2"}


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that can import ``rank_functions``."""
    command = [sys.executable, *words]
    return subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)


def open_files_and_ports() -> tuple[int, set[str], int]:
    """Return the number of open files, the temporary files and the number of listening ports."""
    listening = [c for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    return len(os.listdir("/proc/self/fd")), set(os.listdir(tempfile.gettempdir())), len(listening)


def test_import_needs_no_dgl():
    code = "import sys, support.processes as p; print('dgl' in sys.modules, 'torch' in sys.modules)"
    assert run_python("-c", code).stdout.split() == ["False", "False"]


def expected_lines(*ranks: int) -> list[str]:
    """Return the displayed output of ``print_everywhere``."""
    return [f"[rank {rank}] {kind} {rank}" for rank in ranks for kind in ("python", "error", "printf", "program")]


@METHODS
def test_results_output_and_all_reduce_in_one_start(start, capsys):
    """One start tests a shared tensor and all kinds of output, because new interpreters start slowly."""
    start(rf.thread_count, 1)  # whatever Python opens once
    tensor = torch.zeros(4).share_memory_()
    files, folder, ports = open_files_and_ports()
    assert start(rf.print_and_reduce, 2, (tensor,), backend="gloo", timeout=LIMIT) == [[1.0, 3.0, 5.0]] * 2
    now = open_files_and_ports()
    assert now[0] <= files
    assert now[2] <= ports
    assert not [name for name in now[1] - folder if name.startswith(("tmp", "torch", "pymp"))]
    assert tensor.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert capsys.readouterr().out.splitlines() == expected_lines(0, 1)


def test_ranks_get_arguments_environment_and_threads(capsys):
    """An inherited socket would keep the port of the ranks in use after the end of the parent."""
    first, second = found = fork(rf.describe_rank, 2, ("a", {"b": 1}))
    assert [rank["args"] for rank in found] == [(rank, 2, "a", {"b": 1}) for rank in range(2)]
    assert [rank["threads"] for rank in found] == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
    assert [rank["listens"] for rank in found] == [[], []]
    one, other = first["environment"], second["environment"]
    assert (one["RANK"], other["RANK"], other["WORLD_SIZE"]) == ("0", "1", "2")
    assert one["MASTER_PORT"] == other["MASTER_PORT"] != "29500"
    assert fork(rf.thread_count, 1, threads=3) == [3]
    fork(rf.print_everywhere, 1, echo=False)
    assert capsys.readouterr().out == ""


def test_concurrent_runs_do_not_interfere(monkeypatch):
    """Runs share the environment in which ranks start, and a fork copies the state of other threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with ThreadPoolExecutor(8) as threads:
        runs = [threads.submit(fork, rf.join_own_group, 2, timeout=LIMIT) for _ in range(16)]
        assert [run.result() for run in runs] == [[1.0, 1.0]] * 16
    assert os.environ["OMP_NUM_THREADS"] == "1"


@METHODS
def test_exception_keeps_attributes_and_ends_other_ranks(start):
    begin = time.monotonic()
    with pytest.raises(rf.PicklableError) as caught:
        start(rf.fail, 2, ("PicklableError",), backend="gloo", timeout=LIMIT)
    assert time.monotonic() - begin < 0.8 * LIMIT
    assert caught.value.code == 7
    text = str(caught.value.__cause__)
    assert "rank 1:" in text
    assert 'raise PicklableError(7, "here")' in text
    assert "child.py" not in text


@pytest.mark.parametrize(
    ("how", "message", "code", "name"),
    [
        ("_exit", r"^rank 1 ended with exit code 3 before it returned a result\nlast .*\n  \| last words$", 3, None),
        ("SIGKILL", r"^rank 1 was killed by SIGKILL .*\nlast .*\n  \| last words$", -9, "SIGKILL"),
        ("exit 2", r"^rank 1 called sys.exit\(2\)", 2, None),
        ("UnpicklableError", r"^rank 1 raised UnpicklableError: 7 in here", None, None),
        ("KeyboardInterrupt", r"^rank 1 raised KeyboardInterrupt", None, None),
    ],
)
def test_exit_without_result_names_rank_and_cause(how, message, code, name):
    with pytest.raises(RankFailed, match=message) as caught:
        fork(rf.fail, 2, (how,), backend="gloo", timeout=LIMIT)
    assert (caught.value.rank, caught.value.signal) == (1, name)
    assert code is None or caught.value.exit_code == code


def test_cause_is_found_after_its_consequence():
    with pytest.raises(ValueError, match="the cause"):
        fork(rf.fail_after_consequence, 2)


@METHODS
def test_rank_that_dies_after_return_is_a_failure(start):
    with pytest.raises(RankFailed, match=r"^rank 1 returned its result, then ended with exit code 3") as caught:
        start(rf.die_after_return, 2, timeout=LIMIT)
    assert (caught.value.rank, caught.value.exit_code, caught.value.output) == (1, 3, "last words")


def test_time_limit_reports_stack_of_each_rank():
    with pytest.raises(RanksTimedOut) as caught:
        fork(rf.miss_barrier, 2, backend="gloo", timeout=1.5)
    error = caught.value
    assert str(error).startswith("2 of 2 ranks did not return within 1.5 s: rank 0, rank 1")
    assert "in barrier" in error.stacks[0]
    assert "in miss_barrier" in error.stacks[1]
    assert "pytest" not in str(error)
    with pytest.raises(RanksTimedOut, match="the rank had not started its Python code"):
        spawn(rf.thread_count, 1, timeout=0.01)


def test_wrong_arguments_are_named_before_a_process_starts(monkeypatch):
    for name, value in {"nprocs": 1.5, "timeout": 0, "threads": 0, "fn": 3}.items():
        with pytest.raises(InputError, match=f"^{name} must be"):
            fork(**{"fn": rf.thread_count, "nprocs": 1, name: value})
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(InputError, match=r"the function .*<lambda> cannot be pickled") as caught:
        spawn(lambda *ranks: ranks, 2)
    assert "top level of a module" in caught.value.remedy
    del caught  # its traceback keeps torch's queues, and has this frame, which would keep it
    with pytest.raises(InputError, match="argument 1 of describe_rank, a lock, cannot be pickled"):
        spawn(rf.describe_rank, 2, (0, threading.Lock()))


@pytest.mark.parametrize(
    ("guard", "code", "output", "error"),
    [("True", 1, "", "the script calls spawn() at its top level"), ("__name__ == '__main__'", 0, "[0, 1]\n", "")],
)
def test_a_script_needs_a_main_guard(guard, code, output, error, tmp_path):
    text = "from support.processes import spawn\ndef f(rank, n):\n    return rank\n"
    (tmp_path / "script.py").write_text(f"{text}if {guard}:\n    print(spawn(f, 2))\n")
    done = run_python(str(tmp_path / "script.py"))
    assert (done.returncode, done.stdout) == (code, output)
    assert error in done.stderr


@pytest.mark.whole_run
def test_in_jupyter():
    """Output appears in the calling cell. spawn refuses a function of a cell, and fork accepts it."""
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "import sys; sys.path.insert(0, " + repr(HELPERS) + ")\n"
        "from support.processes import spawn, fork\nimport rank_functions as rf\nfork(rf.print_everywhere, 2)",
        "spawn(rf.thread_count, 1, threads=2, timeout=60)",
        "def mine(rank, world_size):\n    print('from a cell')\n    return rank\nfork(mine, 2)",
        "try:\n    spawn(mine, 2)\nexcept Exception as error:\n    print(error, '|', error.remedy)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=LIMIT, kernel_name="python3").execute()
    texts = ["".join(o.get("text", "") or o["data"]["text/plain"] for o in cell.outputs) for cell in notebook.cells]
    assert texts[0].splitlines()[:4] == expected_lines(0)
    assert texts[1] == "[2]"
    assert texts[2] == "[rank 0] from a cell\n[rank 1] from a cell\n[0, 1]"
    assert texts[3].startswith("mine is defined in a notebook cell (module __main__)")
    assert "Write it to a module" in texts[3]


@pytest.mark.parametrize(
    ("method", "end"), [("fork", signal.SIGKILL), ("spawn", signal.SIGKILL), ("fork", signal.SIGINT)]
)
def test_ranks_and_their_programs_end_with_the_parent(tmp_path, method, end):
    """``nothing_left`` finds ranks and programs that do not end."""
    code = (
        f"import rank_functions as rf, threading\nfrom support.processes import {method} as start\n"
        f"start(rf.start_child, 2, ({str(tmp_path)!r},))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ | ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "two ranks", LIMIT, parent)
        parent.send_signal(end)
        parent.wait(15)
    finally:
        parent.kill()
        parent.wait()


def test_programs_of_a_rank_end_with_a_failure(tmp_path):
    with pytest.raises(RanksTimedOut):
        fork(rf.start_child, 2, (str(tmp_path),), timeout=3)
    assert len(list(tmp_path.iterdir())) == 2


AFTER_OPENMP = """
import json, rank_functions as rf
from support.processes import RanksTimedOut, fork
rf.parallel_region(0, 1)
found = {}
found["fixed"] = fork(rf.compute_in_parallel, 2, threads=2, timeout=20)
found["one thread"] = fork(rf.parallel_region, 2, threads=1, timeout=20)
try:
    fork(rf.parallel_region, 1, threads=2, timeout=2)
except RanksTimedOut as error:
    found["hang"] = str(error)
    found["remedy"] = error.remedy
print(json.dumps(found))
"""


def test_fork_after_openmp_hangs_unless_in_a_fresh_thread():
    done = run_python("-c", AFTER_OPENMP)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fixed"] == [[0, 4e6, False], [1, 4e6, False]]
    assert found["one thread"] == [4e6, 4e6]
    assert "in parallel_region" in found["hang"]
    assert "fix_openmp" in found["remedy"]


def test_fix_openmp_passes_everything_on():
    assert fork(rf.compute_in_parallel, 2, ("exit 0",), backend="gloo", timeout=LIMIT) == [None, None]  # no failure
    with pytest.raises(rf.PicklableError) as caught:
        fork(rf.compute_in_parallel, 1, ("PicklableError",), timeout=LIMIT)
    assert "forking.py" not in str(caught.value.__cause__)
    with pytest.raises(RankFailed, match=r"called sys.exit\(2\)"):
        fork(rf.compute_in_parallel, 1, ("exit 2",), timeout=LIMIT)
    with pytest.raises(TypeError, match=r"rank 0 returned a builtins\.function, which cannot be pickled"):
        fork(rf.compute_in_parallel, 1, ("unpicklable",), timeout=LIMIT)
    assert rf.compute_in_parallel.__name__ == "compute_in_parallel"
    assert spawn(rf.compute_in_parallel, 1, timeout=LIMIT) == [(0, 4e6, False)]
    assert spawn(fix_openmp(rf.thread_count), 1, threads=2, timeout=LIMIT) == [2]
