"""Learned rows in the place of features: what they are, what a step does to them, one process and two machines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dgl
import numpy as np
import pytest
import torch
from lifelines import processes_of, wait_for_step
from programs.rows_script import run_rows_script
from safetensors.torch import load_file, save_file
from shared_data import shared_data
from solution_support import NOTEBOOKS

from support.lessons.breaking import failure_of
from tutorial_lib.cluster.coordinator import Limits
from tutorial_lib.errors import InputError
from tutorial_lib.job.display import summary_table
from tutorial_lib.job.folder import NEW_RUN, Continuation
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_distributed, run_single
from tutorial_lib.partition import Partition, partition_dataset
from tutorial_lib.sampling.nodes import BatchLoader
from tutorial_lib.tasks import TASKS, embedding, link, node, task_named
from tutorial_lib.tasks.learnable import CHUNK, first_rows, read_embeddings, single_embedding
from tutorial_lib.tasks.run import train_single
from tutorial_lib.tasks.shard import LocalShard
from tutorial_lib.trainer.checkpoint import CheckpointManager, TrainState, stores_of
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import train_epoch

_IN_CELL: dict[str, Any] = {"torch": torch}
_CELLS = json.loads(next(NOTEBOOKS.glob("14_*.ipynb")).read_text())["cells"]  # the lesson's cell, as it is
exec(next(text for cell in _CELLS if "def propagate_labels" in (text := "".join(cell["source"]))), _IN_CELL)
propagate_labels = _IN_CELL["propagate_labels"]


def single_rows(count: int, width: int, lr: float, seed: int) -> tuple[Any, Any]:
    """Rows in this process's own memory, and their SparseAdam."""
    rows = single_embedding(count, width, seed)
    return rows, dgl.optim.SparseAdam([rows], lr=lr)


class Patient(Layout):
    """Waits for the cause of a lost connection: on a busy computer that takes more than 5 s."""

    def limits(self) -> Limits:
        return replace(super().limits(), cause=60)


CONFIG = TrainConfig(
    task="embedding",
    epochs=3,
    fanouts=(5, 5),
    batch_size=100,
    hidden_size=32,
    embedding_size=16,
    embedding_learning_rate=0.03,
)
STORES = ["node/weight", *(f"optimizer-0/learned_{name}" for name in ("step", "mem", "power"))]


@pytest.fixture(scope="module")
def source(data_root: Path) -> DataSource:
    return DataSource("synthetic-products", scale=0.005, root=data_root, method="kaminpar")


@pytest.fixture(scope="module")
def dataset(source: DataSource):
    return source.load(features=False)


# ---- the tasks


def test_tasks_are_known_by_name() -> None:
    assert TASKS[0] == TrainConfig().task == "node"
    assert (task_named("node"), task_named("embedding")) == (node.TASK, embedding.TASK)


def test_each_task_says_what_data_it_needs() -> None:
    facts = {"name": "x", "num_features": 0, "num_classes": 3}
    embedding.TASK.check(facts)
    with pytest.raises(InputError, match="x: --task node needs node features") as caught:
        node.TASK.check(facts)
    assert "--task embedding" in caught.value.remedy
    with pytest.raises(InputError, match="x: --task node needs labels") as caught:
        node.TASK.check({"name": "x", "num_features": 3, "num_classes": 0})
    assert "--task link" in caught.value.remedy
    link.TASK.check({"name": "x", "num_features": 3, "num_classes": 0})
    with pytest.raises(InputError, match="x: --task embedding needs labels") as caught:
        embedding.TASK.check({**facts, "num_classes": 0})
    assert "Add node features" in caught.value.remedy


def test_the_summary_names_the_score() -> None:
    result = {"dataset": "x", "machines": 1, "trainers_per_machine": 1, "world_size": 1, "epochs": [], "bytes_sent": {}}
    result |= {"score": "MRR", "val_score": 0.5, "test_score": 0.25, "scores": {"hits@10": 0.75}, "seconds": 1.0}
    cells = [list(column.cells) for column in summary_table(result).columns]
    rows = dict(zip(*cells, strict=True))
    assert (rows["valid MRR"], rows["test MRR"], rows["hits@10"]) == ("0.5000", "0.2500", "0.7500")


def test_without_features_there_are_none(source: DataSource, dataset) -> None:
    assert (dataset.num_features, source.load().num_features) == (0, 100)


# ---- rows


