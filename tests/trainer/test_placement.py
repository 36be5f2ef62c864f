"""Who computes where: decided from counts of GPUs. (What needs a GPU: make test-gpu.)"""

import os

import pytest
import torch

from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.trainer.placement import assign_gpus, choose_device

no_gpu = pytest.mark.skipif(
    torch.cuda.is_available() and not os.environ.get("TUTORIAL_NO_SKIP"), reason="this computer has a GPU"
)


@pytest.mark.parametrize(
    ("wanted", "ranks", "expected"),
    [
        ("auto", [("a", 0)], ([None], "gloo", "0 GPU(s) for 1 ranks")),
        ("auto", [("a", 2), ("a", 2)], ([0, 1], "nccl", "each rank has its GPU")),
        ("auto", [("a", 1), ("a", 1)], ([None, None], "gloo", "1 GPU(s) for 2 ranks")),  # emulated machines
        ("auto", [("a", 1), ("b", 1)], ([0, 0], "nccl", "each rank has its GPU")),
        ("cuda", [("a", 4), ("b", 2), ("a", 4), ("b", 2)], ([0, 0, 1, 1], "nccl", "each rank has its GPU")),
        # NCCL refuses two ranks on one GPU.
        ("cuda", [("a", 1), ("a", 1), ("b", 2)], ([0, 0, 0], "gloo", "1 GPU(s) for 2 ranks: they share")),
    ],
)
def test_assign(wanted, ranks, expected):
    assert assign_gpus(wanted, ranks) == expected


@pytest.mark.parametrize(
    ("wanted", "ranks", "problem", "remedy"),
    [
        ("tpu", [("a", 1)], "--device tpu", "cpu, cuda or auto"),
        ("cuda", [("a", 1), ("b", 0)], "but the computer of rank 1 has no GPU", "--device cpu"),
    ],
)
def test_devices_that_cannot_be(wanted, ranks, problem, remedy):
    with pytest.raises(InputError, match=problem) as caught:
        assign_gpus(wanted, ranks)
    assert remedy in caught.value.remedy


def test_real_machines_are_asked_when_the_ranks_have_met(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (tmp_path / "ip.txt").write_text("10.0.0.1")
    Layout(real=RealMachines(tmp_path / "ip.txt"), device="cuda").cluster()
    with pytest.raises(InputError, match="no GPU that torch can use"):
        Layout(emulate=2, device="cuda").cluster()
    described = choose_device("auto").describe()
    assert described == {"device": "cpu", "backend": "none", "device_reason": "0 GPU(s) for 1 ranks"}


@no_gpu
def test_cuda_without_a_gpu_is_refused_before_anything_starts(tmp_path, run_here):
    done = run_here("train", "--device", "cuda", "--emulate", "2", "--out", "run", "--root", "data")
    assert done.returncode == 2
    assert "--device cuda, but" in done.stderr
    assert "what to do: Take --device cpu" in done.stderr
    assert os.listdir(tmp_path) == []
