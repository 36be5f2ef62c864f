"""Checkers of lesson 7, the pitfalls of data-parallel training."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.exercises import exercise, expect
from support.exercises.programs import result, results


@exercise(1)
def check_openmp(program: str) -> None:
    """Exercise 1: the child of a program ends, although its parent has used OpenMP with two threads."""
    found = result(program)
    expect("the sum of the parent", found["parent"], 2_000_000.0)
    expect("threads of the parent", found["threads of the parent"], 2, "leave the parent as it was")
    hint = "torch.set_num_threads(1) in the child, or a new threading.Thread there, or get_context('spawn')"
    expect("the sum of the child", found["child"], 2_000_000.0, hint)


@exercise(2)
def check_arguments(program: str) -> None:
    """Exercise 2: two spawned ranks read different lines of one file."""
    files = results(program, f"{Path(program).stem}-*.json")
    expect("ranks that have written their sum", len(files), 2)
    found = [json.loads(file.read_text()) for file in files]
    hint = "rank 0 adds the lines 0, 2, 4, ..., rank 1 the lines 1, 3, 5, ..."
    expect("the sum of rank 0 and of rank 1", [rank["sum"] for rank in found], [249_500, 250_000], hint)
    expect("how the ranks were started", [rank["started by"] for rank in found], ["spawn"] * 2, "leave get_context")


@exercise(3)
def check_guard(program: str) -> None:
    """Exercise 3: a program receives a number from a spawned process."""
    hint = "below the guard stands what only the parent does; above it what the child needs when it imports this"
    expect("what was received: the number, and how its sender was started", result(program), [42, "spawn"], hint)


JOINED = 6.609375  # five steps in one process, each with the mean over the ranks that still have a batch


@exercise(4)
def check_join(program: str) -> None:
    """Exercise 4: all eight batches of a program count under ``Join``."""
    files = results(program, f"{Path(program).stem}-*.json")
    expect("ranks that have written their weight", len(files), 2, "with Join([model]): around the loop")
    weights = [json.loads(file.read_text()) for file in files]
    hint = "divide by the ranks that still have a batch: divide_by_initial_world_size=False"
    expect("the weight of rank 0 and of rank 1", weights, [JOINED] * 2, hint)


# For each process (seconds, exit code or minus a signal), and the expected result of the function
NAP = 8.0
QUICK = 4.0  # a slower function has waited for a process that it should have ended
WATCH_CASES = (
    ([(0.0, 0), (0.2, 3), (NAP, 0)], (1, 3)),
    ([(0.2, -9), (NAP, 0)], (0, -9)),
    ([(NAP, 0), (0.1, 0), (0.3, 1)], (2, 1)),
    ([(0.1, 0), (0.3, 0)], None),
)


@exercise(5)
def check_first_failure(first_failure: Callable[[Sequence[Any], float], tuple[int, int] | None]) -> None:
    """Exercise 5: with real processes, one process fails, or all of them sleep too long."""
    for plan, expected in WATCH_CASES:
        what = "processes: " + ", ".join(f"{k} {_words(*entry)}" for k, entry in enumerate(plan))
        got, seconds, left = _watch(first_failure, plan, 30.0)
        expect(f"{what}: what came back", got, expected, "look at .exitcode of each, again and again")
        expect(f"{what}: it came back at once", seconds < QUICK, True, "join() without a limit waits for sleepers")
        expect(f"{what}: still running", left, [], "terminate() the others, then join() them")
    plan = [(NAP, 0), (NAP, 0)]
    got, seconds, left = _watch(first_failure, plan, 0.5)
    expect("all sleep and the limit is half a second: what was raised", got, "TimeoutError")
    expect("all sleep and the limit is half a second: it came at once", seconds < QUICK, True)
    expect("all sleep and the limit is half a second: still running", left, [], "end them before you raise")


def _words(seconds: float, code: int) -> str:
    if seconds == NAP:
        return "sleeps"
    return f"ends by signal {-code}" if code < 0 else f"ends with exit code {code}"


def _watch(
    first_failure: Callable[[Sequence[Any], float], tuple[int, int] | None],
    plan: Sequence[tuple[float, int]],
    limit: float,
) -> tuple[Any, float, list[int]]:
    """Start the processes and call the function. Return its result, its seconds, and the processes that still run."""
    processes = [multiprocessing.get_context("fork").Process(target=_nap, args=entry, daemon=True) for entry in plan]
    for process in processes:
        process.start()
    start = time.monotonic()
    try:
        try:
            got: Any = first_failure(processes, limit)
        except TimeoutError:
            got = "TimeoutError"
        seconds = time.monotonic() - start
        return got, seconds, [number for number, process in enumerate(processes) if process.is_alive()]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _nap(seconds: float, code: int) -> None:
    """Sleep. The process ends earlier if its parent is gone."""
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        time.sleep(0.02)
    if code < 0:
        os.kill(os.getpid(), signal.Signals(-code))
    os._exit(code)


@exercise(6)
def check_seeds(program: str) -> None:
    """Exercise 6: with seeds 7, 7 and 8, two ranks share 40 nodes consistently and use different dropout masks."""
    files = results(program, f"{Path(program).stem}-*.json")
    expect("ranks that have written what they drew", len(files), 2)
    first, second = (json.loads(file.read_text()) for file in files)  # by run, then by epoch
    own = "an order that all ranks share needs a torch.Generator of its own, which no rank seeds with its number"
    for epoch, (a, b) in enumerate(zip(first[0], second[0], strict=True)):
        expect(f"epoch {epoch}: nodes of both ranks, sorted", sorted(a["nodes"] + b["nodes"]), list(range(40)), own)
        hint = "the global generator draws the dropout: another seed on each rank"
        expect(f"epoch {epoch}: both ranks keep the same values", a["kept"] == b["kept"], False, hint)
    for number, runs in enumerate((first, second)):
        for what in ("nodes", "kept"):
            of_runs = [[epoch[what] for epoch in run] for run in runs]
            hint = "seed with the epoch, or seed once, before the epochs"
            expect(f"rank {number}, {what}: epoch 1 repeats epoch 0", of_runs[0][0] == of_runs[0][1], False, hint)
            expect(f"rank {number}, {what}: a second run with seed 7 repeats the first", of_runs[0] == of_runs[1], True)
            expect(f"rank {number}, {what}: seed 8 repeats seed 7", of_runs[0] == of_runs[2], False, "use the seed")


@exercise(7)
def check_four(program: str) -> None:
    """Exercise 7: two ranks of a program add the numbers from 1 to 10, without any of four pitfalls."""
    files = results(program, f"{Path(program).stem}-*.json")
    found = {f"rank {file.stem[-1]}": json.loads(file.read_text()) for file in files}
    for rank, wrote in found.items():
        _check_rank(rank, wrote)
    hint = "each rank writes its own; one that was stopped, because the other failed, has written nothing"
    expect("ranks that have written what they found", list(found), ["rank 0", "rank 1"], hint)
    added = sorted(number for wrote in found.values() for number in wrote["numbers"])
    expect("numbers that the ranks have added, sorted", added, list(range(1, 11)), "each number on one rank")
    for rank, wrote in found.items():
        expect(f"{rank}: the total", wrote.get("total"), 55.0, "all ranks sum their parts: dist.all_reduce")
        expect(f"{rank}: the count", wrote.get("count"), 10.0, "all ranks sum their counts: dist.all_reduce")


def _check_rank(rank: str, wrote: dict[str, Any]) -> None:
    """Check a rank's GPU error, its connection to the other rank, its number of threads, and its end."""
    expect(f"{rank} has asked for the GPU", "cuda" in wrote, True, "leave ask_cuda() in rank_main")
    hint = "the parent asks the CUDA library before it forks: spawn the ranks, or do not ask"
    expect(f"{rank} is refused the GPU because of a fork", "Cannot re-initialize CUDA" in wrote["cuda"], False, hint)
    hint = "there must be two ranks"
    if "ranks" not in wrote:
        port = "one port for both ranks, and free; " if "threads" in wrote else ""
        hint = f"{port}it ended with {str(wrote.get('error')).split('. ')[0]}"
    expect(f"{rank}: ranks in its group", wrote.get("ranks"), 2, hint)
    cpus, threads = len(os.sched_getaffinity(0)), wrote.get("threads")
    share = max(1, cpus // 2)
    right = threads if threads in range(1, share + 1) else share
    hint = "from 1 to max(1, CPUS // RANKS)"
    expect(f"{rank}: its threads, where two ranks share the CPUs ({cpus} here)", threads, right, hint)
    hint = "the same collectives on all ranks, and as many: divide each batch, not the list of batches"
    expect(f"{rank}: the error that ended it", wrote.get("error"), None, hint)