def test_first_rows_depend_on_the_node_alone() -> None:
    """D11. The first row of a node depends only on its original ID and the seed."""
    nodes = torch.tensor([3, CHUNK + 5, 0, 2 * CHUNK, 7])
    found = {}
    for cut in (nodes, nodes[:2], nodes[2:].flip(0)):
        for positions, values in first_rows(cut, 8, seed=1):
            for node_id, row in zip(cut[positions].tolist(), values, strict=True):
                assert torch.equal(found.setdefault(node_id, row), row)
    assert len(found) == len({tuple(row.tolist()) for row in found.values()}) == 5
    other = next(iter(first_rows(nodes, 8, seed=2)))[1][0]
    assert not torch.equal(other, found[3])


def test_a_step_takes_the_mean_of_a_rows_gradients_and_counts_each_row() -> None:
    rows, optimizer = single_rows(4, 2, lr=0.1, seed=0)
    before = rows.weight.clone()
    twice, once = rows(torch.tensor([1, 2])), rows(torch.tensor([1]))
    (twice.sum() * 1.0 + once.sum() * 5.0).backward()
    optimizer.zero_grad()
    optimizer.step()
    step, mem, power = rows.optm_state
    assert step.tolist() == [0, 1, 1, 0]
    assert mem[1].tolist() == pytest.approx([0.1 * 3.0] * 2)  # the mean of 1 and 5
    assert power[1].tolist() == pytest.approx([0.001 * 9.0] * 2)
    changed = (rows.weight - before)[1:3]
    assert torch.allclose(changed, torch.full((2, 2), -0.1), atol=1e-5)  # Adam's first step is as long as the rate
    assert rows._trace == []


def test_it_is_not_the_sparse_adam_of_torch() -> None:
    """A row that is read for the first time in step 10: DGL moves it by the rate, torch by half of that."""
    rows, optimizer = single_rows(2, 1, lr=0.01, seed=0)
    theirs = torch.nn.Embedding(2, 1, sparse=True, _weight=rows.weight.clone())
    torch_adam = torch.optim.SparseAdam(theirs.parameters(), lr=0.01)
    before = rows.weight[1].item()
    for step in range(10):
        ids = torch.tensor([int(step == 9)])
        for one, adam in ((rows, optimizer), (theirs, torch_adam)):
            adam.zero_grad()
            one(ids).sum().backward()
            adam.step()
    assert before - rows.weight[1].item() == pytest.approx(0.01, rel=1e-3)
    assert before - theirs.weight[1].item() == pytest.approx(0.00485, rel=1e-2)


def small_task(dataset):
    graph = dataset.graph
    train = graph.ndata["train_mask"].nonzero().flatten()[:300]
    loader = BatchLoader(graph, train, CONFIG.fanouts, CONFIG.batch_size, shuffle=True)
    task = embedding.EmbeddingTask(LocalShard(dataset), CONFIG, loader)
    return task.embeddings["node"], task


def test_an_epoch_forgets_the_rows_of_each_step(dataset) -> None:
    """Without zero_grad the optimizer would repeat the gradients of all earlier steps and keep their rows."""
    rows, task = small_task(dataset)
    train_epoch(task.model, torch.optim.Adam(task.model.parameters(), lr=0.01), task, TrainState())
    assert rows._trace == []
    assert int(rows.optm_state[0].max()) == 3  # steps


def test_validation_records_no_rows(dataset) -> None:
    """D12. Validation leaves no gradient trace, so the next step updates only the rows of its own batch."""
    rows, task = small_task(dataset)
    assert 0 <= task.validate(task.model) <= 1
    assert rows._trace == []


# ---- baseline


def test_labels_go_along_edges() -> None:
    pairs = [(0, 1), (1, 2), (3, 4), (4, 5)]
    graph = dgl.to_bidirected(dgl.graph([*pairs, (2, 5)]))
    labels = torch.tensor([1, 9, 9, 9, 9, 0])
    labels[1:5] = torch.tensor([1, 1, 0, 0])
    found = propagate_labels(graph, labels, torch.tensor([0, 3]), 2)
    assert found.tolist() == [1, 1, 1, 0, 0, 0]
    hidden = labels.clone()
    hidden[[1, 2, 4, 5]] = 0
    assert torch.equal(propagate_labels(graph, hidden, torch.tensor([0, 3]), 2), found)  # others' labels are not read


def test_learned_rows_beat_label_propagation(dataset) -> None:
    graph = dataset.graph
    wide = {"hidden_size": 128, "embedding_size": 128, "dropout": 0.7}
    config = replace(CONFIG, epochs=15, fanouts=(15, 10), batch_size=128, seed=1, **wide)
    result = train_single(dataset, config)
    test, label = graph.ndata["test_mask"], graph.ndata["label"]
    known = label, graph.ndata["train_mask"], dataset.num_classes
    baselines = [propagate_labels(graph, *known, rounds=20, alpha=alpha) == label for alpha in (0.5, 0.7, 0.9)]
    baseline = max(float(right[test].float().mean()) for right in baselines)
    assert result.test_score > baseline > 0.7
    assert result.predictions is not None
    assert float((result.predictions == label)[test].float().mean()) == pytest.approx(result.test_score)


