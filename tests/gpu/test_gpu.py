"""What needs a GPU: ``make test-gpu``, or ``pytest tests/gpu`` where only torch and pytest are installed.

A test skips with the reason where there is no GPU, too few of them, or no DGL. ``pytest.ini`` of this folder leaves out
what the other tests need.
"""

import importlib
import importlib.util
import json
import subprocess
import sys

import pytest
import torch
from gpu_support import BLOCKS, TOLERANCE, largest_difference, outcome, random_block, train_ranks
from solution_support import lesson_source

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
def test_plain_layer_equals_itself_on_the_cpu(shape, sizes):
    """``tests/models`` compares the layer on the CPU with that of DGL, with the same blocks."""
    need_gpus()
    block, layer = random_block(*BLOCKS[shape]), SAGEConv(*sizes)
    x = torch.randn(BLOCKS[shape][1], sizes[0])
    expected = outcome(layer, block, x, CPU.device)
    moved = block.map(lambda tensor: tensor.to(GPU))
    assert largest_difference(outcome(layer, moved, x, GPU), expected) <= TOLERANCE


def test_a_batch_arrives_as_it_was():
    """D14. A copy through pinned memory on a side stream does not change a batch."""
    need_gpus()
    place = Placement(GPU)
    blocks = [random_block(50, 90, 300), random_block(10, 50, 80, 1)]
    for k in range(20):  # memory that is given back is used again
        x = torch.full((90, 100), float(k))
        moved, rows = place.to_device(blocks, x)
        assert rows.device == GPU
        assert torch.equal(rows.cpu(), x)
        for old, new in zip(blocks, moved, strict=True):
            assert torch.equal(old.indices, new.indices.cpu())
            assert torch.equal(old.indptr, new.indptr.cpu())


@pytest.mark.parametrize(("ranks", "backend"), [(1, "nccl"), (2, "nccl"), (2, "gloo")])
def test_ddp_loses_as_cpu_ranks_do(ranks, backend):
    """With gloo, both ranks share one GPU."""
    need_gpus(ranks if backend == "nccl" else 1)
    devices = tuple(torch.device("cuda", rank if backend == "nccl" else 0) for rank in range(ranks))
    expected = spawn(train_ranks, ranks, ((CPU.device,) * ranks,), backend="gloo", timeout=200)[0]
    found = spawn(train_ranks, ranks, (devices,), backend=backend, timeout=200)[0]
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_averaged_by_hand(ranks, tmp_path, monkeypatch):
    """The functions of lesson 05, in a file: a spawned rank cannot import a cell."""
    need_gpus(ranks)
    source = lesson_source("05", "RATE", "loss_of", "share", "average", "by_hand")
    (tmp_path / "lesson_05_cells.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    by_hand = importlib.import_module("lesson_05_cells").by_hand

    x, y = torch.randn(8, 2), torch.randn(8)
    results = []
    for device, backend in (("cpu", "gloo"), ("cuda", "nccl")):
        devices = tuple(torch.device("cpu") if device == "cpu" else torch.device("cuda", k) for k in range(ranks))
        results.append(spawn(by_hand, ranks, (devices, x, y, 3, "plain"), backend=backend, timeout=200))
    cpu, gpu = ({str(rank): held[-1]["weight after"] for rank, held in enumerate(result)} for result in results)
    assert largest_difference(gpu, cpu) < TOLERANCE


def test_a_fork_after_cuda_fails_as_we_say_and_spawn_works():
    need_gpus()
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=400)
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
