"""Ranks on one machine: results, failures, output, what is left, and what a fork breaks. All with real processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import rank_functions as rf
import torch
from commands import wait_until

from support.processes import RankFailed, RanksTimedOut, fix_openmp, fork, spawn
from tutorial_lib.errors import InputError

pytestmark = pytest.mark.usefixtures("nothing_left")
METHODS = pytest.mark.parametrize("start", [fork, spawn])
LIMIT = 30.0
TESTS = str(Path(__file__).parents[1])


def run_python(code: str, *, timeout: float = 40.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that can import ``rank_functions``."""
    environment = {**os.environ, "PYTHONPATH": TESTS, "OMP_NUM_THREADS": "2", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def open_things() -> tuple[int, set[str], int]:
    """This process's open files, the temp folder, and the ports it listens on."""
    listening = [c for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    return len(os.listdir("/proc/self/fd")), set(os.listdir(tempfile.gettempdir())), len(listening)


def test_import_needs_no_dgl() -> None:
    code = "import sys, support.processes as p; print('dgl' in sys.modules, 'torch' in sys.modules)"
    assert run_python(code).stdout.split() == ["False", "False"]


# ---- results


def lines_of(*ranks: int) -> list[str]:
    """What ``speak`` writes, as it is shown."""
    return [f"[rank {rank}] {kind} {rank}" for rank in ranks for kind in ("python", "error", "printf", "program")]


@METHODS
def test_results_in_rank_order_equal_all_reduce_and_nothing_left(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tensor that all share and output of every kind, in one start: one of fresh interpreters takes long."""
    start(rf.thread_count, 1)  # whatever Python opens once
    tensor = torch.zeros(4).share_memory_()
    before = open_things()
    assert start(rf.everything, 2, (tensor,), backend="gloo", timeout=LIMIT) == [[1.0, 3.0, 5.0]] * 2
    files, folder, ports = open_things()
    assert (files, ports) == (before[0], before[2])
    assert not [name for name in folder - before[1] if name.startswith(("tmp", "torch", "pymp"))]
    assert tensor.tolist() == [1.0] * 4
    assert capsys.readouterr().out.splitlines() == lines_of(0, 1)


def test_arguments_arrive_and_the_order_is_that_of_the_ranks() -> None:
    assert fork(rf.identity, 3, ("a", {"b": 1})) == [(rank, 3, "a", {"b": 1}) for rank in range(3)]


def test_runs_at_once_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the environment that ranks start with, and a rank is a copy of what other threads do meanwhile."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with ThreadPoolExecutor(8) as threads:
        runs = [threads.submit(fork, rf.own_group, 2, timeout=LIMIT) for _ in range(16)]
        assert [run.result() for run in runs] == [[1.0, 1.0]] * 16
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_environment_is_that_of_torchrun() -> None:
    first, second = fork(rf.environment, 2)
    assert (first["RANK"], second["RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "29500"


def test_threads_are_divided() -> None:
    cpus = len(os.sched_getaffinity(0))
    assert fork(rf.thread_count, 2) == [max(1, cpus // 2)] * 2
    assert fork(rf.thread_count, 1, threads=3) == [3]


def test_exit_zero_is_no_failure() -> None:
    assert fork(rf.leave_early, 2, backend="gloo", timeout=LIMIT) == [None, None]


# ---- failures


@METHODS
def test_exception_keeps_its_type_and_traceback_and_ends_the_siblings(start: Callable[..., Any]) -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"^rank 1 cannot go on$") as caught:
        start(rf.fail, 2, ("ValueError",), backend="gloo", timeout=LIMIT)
    assert time.monotonic() - begin < 25  # a spawned rank needs 10 s to start on a busy machine
    text = str(caught.value.__cause__)
    assert "rank 1:" in text
    assert 'raise ValueError("rank 1 cannot go on")' in text
    assert "child.py" not in text


def test_own_exception_keeps_its_attributes() -> None:
    with pytest.raises(rf.OwnError) as caught:
        fork(rf.fail, 2, ("OwnError",))
    assert caught.value.code == 7


@pytest.mark.parametrize(
    ("how", "message", "code", "name"),
    [
        ("_exit", r"^rank 1 ended with exit code 3 before it returned a result\nlast .*\n  \| last words$", 3, None),
        ("SIGKILL", r"^rank 1 was killed by SIGKILL .*\nlast .*\n  \| last words$", -9, "SIGKILL"),
        ("exit 2", r"^rank 1 called sys.exit\(2\)", 2, None),
        ("StubbornError", r"^rank 1 raised StubbornError: 7 in here", None, None),
        ("KeyboardInterrupt", r"^rank 1 raised KeyboardInterrupt", None, None),
    ],
)
def test_end_without_a_result_names_rank_and_cause(how: str, message: str, code: int | None, name: str | None) -> None:
    with pytest.raises(RankFailed, match=message) as caught:
        fork(rf.fail, 2, (how,), backend="gloo", timeout=LIMIT)
    assert (caught.value.rank, caught.value.signal) == (1, name)
    assert code is None or caught.value.exit_code == code


def test_the_cause_may_come_a_moment_after_its_effect() -> None:
    with pytest.raises(ValueError, match="the cause"):
        fork(rf.effect_before_cause, 2)


@METHODS
def test_a_rank_that_dies_after_its_return_is_a_failure(start: Callable[..., Any]) -> None:
    with pytest.raises(RankFailed, match=r"^rank 1 returned its result, then ended with exit code 3") as caught:
        start(rf.dies_after_its_return, 2, timeout=LIMIT)
    assert (caught.value.rank, caught.value.exit_code, caught.value.output) == (1, 3, "last words")


def test_ranks_do_not_inherit_the_sockets_of_the_parent() -> None:
    """The port at which they find each other would stay taken after the parent's end."""
    assert fork(rf.listening_sockets, 2) == [0, 0]


def test_result_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TypeError, match=r"rank 1 returned a builtins\.function, which cannot be pickled"):
        fork(rf.fail, 2, ("unpicklable",))


def test_time_limit_says_where_each_rank_is() -> None:
    with pytest.raises(RanksTimedOut) as caught:
        fork(rf.sleeps_on, 2, backend="gloo", timeout=1.5)
    error = caught.value
    assert str(error).startswith("2 of 2 ranks did not return within 1.5 s: rank 0, rank 1")
    assert "in barrier" in error.stacks[0]
    assert "in sleeps_on" in error.stacks[1]
    assert "pytest" not in str(error)


def test_a_rank_that_has_not_come_far_when_time_is_up() -> None:
    with pytest.raises(RanksTimedOut, match="it had not started Python code of ours yet"):
        spawn(rf.identity, 1, timeout=0.01)


@pytest.mark.parametrize("bad", [{"nprocs": 0}, {"nprocs": 1.5}, {"timeout": 0}, {"threads": 0}, {"fn": 3}])
def test_wrong_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(bad))} must be"):
        fork(**{"fn": rf.identity, "nprocs": 1, **bad})


