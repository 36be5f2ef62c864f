"""Tests of ``pitfalls.py``. They start real processes, and three real ranks for ``train_joined``."""

import json
import multiprocessing
import os
import threading
import time

import pytest
import torch
from torch import nn

import pitfalls
from support.processes import fork

JOB = """
import json, multiprocessing, pathlib, socket, sys, time

def report(rank, world_size, port, threads, folder, name):
    free = True
    if rank == 0:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            free = False
    found = [rank, world_size, port, threads, free, multiprocessing.get_start_method()]
    pathlib.Path(folder, f"{name}-{rank}").write_text(json.dumps(found))
    end = time.monotonic() + 10
    while not pathlib.Path(folder, name).exists() and time.monotonic() < end:
        time.sleep(0.02)
    sys.exit(0 if pathlib.Path(folder, name).exists() else 3)
"""


def start(folder, name, cpus, monkeypatch):
    """Start two ranks while this process may use some CPUs, and return their exit codes."""
    import job

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    processes = pitfalls.start_ranks(job.report, 2, str(folder), name)
    (folder / name).touch()  # the ranks wait for this file
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def test_start_ranks(tmp_path, monkeypatch):
    """Start the processes with ``multiprocessing.get_context("spawn")``. Exit code 3 means that you wait for the ranks.
    Let the kernel choose one port for a job (port 0). A job on one CPU has one thread per rank.
    """
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.syspath_prepend(str(tmp_path))
    got = "exit codes", *(start(tmp_path, name, cpus, monkeypatch) for name, cpus in (("first", 5), ("second", 1)))
    expected = "exit codes", [0, 0], [0, 0]
    assert got == expected
    rows = [json.loads((tmp_path / f"{name}-{r}").read_text()) for name in ("first", "second") for r in (0, 1)]
    got = rows, len({row[2] for row in rows})
    expected = [[r, 2, rows[k][2], t, True, "spawn"] for k, t in ((0, 2), (2, 1)) for r in (0, 1)], 2
    assert got == expected


