"""``make test-gpu`` where there is no GPU: it ends well, says what it skipped, and its ranks run on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu_checks
import pytest
import torch
from gpu_checks import CPU, random_block, seconds_per_step, train_ranks

from tutorial_lib.processes import spawn

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "test_gpu.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this computer has a GPU: run make test-gpu")
def test_without_a_gpu_it_says_what_was_skipped():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[0] == "[skip] layers: needs 1 GPU, torch finds 0"
    assert lines[-1] == "2 passed, 12 skipped, 0 failed"
    assert len(lines) == len(gpu_checks.CHECKS) + 1


def test_a_check_that_fails_is_told(monkeypatch, capsys):
    monkeypatch.setattr(gpu_checks, "CHECKS", {"good": lambda: "fine", "bad": lambda: 1 / 0})
    assert gpu_checks.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "[ok]   good: fine",
        "[fail] bad: ZeroDivisionError: division by zero",
        "1 passed, 0 skipped, 1 failed",
    ]


def test_its_ranks_train_on_the_cpu():
    first, second = spawn(train_ranks, 2, ((CPU.device,) * 2,), backend="gloo", timeout=100)
    assert first == second
    assert first[-1] < first[0]


def test_its_blocks_are_blocks():
    block = random_block(50, 80, 60, seed=2, reached=10)
    assert (block.num_dst, int(block.indptr[10]), int(block.indptr[-1])) == (50, 60, 60)
    assert int(block.indices.max()) < 80
    assert seconds_per_step(CPU, steps=1) > 0


def test_without_dgl_the_rest_is_still_checked():
    """On a machine with torch alone."""
    code = (
        "import sys; sys.modules['dgl'] = None\n"
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'dgl' else found(name, *more)\n"
        f"sys.path.insert(0, {str(SCRIPT.parents[1] / 'tests' / 'gpu')!r});"
        "from gpu_checks import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[skip] layers against DGL's: DGL is not installed" in done.stdout
