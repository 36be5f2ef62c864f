"""Learnable embeddings: initial rows and updates in one process and on two machines."""

from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import dgl
import numpy as np
import pytest
import torch
from programs.train_runs import run_trainings
from safetensors.torch import load_file

from tutorial_lib.job.folder import CheckpointOptions
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_single
from tutorial_lib.sampling.loader import BatchLoader
from tutorial_lib.tasks.node import ROWS_PER_SEED, EmbeddingTask, new_embedding
from tutorial_lib.tasks.run import train_single
from tutorial_lib.tasks.task import LocalShard
from tutorial_lib.trainer.checkpoint import TrainState
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import train_epoch
from tutorial_lib.trainer.manifest import read_checkpoint


def shard_of(original: torch.Tensor) -> SimpleNamespace:
    """A shard with all nodes, which have these original IDs."""
    g = dgl.graph(([], []), num_nodes=len(original))
    return SimpleNamespace(distributed=False, graph=g, local_nodes=g.nodes, original_nodes=lambda _: original.numpy())


CONFIG = TrainConfig(task="embedding", epochs=3, fanouts=(5, 5), batch_size=100, hidden_size=32)
CONFIG = replace(CONFIG, embedding_size=16, embedding_learning_rate=0.03)
STORES = ["node/weight", *(f"optimizer-0/learned_{name}" for name in ("step", "mem", "power"))]


@pytest.fixture(scope="module")
def source(data_root: Path) -> DataSource:
    return DataSource("synthetic-products", scale=0.005, root=data_root, method="kaminpar")


@pytest.fixture(scope="module")
def dataset(source: DataSource):
    loaded = source.load(features=False)
    assert loaded.num_features == 0
    return loaded


def test_initial_rows_depend_only_on_original_id(dataset) -> None:
    """D11. The first row of a node depends only on its original ID and the seed."""
    nodes = torch.tensor([3, ROWS_PER_SEED + 5, 0, 2 * ROWS_PER_SEED, 7])
    rows, other = (new_embedding(shard_of(nodes), "_N", 8, seed).weight for seed in (1, 2))
    for cut in (slice(2), slice(2, None), torch.tensor([4, 1])):
        assert torch.equal(new_embedding(shard_of(nodes[cut]), "_N", 8, 1).weight, rows[cut])
    assert len(rows.unique(dim=0)) == 5
    assert not torch.isclose(rows, other).all(1).any()


def test_epoch_and_validation_leave_no_gradient_trace(dataset) -> None:
    """D12. Validation leaves no gradient trace, and training clears the trace after each step."""
    graph, task = dataset.graph, EmbeddingTask(LocalShard(dataset), CONFIG)
    train = graph.ndata["train_mask"].nonzero().flatten()[:300]
    task.train_loader = BatchLoader(graph, train, CONFIG.fanouts, CONFIG.batch_size, shuffle=True)
    rows = task.embeddings["node"]
    assert 0 <= task.validate(task.model) <= 1
    assert rows._trace == []
    train_epoch(task.model, torch.optim.Adam(task.model.parameters(), lr=0.01), task, TrainState())
    assert rows._trace == []
    assert int(rows.optm_state[0].max()) == 3  # steps


@pytest.mark.whole_run
def test_resume_single_process_with_equal_rows(source: DataSource, tmp_path: Path) -> None:
    run_single(source, CONFIG, tmp_path / "whole")
    run_single(source, replace(CONFIG, epochs=2), tmp_path / "parts")
    run_single(source, CONFIG, tmp_path / "parts", checkpointing=CheckpointOptions(resume=True))
    whole, parts = (raw_rows(tmp_path / name, 1) for name in ("whole", "parts"))
    assert sorted(whole) == sorted(STORES)
    for key in STORES:
        assert torch.equal(whole[key], parts[key]), key
    learned = whole["optimizer-0/learned_step"].flatten() > 0
    start = new_embedding(shard_of(torch.arange(len(learned))), "_N", CONFIG.embedding_size, CONFIG.seed).weight
    moved = (whole["node/weight"] != start).any(1)
    assert moved.float().mean() > 0.5
    assert not (moved & ~learned).any()  # rows that no step has read are unchanged


def raw_rows(run: Path, machines: int) -> dict[str, torch.Tensor]:
    """Return the embedding rows of the newest checkpoint, in the order of machines."""
    folder = read_checkpoint(run / "checkpoint").folder
    files = [load_file(folder / f"embeddings-machine-{k}.safetensors") for k in range(machines)]
    return {key: torch.cat([file[key] for file in files]) for key in files[0]}


SEVERAL = replace(CONFIG, epochs=12, fanouts=(10, 10), batch_size=64, embedding_size=32)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_two_machines_reach_the_accuracy_of_one_process(emulation, nothing_left, source, dataset, tmp_path) -> None:
    """D11. Two models of a process share no rows, so a second run with the same seed in the same job has equal results.

    Mean accuracies over three seeds, on 11,000 test nodes, differ by at most 0.015.
    """
    parts = source.partition(dataset, 2, lambda _text: None)
    configs = [replace(SEVERAL, seed=seed) for seed in (0, 1, 2)]
    events = run_trainings(parts, tmp_path / "runs", [*configs, SEVERAL])
    *two, again = [event["test_accuracy"] for event in events if event["kind"] == "evaluation"]
    doubled = [replace(config, batch_size=2 * SEVERAL.batch_size) for config in configs]
    one = [train_single(LocalShard(dataset), config).test_score for config in doubled]
    print(f"two machines {two}, one process {one}")
    assert mean(one) > 0.6
    assert mean(two) == pytest.approx(mean(one), abs=0.015)
    runs = [tmp_path / "runs" / "0", tmp_path / "runs" / "3"]
    rows = [np.load(run / "embeddings.npy") for run in runs]  # in the order of the data set
    assert np.array_equal(*rows)
    assert np.array_equal(*(np.load(run / "predictions.npy") for run in runs))
    assert again == two[0]
    assert np.array_equal(rows[0][parts.node_map], raw_rows(runs[0], 2)["node/weight"].numpy())
