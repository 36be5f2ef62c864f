"""Lesson 12: the data set of the finale, its command as a process that can be broken off, its options, its page."""

from __future__ import annotations

import ctypes
import html
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.data import Dataset
from tutorial_lib.data.ogb import is_present
from tutorial_lib.errors import InputError
from tutorial_lib.job.train import DataSource
from tutorial_lib.tasks.evaluation import layerwise_inference
from tutorial_lib.trainer.config import TrainConfig

REAL, GENERATED = "ogbn-products", "synthetic-products"
VARIABLE = "TUTORIAL_DATASET"  # names the data set of this lesson, whatever lies in data/; the tests set it
PR_SET_PDEATHSIG = 1
POLL_SECONDS, END_SECONDS = 0.05, 60.0


def choose(root: Path) -> tuple[DataSource, TrainConfig]:
    """The real ogbn-products when its files are there, else a hundredth of the generated imitation.

    Args:
        root: folder of data sets.
    """
    name = os.environ.get(VARIABLE) or (REAL if is_present(REAL, root) else GENERATED)
    if name == REAL:
        return DataSource(REAL, root=root), TrainConfig(epochs=3)  # batch, layers and fan-out of the full recipe
    small = TrainConfig(epochs=8, fanouts=(10, 5), batch_size=100, hidden_size=128)
    return DataSource(GENERATED, scale=0.01, root=root), small


def command_line(source: DataSource, config: TrainConfig) -> list[str]:
    """The finale with these settings, as words behind ``python -m tutorial_lib``; machines and folder are left out."""
    size = ["--scale", str(source.scale)] if source.name == GENERATED else []
    return [
        *("finale", "--dataset", source.name, *size),
        *("--epochs", str(config.epochs), "--fanouts", ",".join(map(str, config.fanouts))),
        *("--batch-size", str(config.batch_size), "--hidden-size", str(config.hidden_size)),
    ]


def predict_here(model: torch.nn.Module, dataset: Dataset) -> Tensor:
    """Logits of all nodes, float32 (N, C), by this one process: layer by layer on the plain graph."""
    graph = dataset.graph
    store: Callable[[int, int], Tensor] = lambda _depth, width: torch.empty(graph.num_nodes(), width)  # noqa: E731
    return layerwise_inference(model, graph, graph.ndata["feat"], graph.nodes(), 5000, store)


def run_command(words: Sequence[str], stop_at: Callable[[], bool] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tutorial_lib WORDS`` to its end, or press Ctrl-C as soon as ``stop_at()`` is true.

    Raises:
        RuntimeError: it ended before that.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tutorial_lib", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Jupyter asks programs for colours; in the output of a pipe they would be signs between the words.
        env={name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")},
        start_new_session=True,
        preexec_fn=_heed_ctrl_c_and_end_with_parent,
    )
    try:
        if stop_at is not None:
            while not stop_at():
                if process.poll() is not None:
                    raise RuntimeError(f"the command ended too early:\n{process.communicate()[1]}")
                time.sleep(POLL_SECONDS)
            os.killpg(process.pid, signal.SIGINT)  # a terminal, too, sends it to all processes of the command
        out, errors = process.communicate()
    finally:
        if process.poll() is None:  # this notebook was interrupted
            process.terminate()
            try:
                process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


_libc = ctypes.CDLL(None)


def _heed_ctrl_c_and_end_with_parent() -> None:
    """In the child, before the command: a killed kernel takes the command with it, and that its machines."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def has_event(run: Path, kind: str) -> bool:
    """Whether a job has told an event of this kind yet."""
    path = run / "events.jsonl"
    return path.exists() and f'"kind": "{kind}"' in path.read_text()


def milestones(output: str) -> str:
    """Of the command's lines, those of steps and of a continuation; without seconds and the number of the epoch."""
    found = re.findall(r"^ *[\d.]+ s  (step \d+ of \d+: .*|continuing after epoch \d+ .*)$", output, flags=re.MULTILINE)
    return "\n".join(re.sub(r"(?<=after epoch )\d+", "K", line) for line in found)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """What the finale understands by a command line, without running it.

    Args:
        words: those behind ``python -m tutorial_lib``.

    Raises:
        InputError: the command line would refuse them.
    """
    import typer.main

    from tutorial_lib.tools.cli import app
    from tutorial_lib.tools.cli.options import Given, check_machines

    if list(words[:1]) != ["finale"]:
        raise InputError(f"the command is {' '.join(words[:1]) or 'missing'}, not finale")
    finale = typer.main.get_command(app).commands["finale"]  # type: ignore[attr-defined]
    wrong_usage = typer.BadParameter.__bases__[0]  # of click, or of the copy of click that typer carries
    try:
        options = finale.make_context("finale", list(words[1:])).params
    except typer.Exit:
        raise InputError("it would show its help and end") from None
    except wrong_usage as error:
        raise InputError(error.format_message()) from None
    check_machines(Given(**options))
    return options


def read_page(report: Path) -> tuple[str, list[str]]:
    """Of ``report.html``: what it says about its data set, and the titles of its pictures."""
    page = report.read_text()
    match = re.search(r'<p class="data">(.*?)</p>', page, flags=re.DOTALL)
    assert match is not None
    words = html.unescape(re.sub(r"<[^>]*>", "", match[1])).split()
    return " ".join(words), re.findall(r'<img alt="([^"]*)"', page)
