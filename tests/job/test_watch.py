"""Jobs in a notebook's kernel: one output that is replaced in place, the interrupt, and the end of the kernel."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import pytest
from commands import events_of, wait_until
from jupyter_client.manager import KernelManager, start_new_kernel

pytestmark = pytest.mark.cluster

START = """
from tutorial_lib.job.handle import start_training
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.job.train import Layout
from tutorial_lib.trainer.loop import TrainConfig

def start(epochs, out, resume=False):
    config = TrainConfig(epochs=epochs, fanouts=(5, 5), batch_size=100, hidden_size=16)
    return start_training(load_partition_folder({folder!r}), Layout(emulate=2), config, out, resume=resume)
"""


class Kernel:
    """A kernel and what its cells put out."""

    def __init__(self, manager: KernelManager, client) -> None:
        self.manager, self.client = manager, client

    def run(self, code: str, meanwhile: Callable[[], bool] = lambda: True, seconds: float = 120) -> list[dict]:
        """Execute a cell, calling ``meanwhile`` until it returns True; the messages, less those of its state."""
        cell = self.client.execute(code)
        found, waiting, deadline = [], True, time.monotonic() + seconds
        while time.monotonic() < deadline:
            if waiting:
                waiting = not meanwhile()
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found
            if message["msg_type"] not in ("status", "execute_input"):
                found.append({"type": message["msg_type"], **message["content"]})
        raise TimeoutError(f"the cell did not end: {found}")


@pytest.fixture
def kernel(emulation, partition_of, nothing_left, tmp_path) -> Iterator[Kernel]:
    environment = {**os.environ, "DGLBACKEND": "pytorch"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(tmp_path))
    try:
        kernel = Kernel(manager, client)
        kernel.run(START.format(folder=str(partition_of(2).folder)))
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def steps_in(out: Path) -> int:
    path = out / "events.jsonl"
    return path.read_text().count('"kind": "step"') if path.exists() else 0


def test_watch_interrupt_and_continue(kernel, tmp_path):
    out, interrupted = tmp_path / "run", []

    def interrupt() -> bool:
        if steps_in(out) < 300:  # several updates of the output
            return False
        interrupted.append(time.monotonic())
        kernel.manager.interrupt_kernel()
        return True

    start = time.monotonic()
    messages = kernel.run("job = start(5000, 'run')\njob.watch()", interrupt)
    seconds = time.monotonic() - start
    assert time.monotonic() - interrupted[0] < 15
    assert messages[-1]["type"] == "error"
    assert messages[-1]["ename"] == "KeyboardInterrupt"
    shown = [message for message in messages if message["type"].endswith("display_data")]
    assert [message["type"] for message in shown] == ["display_data"] + ["update_display_data"] * (len(shown) - 1)
    assert len({message["transient"]["display_id"] for message in shown}) == 1
    assert len(messages) == len(shown) + 1  # no other output than these and the error
    assert len(shown) <= 2 * seconds + 3
    texts = [message["data"]["text/plain"] for message in shown]
    assert texts[0] == texts[-1] == "training: 5000 epochs, 2 machine(s), 2 rank(s)"
    assert any("/5000  step " in text and "loss " in text and "sampling " in text for text in texts)
    told = kernel.run("print(job.running, len(job.events) > 50, any(e['kind'] == 'stopped' for e in job.events))")
    assert told[0]["text"] == "False True True\n"

    # What was interrupted goes on, here with one epoch more; quiet, there is no output at all.
    epochs = len(json.loads((out / "checkpoint" / "manifest.json").read_text())["epochs"])
    assert kernel.run(f"job = start({epochs + 1}, 'run', resume=True)\nresult = job.watch(quiet=True)") == []
    told = kernel.run("print(result['resumed_epochs'], len(result['epochs']), job.running)")
    assert told[0]["text"] == f"{epochs} {epochs + 1} False\n"
    told = kernel.run("print(*[event['kind'] for event in job.events])")[0]["text"].split()
    assert [event["kind"] for event in events_of(out)][-len(told) :] == told


def test_everything_ends_with_the_kernel(kernel, tmp_path):
    """Killed, without any chance to clean up; the fixture looks whether a process is left."""
    kernel.run("job = start(5000, 'run')")
    wait_until(lambda: steps_in(tmp_path / "run") >= 10, "ten steps", 90)
    kernel.manager.signal_kernel(9)
