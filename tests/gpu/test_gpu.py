"""Tests that need a GPU: ``make test-gpu``, or ``pytest tests/gpu`` if only torch and pytest are installed.

Without enough GPUs or without DGL, a test is skipped with the reason. ``pytest.ini`` in this folder omits the plugins
of the other tests.
"""

import importlib.util
import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from gpu_support import BLOCKS, TOLERANCE, largest_difference, random_block, run_layer, train_ranks, train_with_pieces

from support.processes import spawn
from tutorial_lib.models.graphsage import SAGEConv
from tutorial_lib.trainer.placement import CPU, Placement

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
GPU = torch.device("cuda", 0)
FORK = """
import torch
from support.processes import fork
torch.zeros(1, device="cuda")
fork(lambda rank, world_size: torch.zeros(1, device="cuda").item(), 1, timeout=60)
"""


def need_gpus(count: int = 1) -> None:
    """Skip the test where torch cannot use so many GPUs."""
    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if have < count:
        pytest.skip(f"needs {count} GPU{'s' if count > 1 else ''}, torch finds {have}")


def need_dgl() -> None:
    """Skip the test where DGL is not installed."""
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("DGL is not installed")


@pytest.mark.parametrize("sizes", [(16, 32), (32, 16)])
@pytest.mark.parametrize("shape", BLOCKS)
def test_plain_layer_agrees_with_cpu(shape, sizes):
    """``tests/models`` compares it with DGL's layer on the CPU. On an H200, sums in another order differ by 1.3e-5."""
    need_gpus()
    torch.manual_seed(0)
    block, layer = random_block(*BLOCKS[shape]), SAGEConv(*sizes)
    x = torch.randn(BLOCKS[shape][1], sizes[0])
    expected = run_layer(layer, block, x, CPU.device)
    (moved,) = Placement(GPU).to_device([block])[0]
    assert largest_difference(run_layer(layer, moved, x, GPU), expected) <= 10 * TOLERANCE


def test_copied_batch_is_unchanged():
    """D14. A copy through pinned memory on a side stream does not change a batch."""
    need_gpus()
    place = Placement(GPU)
    blocks = [random_block(50, 90, 300), random_block(10, 50, 80, 1)]
    for k in range(20):  # freed memory is reused
        x = torch.full((90, 100), float(k))
        moved, rows = place.to_device(blocks, x)
        assert rows.device == GPU
        assert torch.equal(rows.cpu(), x)
        for old, new in zip(blocks, moved, strict=True):
            assert torch.equal(old.indices, new.indices.cpu())
            assert torch.equal(old.indptr, new.indptr.cpu())


@pytest.mark.parametrize(("ranks", "backend"), [(1, "nccl"), (2, "nccl"), (2, "gloo")])
def test_ddp_losses_agree_with_cpu(ranks, backend):
    """With gloo, both ranks share one GPU."""
    need_gpus(ranks if backend == "nccl" else 1)
    devices = tuple(torch.device("cuda", rank if backend == "nccl" else 0) for rank in range(ranks))
    expected = spawn(train_ranks, ranks, ((CPU.device,) * ranks,), backend="gloo", timeout=200)[0]
    found = spawn(train_ranks, ranks, (devices,), backend=backend, timeout=200)[0]
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("buckets", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_lesson_05_losses_agree_with_one_process(ranks, buckets):
    need_gpus(ranks)
    expected = spawn(train_with_pieces, 1, ((CPU.device,), False), backend="gloo", timeout=200)[0]
    devices = tuple(torch.device("cuda", rank) for rank in range(ranks))
    found = spawn(train_with_pieces, ranks, (devices, buckets), backend="nccl", timeout=200)
    assert found == [pytest.approx(expected, abs=1e-3)] * ranks


def test_lesson_01_layer_agrees_with_cpu():
    """The block is DGL's interface without DGL's graph, because DGL's package for the CPU moves no graph to a GPU."""
    need_dgl()
    need_gpus()
    from scripts.sage import MeanConv

    class Block(NamedTuple):
        sources: torch.Tensor
        targets: torch.Tensor

        def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
            return self.sources, self.targets

        def num_dst_nodes(self) -> int:
            return 50

    torch.manual_seed(0)
    ends, x, layer = torch.randint(50, (2, 300)), torch.rand(80, 16), MeanConv(16, 8)
    expected = run_layer(layer, Block(*ends), x, CPU.device)
    assert largest_difference(run_layer(layer, Block(*ends.to(GPU)), x, GPU), expected) <= 1e-4


def test_fork_after_cuda_fails_and_spawn_works():
    need_gpus()
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", FORK], env=path, capture_output=True, text=True, timeout=400)
    assert done.returncode != 0
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stderr, done.stderr
    torch.zeros(1, device=GPU)
    spawn(train_ranks, 1, ((GPU,),), backend="nccl", timeout=200)


@pytest.mark.parametrize("where", [["--single-process"], ["--emulate", "2"]])
def test_train_on_both_devices(where, tmp_path):
    need_dgl()
    need_gpus()
    found = {}
    for device in ("cpu", "cuda"):
        out = tmp_path / device
        options = ["--scale", "0.01", "--epochs", "5", "--root", str(tmp_path / "data"), "--out", str(out)]
        command = [sys.executable, "-m", "tutorial_lib", "train", *where, "--device", device, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        if "emulated machines" in done.stderr:
            pytest.skip("this computer has no emulated machines")
        assert done.returncode == 0, done.stderr
        found[device] = json.loads((out / "result.json").read_text())
    assert found["cuda"]["device"] == "cuda"
    assert found["cuda"]["val_accuracy"] == pytest.approx(found["cpu"]["val_accuracy"], abs=0.03)