# ---- one process


@pytest.mark.whole_run
def test_one_process_goes_on_with_the_same_rows(source: DataSource, tmp_path: Path) -> None:
    run_single(source, CONFIG, tmp_path / "whole")
    run_single(source, replace(CONFIG, epochs=2), tmp_path / "parts")
    run_single(source, CONFIG, tmp_path / "parts", keep=Continuation(resume=True))
    whole, parts = (raw_rows(tmp_path / name, 1) for name in ("whole", "parts"))
    assert sorted(whole) == sorted(STORES)
    for key in STORES:
        assert torch.equal(whole[key], parts[key]), key
    learned = whole["optimizer-0/learned_step"].flatten() > 0
    start = single_embedding(len(learned), CONFIG.embedding_size, CONFIG.seed).weight
    moved = (whole["node/weight"] != start).any(1)
    assert moved.float().mean() > 0.5
    assert not (moved & ~learned).any()  # a row that no step has read is as it was


def raw_rows(run: Path, machines: int) -> dict[str, torch.Tensor]:
    """What the files of the newest checkpoint hold, machine after machine."""
    folder = run / "checkpoint" / json.loads((run / "checkpoint" / "manifest.json").read_text())["folder"]
    files = [load_file(folder / f"embeddings-machine-{k}.safetensors") for k in range(machines)]
    return {key: torch.cat([file[key] for file in files]) for key in files[0]}


def test_rows_are_read_in_the_order_of_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines, five nodes: the data set's node i is the new node node_map_inverse[i]."""
    for number, values in enumerate(([10.0, 11.0, 12.0], [13.0, 14.0])):
        save_file({"node/weight": torch.tensor(values)[:, None]}, tmp_path / f"embeddings-machine-{number}.safetensors")
    monkeypatch.setattr("tutorial_lib.tasks.learnable.read_checkpoint", lambda _: SimpleNamespace(folder=tmp_path))
    partition = SimpleNamespace(report=SimpleNamespace(parts=2), node_map_inverse=np.array([2, 3, 0, 4, 1]))
    assert read_embeddings(tmp_path, partition).flatten().tolist() == [12.0, 13.0, 10.0, 14.0, 11.0]


def test_stores_of_one_process(tmp_path: Path) -> None:
    rows, optimizer = single_rows(5, 3, 0.1, 0)
    assert list(stores_of({"node": rows}, [optimizer])) == STORES
    model = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters())
    kept = CheckpointManager(tmp_path / "checkpoint", {})
    task = SimpleNamespace(embeddings={"node": rows}, sparse_optimizers=[optimizer])
    before = rows.weight.clone()
    kept.save(TrainState(), model, adam, task, last=True)
    rows.weight.zero_()
    optimizer._lr = 7.0
    kept.resume = True
    kept.load_latest(model, adam, task)
    assert torch.equal(rows.weight, before)
    assert optimizer._lr == 0.1


# ---- two machines


@pytest.fixture(scope="module")
def parts(source: DataSource, dataset) -> Partition:
    return source.partition(dataset, 2, lambda _text: None)


SEVERAL = replace(CONFIG, epochs=12, fanouts=(10, 10), batch_size=64, embedding_size=32)


@pytest.fixture(scope="module")
def two_machines(parts: Partition, tmp_path_factory) -> Callable[[int], tuple[Path, dict]]:
    """``two_machines(seed)``: the run folder of a job that was left alone, and its result; each seed runs once."""
    folder = tmp_path_factory.mktemp("two-machines")

    @cache
    def run(seed: int) -> tuple[Path, dict]:
        config = replace(SEVERAL, seed=seed)
        out = folder / str(seed)
        return out, run_distributed(parts, Patient(emulate=2), config, NEW_RUN.folder(out))

    return run


@pytest.mark.cluster
def test_two_machines_reach_the_accuracy_of_one_process(emulation, nothing_left, dataset, two_machines) -> None:
    """The mean over three seeds, on 11,000 test nodes; both begin with the same rows."""
    found: dict[str, list[float]] = {"one process": [], "two machines": []}
    for seed in (0, 1, 2):
        one = train_single(dataset, replace(SEVERAL, seed=seed, batch_size=2 * SEVERAL.batch_size))
        found["one process"].append(one.test_score)
        found["two machines"].append(two_machines(seed)[1]["test_accuracy"])
        print(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.4f}" for name, values in found.items()))
    means = [sum(values) / 3 for values in found.values()]
    print("means:", means)
    assert means[0] > 0.6
    assert means[1] == pytest.approx(means[0], abs=0.015), found


