"""The device and the backend of each rank, computed from counts of GPUs. make test-gpu uses real GPUs."""

import os

import pytest
import torch

from tutorial_lib.errors import InputError
from tutorial_lib.trainer.placement import assign_gpus, choose_device

no_gpu = pytest.mark.skipif(
    torch.cuda.is_available() and not os.environ.get("TUTORIAL_NO_SKIP"), reason="this computer has a GPU"
)


@pytest.mark.parametrize(
    ("wanted", "ranks", "expected"),
    [
        ("auto", [("a", 0)], ([None], "gloo", "0 GPU(s) for 1 rank(s)")),
        ("auto", [("a", 2), ("a", 2)], ([0, 1], "nccl", "each rank has its GPU")),
        ("auto", [("a", 1), ("a", 1)], ([None, None], "gloo", "1 GPU(s) for 2 rank(s)")),  # emulated machines
        ("auto", [("a", 1), ("b", 1)], ([0, 0], "nccl", "each rank has its GPU")),
        ("cuda", [("a", 4), ("b", 2), ("a", 4), ("b", 2)], ([0, 0, 1, 1], "nccl", "each rank has its GPU")),
        # NCCL refuses two ranks on one GPU.
        ("cuda", [("a", 1), ("a", 1), ("b", 2)], ([0, 0, 0], "gloo", "1 GPU(s) for 2 rank(s), shared")),
    ],
)
def test_assign(wanted, ranks, expected):
    assert assign_gpus(wanted, ranks) == expected


@pytest.mark.parametrize(
    ("wanted", "ranks", "problem", "remedy"),
    [
        ("tpu", [("a", 1)], "--device tpu", "cpu, cuda or auto"),
        ("cuda", [("a", 1), ("b", 0)], "the computer of rank 1 has no usable GPU", "--device cpu"),
    ],
)
def test_unavailable_devices_are_refused(wanted, ranks, problem, remedy):
    with pytest.raises(InputError, match=problem) as caught:
        assign_gpus(wanted, ranks)
    assert remedy in caught.value.remedy


def test_auto_selects_cpu_without_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert tuple(choose_device("auto").describe().values()) == ("cpu", "none", "0 GPU(s) for 1 rank(s)")


@no_gpu
def test_cuda_without_a_gpu_is_refused(run_here, data_root, tmp_path):
    done = run_here("train", "--device", "cuda", "--single-process", "--out", "run", "--root", str(data_root))
    assert done.returncode == 2
    assert "--device cuda: the" in done.stderr
    assert "what to do: Use --device cpu" in done.stderr
    assert os.listdir(tmp_path) == []
