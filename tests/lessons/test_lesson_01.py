"""The checkers of lesson 1: they accept a right function and say what is wrong with a wrong one. And its programs."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import dgl
import dgl.function as fn
import pytest
import torch
from solution_support import assert_not_yet, solutions, verdict
from torch import Tensor, nn

from support.exercises import lesson_01
from tutorial_lib.data import load_dataset

SCRIPTS = Path(__file__).resolve().parents[2] / "notebooks" / "scripts"
ANSWERS = solutions("01")
nodes_to_read = ANSWERS.nodes_to_read


def test_nodes_to_read_right(capsys):
    for _ in range(20):  # the draws differ, the answer must not
        assert verdict(capsys, lesson_01.check_nodes_to_read, nodes_to_read) == "Exercise 1: correct\n"


def test_a_number_in_a_tensor_is_a_number(capsys):
    def in_a_tensor(*args: Any) -> Tensor:
        return torch.tensor(nodes_to_read(*args))

    assert verdict(capsys, lesson_01.check_nodes_to_read, in_a_tensor) == "Exercise 1: correct\n"


def not_turned_round(graph: Any, seeds: Tensor, per_hop: list[int]) -> int:
    return nodes_to_read(graph, seeds, per_hop[::-1])


def seeds_left_out(graph: Any, seeds: Tensor, per_hop: list[int]) -> int:
    return nodes_to_read(graph, seeds, per_hop) - len(seeds)


def upper_bound(_graph: Any, seeds: Tensor, per_hop: list[int]) -> int:
    count = len(seeds)
    for fanout in per_hop:
        count += count * fanout
    return count


def first_hop_only(graph: Any, seeds: Tensor, per_hop: list[int]) -> int:
    return nodes_to_read(graph, seeds, per_hop[:1])


@pytest.mark.parametrize(
    ("wrong", "what", "got", "expected"),
    [
        (not_turned_round, "per_hop \\[4, 2\\]", "11", "13"),
        (seeds_left_out, "per_hop \\[3\\]", "3", "4"),
        (upper_bound, "per_hop \\[4, 2\\]", "15", "13"),
        (first_hop_only, "per_hop \\[4, 2\\]", "5", "13"),
    ],
)
def test_nodes_to_read_wrong(wrong, what, got, expected, capsys):
    said = verdict(capsys, lesson_01.check_nodes_to_read, wrong)
    assert_not_yet(said, f"{what}\n  got       {got}\n  expected  {expected}\n")
    assert "outermost hop first" in said


class Conv(nn.Module):
    """The solution, with places for mistakes."""

    reduce, zero_first = staticmethod(fn.max), False

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.fc_self = nn.Linear(in_size, out_size)
        self.fc_neigh = nn.Linear(in_size, out_size, bias=False)

    def received(self, block: Any, x: Tensor) -> Tensor:
        with block.local_scope():
            block.srcdata["x"] = x
            block.update_all(fn.copy_u("x", "m"), self.reduce("m", "r"))
            return block.dstdata["r"]

    def forward(self, block: Any, x: Tensor) -> Tensor:
        return self.fc_self(x[: block.num_dst_nodes()]) + self.fc_neigh(self.received(block, x))


class Mean(Conv):
    reduce = staticmethod(fn.mean)


class Sum(Conv):
    reduce = staticmethod(fn.sum)


class WithItself(Conv):
    def received(self, block: Any, x: Tensor) -> Tensor:
        return torch.maximum(super().received(block, x), x[: block.num_dst_nodes()])


class ReLUBefore(Conv):
    def received(self, block: Any, x: Tensor) -> Tensor:
        return super().received(block, x.relu())


class ReLUAfter(Conv):
    def forward(self, block: Any, x: Tensor) -> Tensor:
        return super().forward(block, x).relu()


class LinearBeforeMaximum(Conv):
    def forward(self, block: Any, x: Tensor) -> Tensor:
        return self.fc_self(x[: block.num_dst_nodes()]) + self.received(block, self.fc_neigh(x))


class NoNeighbors(Conv):
    def forward(self, block: Any, x: Tensor) -> Tensor:
        return self.fc_self(x[: block.num_dst_nodes()])


class AllSources(Conv):
    def forward(self, _block: Any, x: Tensor) -> Tensor:
        return self.fc_self(x)


@pytest.mark.parametrize("right", [ANSWERS.MaxConv, Conv])
def test_max_conv_right(right, capsys):
    assert verdict(capsys, lesson_01.check_max_conv, right) == "Exercise 2: correct\n"


@pytest.mark.parametrize(
    "wrong",
    [Mean, Sum, WithItself, ReLUBefore, ReLUAfter, LinearBeforeMaximum, NoNeighbors, AllSources],
    ids=lambda wrong: wrong.__name__,
)
def test_max_conv_wrong(wrong, capsys):
    assert_not_yet(verdict(capsys, lesson_01.check_max_conv, wrong), "a block with edges")


@pytest.fixture(scope="module")
def graph():
    return load_dataset("synthetic-products", scale=0.01).graph


@pytest.fixture(scope="module")
def sage():
    spec = importlib.util.spec_from_file_location("sage_of_lesson_01", SCRIPTS / "sage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GraphSAGE


@pytest.fixture(scope="module")
def models(graph, sage) -> list[tuple[nn.Module, float]]:
    """Three models and their exact validation accuracies, by the method of the lesson."""
    mask, found = graph.ndata["val_mask"], []
    for seed in range(3):
        torch.manual_seed(seed)
        model = sage(100, 64, 47)
        right = model.inference(graph, graph.ndata["feat"])[mask].argmax(1) == graph.ndata["label"][mask]
        found.append((model, right.double().mean().item()))
    assert len({value for _, value in found}) == 3
    return sorted(found, key=lambda pair: pair[1])


def test_inference_in_the_method_and_by_matrices_agree(models):
    for model, value in models:
        assert lesson_01.exact_accuracy(model.state_dict()) == pytest.approx(value, abs=1e-9)


def test_best_epoch_right(models, tmp_path, capsys):
    (_, low), _, (best, high) = models
    rounded = [high + 0.0006] * 8  # near enough: the sums may be in another order
    for valid in ([low] * 5 + [high] + [low] * 2, [torch.tensor(high), *[torch.tensor(low)] * 7], rounded):
        torch.save({"valid": valid, "weights": best.state_dict()}, tmp_path / "x.pt")
        assert verdict(capsys, lesson_01.check_best_epoch, tmp_path / "x.pt") == "Exercise 3: correct\n"


def test_best_epoch_wrong(models, tmp_path, capsys):
    (worst, low), (_, middle), (best, high) = models
    wrong = {
        "nothing counted": ([], best, 'numbers in "valid"'),
        "the best only": ([high], best, 'numbers in "valid"'),
        "the last weights, or no copy": ([high] + [low] * 7, worst, "state_dict"),
        "the worst epoch": ([low, middle, *[high] * 6], worst, "state_dict"),
        "accuracy of other nodes": ([high + 0.05] * 8, best, "state_dict"),
        "percent": ([100 * high] * 8, best, "state_dict"),
    }
    for valid, model, complaint in wrong.values():
        torch.save({"valid": valid, "weights": model.state_dict()}, tmp_path / "x.pt")
        assert_not_yet(verdict(capsys, lesson_01.check_best_epoch, tmp_path / "x.pt"), complaint)
    assert "not yet" in verdict(capsys, lesson_01.check_best_epoch, tmp_path / "missing.pt")


@pytest.mark.whole_run
def test_the_plain_program_learns_and_prints_its_epochs(graph, tmp_path):
    """On a folder that DGL itself has written, as in the lesson."""
    small = load_dataset("synthetic-products", scale=0.002).graph
    dgl.distributed.partition_graph(small, "products", 1, str(tmp_path))
    command = [sys.executable, str(SCRIPTS / "plain.py"), "--part_config", str(tmp_path / "products.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("epoch")]
    losses = [float(line.split()[-1]) for line in lines]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert done.stdout.splitlines()[-1].startswith("valid 0.")
    assert len((SCRIPTS / "plain.py").read_text().splitlines()) < 60