@pytest.mark.cluster
def test_a_killed_trainer_changes_no_row(
    emulation, nothing_left, parts: Partition, two_machines, tmp_path: Path
) -> None:
    """Killed in mid-epoch and resumed: rows, optimiser and predictions of a run that was left alone, bit for bit."""
    out = tmp_path / "broken"
    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(run_distributed, parts, Patient(emulate=2), SEVERAL, NEW_RUN.folder(out))
        wait_for_step(broken, out, ranks=2, epoch=1, step=2)
        os.kill(next(process for process in processes_of(out) if process.rank == 1).pid, signal.SIGKILL)
        said = failure_of(broken.result).message
    assert "trainer 0 (rank 1) on machine-1: killed by signal 9" in said
    again = run_distributed(parts, Patient(emulate=2), SEVERAL, out, keep=Continuation(resume=True))
    assert 1 <= again["resumed_epochs"] < SEVERAL.epochs
    whole, result = two_machines(0)
    left_alone, broken_off = (raw_rows(run, 2) for run in (whole, out))
    for key in STORES:
        assert torch.equal(left_alone[key], broken_off[key]), key
    assert not torch.equal(left_alone["node/weight"], read_embeddings(whole, parts))  # the parts' order is another one
    assert np.array_equal(*(np.load(run / "predictions.npy") for run in (whole, out)))
    assert (result["test_accuracy"], result["task"]) == (again["test_accuracy"], "embedding")


@pytest.mark.cluster
def test_two_ranks_change_a_row_in_one_step(emulation, nothing_left, parts: Partition, tmp_path: Path) -> None:
    found = run_rows_script(parts, tmp_path / "out")
    assert found["both ranks"] == pytest.approx({"row": -1.0, "step": 1, "mem": 0.1 * 4, "power": 0.001 * 16}, abs=1e-4)
    assert found["rank 0 alone"] == pytest.approx(
        {"row": -1.0, "step": 1, "mem": 0.1 * 2, "power": 0.001 * 4}, abs=1e-4
    )
    # DGL 2.1.0 keeps the root of the sum of squares, 4, and adds the next square to that: sqrt_ is done in place.
    assert found["Adagrad"] == {"row": -1.0, "sum": 4.0}
    assert found["by hand"] in (2.0, 6.0)  # never 8


# ---- the real graph


def test_the_real_graph_without_features(tmp_path: Path) -> None:
    """Label propagation on ogbn-arxiv, the split of OGB; and a first step of learning."""
    shutil.copytree(shared_data("ogbn_arxiv_nofeat", "ogbn_arxiv"), tmp_path / "ogbn_arxiv")
    real = DataSource("ogbn-arxiv", root=tmp_path).load(features=False)
    graph = real.graph
    label = graph.ndata["label"]
    found = propagate_labels(graph, label, graph.ndata["train_mask"], real.num_classes, alpha=0.5, rounds=10)
    right = (found == label).float()
    assert right[graph.ndata["val_mask"]].mean() == pytest.approx(0.6967, abs=0.002)
    assert right[graph.ndata["test_mask"]].mean() == pytest.approx(0.6714, abs=0.002)
    partition = partition_dataset(real, 2, tmp_path / "2-parts", method="kaminpar")
    assert partition.manifest["dataset"]["num_features"] == 0


TWO_OF_A_NAME = """
import sys, dgl, numpy as np, torch
from tutorial_lib.tasks.learnable import distributed_embedding, single_embedding
dgl.distributed.initialize("")
graph = dgl.distributed.DistGraph("synthetic_products", part_config=sys.argv[1])
everyone = np.arange(graph.num_nodes())
first, second = (distributed_embedding(graph, "_N", everyone, 4, seed) for seed in (0, 1))
backwards = everyone[::-1].copy()
mapped = distributed_embedding(graph, "_N", backwards, 4, 0, "mapped")  # new node i is the data set's last but i
assert torch.equal(mapped.weight[everyone], single_embedding(len(everyone), 4, 0).weight[backwards])
assert not torch.equal(first.weight[everyone[:9]], second.weight[everyone[:9]])
one, two = (distributed_embedding(graph, "_N", everyone, 4, 0, "learned-author-0") for _ in range(2))
one.weight[everyone[:9]] = torch.zeros(9, 4)
assert two.weight[everyone[:9]].all()
print("own rows, each")
"""


def test_a_second_model_in_a_process_has_rows_of_its_own(source: DataSource, tmp_path: Path) -> None:
    """D11. Each embedding of a process has a unique name, so two models share no rows."""
    partition = partition_dataset(source.load(features=False), 1, tmp_path / "part")
    command = [sys.executable, "-c", TWO_OF_A_NAME, str(partition.config)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.stdout.split("\n")[-2:] == ["own rows, each", ""], done.stderr
