"""Data-parallel training on one machine agrees with one process, and visits every training node once per epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import rank_functions as rf
import torch

from support.lessons.node_classification import Data, Job, train
from support.multi_process import load_best, share_of
from tutorial_lib.data import Dataset
from tutorial_lib.processes import fix_openmp, fork, prepare_mp, spawn
from tutorial_lib.tasks.task import train_single
from tutorial_lib.trainer.config import TrainConfig

pytestmark = pytest.mark.usefixtures("nothing_left")
CONFIG = TrainConfig(epochs=10, fanouts=(10, 5), batch_size=128, hidden_size=64, eval_batch_size=4000)


def job_of(ranks: int) -> Job:
    """CONFIG for some ranks: they take its steps together."""
    names = ("epochs", "fanouts", "batch_size", "hidden_size", "learning_rate", "dropout", "seed")
    return Job((torch.device("cpu"),) * ranks, **{name: getattr(CONFIG, name) for name in names})


@pytest.fixture(scope="module")
def single_accuracy(small_dataset: Dataset) -> float:
    """Best sampled validation accuracy of one process."""
    return max(epoch.val_accuracy for epoch in train_single(small_dataset, CONFIG).epochs)


@pytest.mark.parametrize("count", [0, 1, 3, 7, 8])
@pytest.mark.parametrize("seed", [None, 5])
def test_shares_hold_every_id_once(count: int, seed: int | None) -> None:
    ids = torch.arange(count) * 10
    shares = [share_of(ids, rank, 4, seed=seed) for rank in range(4)]
    assert torch.equal(torch.cat(shares).sort().values, ids)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_shares_change_with_the_seed_only() -> None:
    ids = torch.arange(100)
    assert torch.equal(share_of(ids, 0, 2, seed=1), share_of(ids, 0, 2, seed=1))
    assert not torch.equal(share_of(ids, 0, 2, seed=1), share_of(ids, 0, 2, seed=2))
    with pytest.raises(ValueError, match="rank must be in"):
        share_of(ids, 2, 2)


def test_accuracy_is_of_the_counts_summed() -> None:
    """Rank 0: 1 of 1 right; rank 1: 0 of 3; a mean of accuracies would be 0.5."""
    assert fork(rf.uneven_accuracy, 2, backend="gloo", timeout=30) == [0.25, 0.25]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_agree_with_one_process(
    ranks: int, small_dataset: Dataset, single_accuracy: float, tmp_path: Path
) -> None:
    prepare_mp(small_dataset.graph)
    path = tmp_path / "best.safetensors"
    job = replace(job_of(ranks), model_path=str(path))
    results = fork(fix_openmp(train), ranks, (Data.of(small_dataset), job), backend="gloo", threads=1, timeout=120)
    curves = [[(epoch.loss, epoch.val_accuracy) for epoch in result.epochs] for result in results]
    assert all(curve == curves[0] for curve in curves)
    assert max(accuracy for _loss, accuracy in curves[0]) == pytest.approx(single_accuracy, abs=0.03)
    train_ids = small_dataset.graph.ndata["train_mask"].nonzero().flatten()
    for epoch in range(CONFIG.epochs):
        visited = torch.cat([result.visited[epoch] for result in results])
        assert torch.equal(visited.sort().values, train_ids)
    assert not torch.equal(results[0].visited[0].sort().values, results[0].visited[1].sort().values)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert load_best(path, small_dataset, CONFIG).sizes[-1] == small_dataset.num_classes


def test_a_step_of_two_ranks_is_that_of_one(small_dataset: Dataset, tmp_path: Path) -> None:
    """All neighbours, no dropout, one batch of equal halves: averaged gradients give the same weights."""
    graph = small_dataset.graph.clone()
    chosen = graph.ndata["train_mask"].nonzero().flatten()[:600]
    graph.ndata["train_mask"] = torch.zeros(graph.num_nodes(), dtype=torch.bool).index_fill_(0, chosen, True)
    dataset = replace(small_dataset, graph=graph)
    prepare_mp(graph)
    weights = []
    for ranks in (1, 2):
        path = tmp_path / f"{ranks}.safetensors"
        job = replace(job_of(ranks), epochs=1, fanouts=(-1, -1), dropout=0.0, batch_size=600, model_path=str(path))
        fork(fix_openmp(train), ranks, (Data.of(dataset), job), backend="gloo", threads=1, timeout=120)
        trained = load_best(path, dataset, CONFIG).state_dict()
        weights.append(torch.cat([tensor.flatten() for tensor in trained.values()]))
    assert torch.allclose(*weights, rtol=0, atol=1e-4)  # each rank on its own: 1e-2


@pytest.mark.whole_run
def test_spawned_ranks_train_too(small_dataset: Dataset) -> None:
    job = replace(job_of(2), epochs=1)
    results = spawn(train, 2, (Data.of(small_dataset), job), backend="gloo", timeout=120)
    assert [len(result.epochs) for result in results] == [1, 1]