def nap(seconds, code):
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        time.sleep(0.02)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def watch(plan, seconds):
    """Start a process for each (seconds, exit code). Return the result, whether it was late, and what is not joined."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=nap, args=entry) for entry in plan]
    for process in processes:
        process.start()
    start = time.monotonic()
    try:
        result = pitfalls.first_failure(processes, seconds)
    except TimeoutError:
        result = "TimeoutError"
    finally:
        late = time.monotonic() - start > 10
        left = [number for number, p in enumerate(processes) if os.path.exists(f"/proc/{p.pid}")]  # until it is joined
        for process in processes:
            process.kill()
            process.join()
    return result, late, left


@pytest.mark.parametrize(
    ("plan", "seconds", "result"),
    [
        ([(0, 0), (0.3, 3), (15, 0)], 12, (1, 3)),
        ([(15, 0), (0.1, -9)], 12, (1, -9)),
        ([(0.2, 0), (0, 0)], 12, None),
        ([(0, 0), (15, 0)], 0.5, "TimeoutError"),
    ],
)
def test_first_failure(plan, seconds, result):
    """Check all exit codes repeatedly. Kill the others after a failure or timeout. Join a process after you kill it."""
    got, expected = watch(plan, seconds), (result, False, [])
    assert got == expected


NUMBERS = (0, 1, 10, 100, 999)
CASES = [(seed, epoch, rank) for seed in (7, 8) for epoch in NUMBERS for rank in NUMBERS]
IDS = torch.arange(100, 140)


def test_the_order_is_equal_on_all_ranks():
    """Shuffle with a ``torch.Generator`` that has the same seed on all ranks. Rank r takes ``[r::world_size]``."""
    epochs = []
    for seed, epoch in ((7, 0), (7, 1), (8, 0), (7, 0)):
        shares = [pitfalls.random_epoch(IDS, seed, epoch, rank, 3).tolist() for rank in range(3)]
        whole = pitfalls.random_epoch(IDS, seed, epoch, 0, 1).tolist()
        right = sorted(whole) == IDS.tolist(), shares == [whole[rank::3] for rank in range(3)]
        epochs.append([list(map(len, shares)), *right, whole])
    orders = [epoch.pop() for epoch in epochs]
    got = epochs, [order == orders[0] for order in orders]
    expected = [[[14, 13, 13], True, True]] * 4, [True, False, False, True]
    assert got == expected


def test_dropout_differs():
    """Combine the seed, the epoch and the rank (up to 999), so that two combinations never result in one number."""
    masks = {}
    for case in (*CASES, *CASES):
        pitfalls.random_epoch(torch.arange(1000), *case, 1000)
        masks.setdefault(case, set()).add(tuple(torch.rand(8).tolist()))
    got = len(set.union(*masks.values())), max(map(len, masks.values()))
    expected = len(CASES), 1
    assert got == expected


class File:
    def __init__(self):
        self.written, self.flushed = [], 0

    def write(self, text):
        if text:
            self.written.append(text)

    def flush(self):
        self.flushed += 1


def thread_of(function, errors):
    """Return a thread that runs a function and appends its exception to a list."""

    def run():
        try:
            function()
        except BaseException as error:
            errors.append(error)

    return threading.Thread(target=run, name="watchdog", daemon=True)


def test_print_stacks(monkeypatch):
    """Write one text: the line with the rank, then the name and the stack of each other thread. Flush the file."""
    monkeypatch.setenv("RANK", "5")
    started, stop, errors = threading.Event(), threading.Event(), []

    def wait_for_rows():
        started.set()
        stop.wait(20)

    sampler = threading.Thread(target=wait_for_rows, name="sampler")
    sampler.start()
    started.wait(20)
    dog = pitfalls.Watchdog(0.5, File())
    watchdog = thread_of(dog.print_stacks, errors)
    watchdog.start()
    watchdog.join()
    stop.set()
    sampler.join()
    for error in errors:
        raise error
    text = "".join(dog.file.written)
    words = ["thread MainThread\n", "thread sampler\n", "in test_print_stacks\n", "in wait_for_rows\n"]
    first = text.splitlines()[:1]
    got = [word in text for word in words], len(dog.file.written), dog.file.flushed > 0, first
    got = (*got, "thread watchdog" in text)
    expected = [True] * 4, 1, True, ["rank 5: no step for 0.5 s"], False
    assert got == expected


def test_watch():
    """Print nothing while steps occur, and once for each period without a step. Each step restarts the time limit."""
    counts, errors, limit = [], [], 0.6
    dog = pitfalls.Watchdog(limit, File())
    dog.thread = thread_of(dog.watch, errors)
    dog.print_stacks = lambda: dog.file.write("stacks")
    with dog:
        for naps in ([0.15] * 6, [2.5], [0.15] * 5, [0.9]):
            for seconds in naps:
                time.sleep(seconds)
                counts.append(len(dog.file.written))
                dog.step()
        start = time.monotonic()
    for error in errors:
        raise error
    got = (counts[5], counts[6], counts[-2], counts[-1]), dog.thread.is_alive(), time.monotonic() - start < 0.75 * limit
    expected = (0, 1, 1, 2), False, True
    assert got == expected


class Line(nn.Module):
    """Predict w, or w + v for targets above 5. Only these targets result in a gradient of v."""

    def __init__(self):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))


def loss_of(model, target):
    return (model.w + (model.v if target > 5 else 0) - target).square()


TARGETS = ([1.0, 2.0, 3.0], [], [4.0, 5.0, 6.0, 7.0, 8.0])
OPTIMIZERS = {"SGD": lambda p: torch.optim.SGD(p, lr=0.25), "Adam": lambda p: torch.optim.Adam(p, lr=0.5)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_train_joined(name):
    """Sum the number of active ranks first. A rank that has no batch left sends zeros and makes the step, too."""

    def train(rank, _size):
        model = Line()
        optimizer = OPTIMIZERS[name](model.parameters())
        steps = pitfalls.train_joined(model, optimizer, (target for target in TARGETS[rank]), loss_of)
        return [steps, *(round(parameter.item(), 3) for parameter in (model.w, model.v))]

    alone = Line()
    optimizer = OPTIMIZERS[name](alone.parameters())
    for step in range(5):
        optimizer.zero_grad()
        present = [targets[step] for targets in TARGETS if step < len(targets)]
        (sum(loss_of(alone, target) for target in present) / len(present) + 0 * alone.v).backward()
        optimizer.step()
    got = fork(train, 3, backend="gloo", threads=1, timeout=20)
    expected = [[5, round(alone.w.item(), 3), round(alone.v.item(), 3)]] * 3
    assert got == expected