def test_what_cannot_be_pickled_is_named_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(InputError, match=r"the function .*<lambda> cannot be pickled") as caught:
        spawn(lambda *ranks: ranks, 2)
    assert "top level of a module" in caught.value.remedy
    del caught  # its traceback keeps torch's queues, and has this frame, which would keep it
    with pytest.raises(InputError, match="argument 1 of identity, a lock, cannot be pickled"):
        spawn(rf.identity, 2, (0, threading.Lock()))


@pytest.mark.parametrize(
    ("guard", "code", "output", "error"),
    [("True", 1, "", "the script calls spawn() at its top level"), ("__name__ == '__main__'", 0, "[0, 1]\n", "")],
)
def test_a_script_needs_a_main_guard(guard: str, code: int, output: str, error: str, tmp_path: Path) -> None:
    text = "from support.processes import spawn\ndef f(rank, n):\n    return rank\n"
    (tmp_path / "script.py").write_text(f"{text}if {guard}:\n    print(spawn(f, 2))\n")
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stdout) == (code, output)
    assert error in done.stderr


# ---- output


def test_no_echo(capsys: pytest.CaptureFixture[str]) -> None:
    fork(rf.speak, 1, echo=False)
    assert capsys.readouterr().out == ""


@pytest.mark.whole_run
def test_in_jupyter() -> None:
    """Output appears in the cell that called; a cell's function is refused by spawn and accepted by fork."""
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "import sys; sys.path.insert(0, " + repr(TESTS) + ")\n"
        "from support.processes import spawn, fork\nimport rank_functions as rf\nfork(rf.speak, 2)",
        "spawn(rf.all_reduced, 2, backend='gloo', timeout=30)",
        "def mine(rank, world_size):\n    print('from a cell')\n    return rank\nfork(mine, 2)",
        "try:\n    spawn(mine, 2)\nexcept Exception as error:\n    print(error, '|', error.remedy)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    texts = ["".join(o.get("text", "") or o["data"]["text/plain"] for o in cell.outputs) for cell in notebook.cells]
    assert texts[0].splitlines()[:4] == lines_of(0)
    assert texts[1] == "[[1.0, 3.0, 5.0], [1.0, 3.0, 5.0]]"
    assert texts[2] == "[rank 0] from a cell\n[rank 1] from a cell\n[0, 1]"
    assert texts[3].startswith("mine is defined in a notebook cell (module __main__)")
    assert "Put it in a module" in texts[3]


