"""Who computes where: decided from counts of GPUs; on the CPU nothing is moved. (What needs a GPU: make test-gpu.)"""

import os

import pytest
import torch
from commands import events_of

from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.trainer.placement import CPU, assign_gpus, choose_device

no_gpu = pytest.mark.skipif(
    torch.cuda.is_available() and not os.environ.get("TUTORIAL_NO_SKIP"), reason="this computer has a GPU"
)


@pytest.mark.parametrize(
    ("wanted", "ranks", "expected"),
    [
        ("auto", [("a", 0)], ([None], "gloo")),
        ("auto", [("a", 1)], ([0], "nccl")),
        ("auto", [("a", 2), ("a", 2)], ([0, 1], "nccl")),
        ("auto", [("a", 1), ("a", 1)], ([None, None], "gloo")),  # one GPU for two emulated machines
        ("auto", [("a", 1), ("b", 1)], ([0, 0], "nccl")),
        ("auto", [("a", 1), ("b", 0)], ([None, None], "gloo")),
        ("cuda", [("a", 4), ("b", 2), ("a", 4), ("b", 2)], ([0, 0, 1, 1], "nccl")),
        ("cuda", [("a", 1), ("a", 1), ("b", 2)], ([0, 0, 0], "gloo")),  # NCCL refuses two ranks on one GPU
    ],
)
def test_assign(wanted, ranks, expected):
    assert assign_gpus(wanted, ranks)[:2] == expected


def test_reasons():
    assert assign_gpus("auto", [("a", 1)] * 2)[2] == "1 GPU(s) for 2 ranks"
    assert assign_gpus("cuda", [("a", 1)] * 2)[2] == "1 GPU(s) for 2 ranks: they share"
    assert assign_gpus("cuda", [("a", 2)] * 2)[2] == "each rank has its GPU"


def test_what_cannot_be():
    with pytest.raises(InputError, match="--device tpu") as caught:
        assign_gpus("tpu", [("a", 1)])
    assert "cpu, cuda or auto" in caught.value.remedy
    with pytest.raises(InputError, match="but the computer of rank 1 has no GPU") as caught:
        assign_gpus("cuda", [("a", 1), ("b", 0)])
    assert "--device cpu" in caught.value.remedy
    with pytest.raises(InputError, match="but the computer of rank 0 has no GPU"):
        assign_gpus("cuda", [("here", 0)])


def test_the_cpu_moves_nothing():
    blocks, features = [object()], torch.ones(2)
    assert CPU.to_device(blocks, features) == (blocks, features)
    assert CPU.to_device(blocks, features)[1] is features
    assert choose_device("cpu") == CPU
    assert CPU.describe() == {"device": "cpu", "backend": "none", "device_reason": "asked for"}


def test_real_machines_are_asked_when_the_ranks_have_met(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (tmp_path / "ip.txt").write_text("10.0.0.1")
    Layout(real=RealMachines(tmp_path / "ip.txt"), device="cuda").cluster()
    with pytest.raises(InputError, match="no GPU that torch can use"):
        Layout(emulate=2, device="cuda").cluster()
    without_gpu = {"device": "cpu", "backend": "none", "device_reason": "0 GPU(s) for 1 ranks"}
    assert choose_device("auto").describe() == without_gpu


@no_gpu
@pytest.mark.parametrize("where", [["--emulate", "2"], ["--machines", "1"], ["--single-process"]])
def test_cuda_without_a_gpu_is_refused_before_anything_starts(where, tmp_path, run_here):
    done = run_here("train", "--device", "cuda", *where, "--out", "run", "--root", "data")
    assert done.returncode == 2
    assert "--device cuda, but" in done.stderr
    assert "what to do: Take --device cpu" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.cluster
def test_ranks_agree_and_the_result_says_so(finished_run):
    result = finished_run.result
    assert (result["device"], result["backend"]) == ("cpu", "gloo")
    placed = [event for event in events_of(finished_run.out) if event["kind"] == "placed"]
    assert sorted(event["rank"] for event in placed) == [0, 1]
