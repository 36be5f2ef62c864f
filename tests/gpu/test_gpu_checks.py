"""The GPU tests without a GPU: they skip with a reason, and their computations run on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import test_gpu
import torch
from gpu_support import train_ranks, train_with_pieces

from support.processes import spawn
from tutorial_lib.trainer.placement import CPU

FOLDER = Path(__file__).parent
WITHOUT_DGL = """
import importlib.util, pytest, sys
sys.modules["dgl"] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "dgl" else found(name, *more)
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this computer has a GPU: run make test-gpu")
@pytest.mark.parametrize("start", [["-m", "pytest"], ["-c", WITHOUT_DGL]])
def test_skipped_tests_report_the_reason(start):
    """This also works on a machine that has only torch."""
    done = subprocess.run([sys.executable, *start, str(FOLDER)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" not in done.stdout
    assert "needs 1 GPU, torch finds 0" in done.stdout
    assert "needs 2 GPUs, torch finds 0" in done.stdout
    assert ("DGL is not installed" in done.stdout) == (start[0] == "-c")


def test_ranks_train_on_the_cpu():
    first, second = spawn(train_ranks, 2, ((CPU.device,) * 2,), backend="gloo", timeout=100)
    assert first == second
    assert first[-1] < first[0]


def test_lesson_05_ranks_on_the_cpu():
    (alone,) = spawn(train_with_pieces, 1, ((CPU.device,), False), backend="gloo", timeout=100)
    found = spawn(train_with_pieces, 2, ((CPU.device,) * 2, True), backend="gloo", timeout=100)
    assert found == [pytest.approx(alone, abs=1e-5)] * 2


def test_gpu_tests_run_on_the_cpu(monkeypatch):
    """The CPU replaces the GPU, so that a renamed function is noticed without a GPU."""
    monkeypatch.setattr(test_gpu, "GPU", CPU.device)
    monkeypatch.setattr(test_gpu, "need_gpus", lambda *_: None)
    test_gpu.test_plain_layer_agrees_with_cpu("empty neighborhoods", (16, 32))
    test_gpu.test_copied_batch_is_unchanged()
    test_gpu.test_lesson_01_layer_agrees_with_cpu()