# ---- the end of the parent


def wait_for_pids(folder: Path, count: int) -> list[int]:
    wait_until(lambda: len(list(folder.glob("*.pid"))) >= count, f"{count} files", LIMIT)
    return [int(pid) for path in folder.glob("*.pid") for pid in path.read_text().split()]


def runs(pid: int) -> bool:
    """Not gone, and not waiting only for somebody to read its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids: list[int], seconds: float = 5.0) -> None:
    wait_until(lambda: not any(map(runs, pids)), f"the end of {pids}", seconds)


@pytest.mark.parametrize(
    ("method", "end"), [("fork", signal.SIGKILL), ("spawn", signal.SIGKILL), ("fork", signal.SIGINT)]
)
def test_ranks_and_their_programs_end_with_the_parent(tmp_path: Path, method: str, end: signal.Signals) -> None:
    code = (
        f"import rank_functions as rf, threading\nfrom support.processes import {method} as start\n"
        f"start(rf.with_child, 2, ({str(tmp_path)!r},))"
    )
    environment = {**os.environ, "PYTHONPATH": TESTS}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    try:
        pids = wait_for_pids(tmp_path, 2)
        parent.send_signal(end)
        parent.wait(15)
    finally:
        parent.kill()
        parent.wait()
    assert len(pids) == 4
    wait_until_gone(pids)


def test_programs_of_a_rank_end_with_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RanksTimedOut):
        fork(rf.with_child, 2, (str(tmp_path),), timeout=1.5)
    wait_until_gone(wait_for_pids(tmp_path, 2), 1.0)


# ---- OpenMP after a fork

AFTER_OPENMP = """
import json, rank_functions as rf
from support.processes import RanksTimedOut, fork
rf.parallel_region(0, 1)
found = {}
found["fixed"] = fork(rf.fixed, 2, threads=2, timeout=20)
found["nested"] = fork(rf.fixed_nested, 2, threads=2, timeout=20)
found["one thread"] = fork(rf.parallel_region, 2, threads=1, timeout=20)
try:
    fork(rf.parallel_region, 1, threads=2, timeout=2)
except RanksTimedOut as error:
    found["hang"] = str(error)
    found["remedy"] = error.remedy
print(json.dumps(found))
"""


def test_fork_after_openmp_hangs_unless_in_a_fresh_thread() -> None:
    done = run_python(AFTER_OPENMP)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fixed"] == [[0, 4e6], [1, 4e6]]
    assert found["nested"] == [[4e6, 4e6]] * 2
    assert found["one thread"] == [4e6, 4e6]
    assert "in parallel_region" in found["hang"]
    assert "fix_openmp" in found["remedy"]


def test_fix_openmp_passes_everything_on() -> None:
    assert fork(rf.fixed, 2, ("main thread",)) == [False, False]
    with pytest.raises(ValueError, match="rank 1 cannot go on") as caught:
        fork(rf.fixed, 1, ("ValueError",), timeout=LIMIT)
    assert "forking.py" not in str(caught.value.__cause__)
    with pytest.raises(RankFailed, match=r"called sys.exit\(2\)"):
        fork(rf.fixed, 1, ("exit 2",), timeout=LIMIT)
    with pytest.raises(TypeError, match="cannot be pickled"):
        fork(rf.fixed, 1, ("unpicklable",), timeout=LIMIT)
    with pytest.raises(RankFailed, match="exit code 3"):
        fork(rf.fixed, 1, ("_exit",), timeout=LIMIT)
    with pytest.raises(SystemExit):
        rf.fixed(0, 1, "exit 2")
    assert rf.fixed.__name__ == "fixed"


def test_fix_openmp_under_spawn_as_decorator_and_as_call() -> None:
    assert spawn(rf.fixed, 1, ("main thread",), timeout=LIMIT) == [False]
    assert spawn(fix_openmp(rf.thread_count), 1, threads=2, timeout=LIMIT) == [2]


def test_a_graphbolt_graph_travels_to_spawned_ranks():
    """Its tensors exist only while it is pickled."""
    import dgl
    import dgl.graphbolt

    graph = dgl.graphbolt.from_dglgraph(dgl.rand_graph(50, 300), is_homogeneous=True)
    assert spawn(rf.edges_of_graphbolt, 2, (graph,)) == [300, 301]
    before = len(os.listdir("/proc/self/fd"))  # from now on the graph itself lies in shared memory
    assert spawn(rf.edges_of_graphbolt, 1, (graph,)) == [300]
    assert len(os.listdir("/proc/self/fd")) == before
