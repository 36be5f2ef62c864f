"""Link prediction: split of edges, batches without leaks, and equal scores with one and two machines."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import dgl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import read_events, train
from programs.train_runs import run_trainings
from safetensors.torch import load_file

from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.partition import partition_dataset
from tutorial_lib.tasks.link import (
    LOGIT_SCALE,
    LOGIT_SHIFT,
    EdgeLoader,
    LinkTask,
    TrainingGraph,
    edge_ranks,
    normalize_rows,
    pair_hash,
)
from tutorial_lib.tasks.run import train_single
from tutorial_lib.tasks.task import SPLITS, TEST, TRAIN, LocalShard
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import Stopped
from tutorial_lib.trainer.manifest import read_checkpoint

CONFIG = TrainConfig(task="link", epochs=3, fanouts=(5, 5), batch_size=100, hidden_size=16, dropout=0.2)
CONFIG = replace(CONFIG, learning_rate=0.01)
OPTIONS = {"epoch_edges": 1000, "val_edges": 200, "eval_negatives": 50}


@pytest.fixture(autouse=True)
def small_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPTIONS.items():
        monkeypatch.setattr(LinkTask, name, value)


@pytest.fixture(scope="module")
def tiny(data_root: Path) -> Dataset:
    """About 5,000 nodes."""
    return load_dataset("synthetic-products", scale=0.002, root=data_root)


@pytest.fixture(scope="module")
def view(tiny: Dataset) -> TrainingGraph:
    return TrainingGraph(tiny.graph, torch.arange(tiny.graph.num_nodes()), 3)


def test_edge_split_of_seed_is_fixed() -> None:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), computed in Python's integers."""
    found = [pair_hash(torch.tensor([7, 2**40]), torch.tensor([3, 5]), seed).tolist() for seed in (0, 2**40)]
    assert found == [[0x5C8EAEB05F1BEA1E, 0x0EB28B089A755952], [0xADB536A949F9E0E1, 0x999D87B2166926C1]]


def test_both_directions_are_in_the_same_split(tiny: Dataset) -> None:
    """D9. Both directions of an edge are on the same side of the split."""
    src, dst = tiny.graph.edges(order="eid")
    original = torch.arange(tiny.graph.num_nodes())
    split = TrainingGraph(tiny.graph, original, 0, val=0.05, test=0.1)
    side = split.split_of_edges(src, dst)
    assert torch.equal(side, split.split_of_edges(dst, src))
    pairs = len(src) / 2
    for number, share in enumerate((0.85, 0.05, 0.1)):
        assert float((side == number).float().mean()) == pytest.approx(share, abs=2 / pairs**0.5)
    both = (side == TEST) & (TrainingGraph(tiny.graph, original, 1, 0.05, 0.1).split_of_edges(src, dst) == TEST)
    assert abs(float(both.float().mean()) - 0.01) < 0.002  # another seed: an independent choice
    assert (TrainingGraph(tiny.graph, original, 0, 0.0, 0.0).split_of_edges(src, dst) == TRAIN).all()


def ends_of(block: dgl.DGLGraph) -> torch.Tensor:
    src, dst = block.edges()
    return torch.stack([block.srcdata[dgl.NID][src], block.dstdata[dgl.NID][dst]])


def test_blocks_exclude_only_edges_of_the_batch(view: TrainingGraph) -> None:
    """D9. With full fan-out, a block has every training edge into its seeds except the edges of the batch."""
    graph = view.graph
    side = view.split_of_edges(*graph.edges(order="eid"))
    train = (side == TRAIN).nonzero().flatten()
    loader = EdgeLoader(view, train, (-1, -1), 32, negatives=2, shuffle=True, training=True)
    _step, batch = next(loader.batches(0))
    src, dst = graph.find_edges(batch.edges)
    assert torch.equal(batch.seeds[batch.src], src)
    assert torch.equal(batch.seeds[batch.dst], dst)
    assert batch.negatives.shape == (32, 2)
    twins = graph.edge_ids(dst, src)
    own = torch.cat([batch.edges, twins])
    for block, seeds in ((batch.blocks[1], batch.seeds), (batch.blocks[0], batch.blocks[1].srcdata[dgl.NID])):
        assert torch.equal(block.dstdata[dgl.NID], seeds)
        wanted = graph.in_edges(seeds, form="eid")
        wanted = wanted[side[wanted] == TRAIN]
        pairs = torch.stack(graph.find_edges(wanted[~torch.isin(wanted, own)])).T
        assert sorted(ends_of(block).T.tolist()) == sorted(pairs.tolist())


def test_batch_depends_only_on_seed_epoch_and_step(view: TrainingGraph) -> None:
    """D8. The batches of an epoch depend only on the seed, the epoch and the step."""
    edges = torch.arange(0, view.graph.num_edges(), 7)

    def epoch(seed: int, start: int = 0) -> list[torch.Tensor]:
        settings = {"per_epoch": 120, "shuffle": True, "training": True, "seed": seed}
        loader, found = EdgeLoader(view, edges, (3,), 50, negatives=2, threads=1, **settings), []
        for _step, batch in loader.batches(1, start):
            found += [batch.edges, batch.seeds, batch.negatives, batch.input_nodes]
            dgl.seed(0)
            torch.rand(100)  # as dropout does
        return found

    first = epoch(1)
    assert [len(edges) for edges in first[::4]] == [40, 40, 40]
    assert len(torch.cat(first[::4]).unique()) == 120
    torch.rand(7)
    assert all(torch.equal(a, b) for a, b in zip(first, epoch(1), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first[8:], epoch(1, start=2), strict=True))
    assert not torch.equal(first[0], epoch(2)[0])


def test_loss_equals_manual_value(tiny: Dataset) -> None:
    task, h = LinkTask(LocalShard(tiny), CONFIG), torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]])
    pairs = torch.tensor([0]), torch.tensor([1]), torch.tensor([[2, 0]])
    loss, count = task.loss(lambda _blocks, rows: rows, (None, h, *pairs))
    logits = torch.tensor([0.6, 0.0, 1.0]) * LOGIT_SCALE - LOGIT_SHIFT
    each = F.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0, 0.0]), reduction="none")
    assert loss.item() == pytest.approx(float((each[0] + each[1:].mean()) / 2))
    assert count == 1


def test_ranks_equal_manual_values() -> None:
    """D10. The endpoints of an edge are no negatives of it, and a tie counts one half."""
    h = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.8, 0.6], [0.6, 0.8]])
    edges = torch.tensor([0, 2, 0]), torch.tensor([1, 3, 4])
    # Of 0 -> 1 (0.6): 3 is better, 4 is equal. Of 2 -> 3 (0.6): 1 and 4 are better. Of 0 -> 4 (0.6): 3 and 1.
    assert edge_ranks(h, edges, torch.arange(5)).tolist() == [2.5, 3.0, 2.5]
    same = F.normalize(torch.rand(32, generator=torch.manual_seed(0)), dim=0).repeat(50, 1)  # 46 ties
    assert edge_ranks(same, (torch.arange(3), torch.arange(1, 4)), torch.arange(4, 50)).tolist() == [24.0] * 3


def ranks_one_by_one(graph: dgl.DGLGraph, h: np.ndarray, edges: np.ndarray, negatives: np.ndarray) -> np.ndarray:
    """Compute ranks in double precision: 1 plus the number of better negatives that are no endpoints."""
    found, h = [], h.astype(float)
    for u, v in zip(*(ends.numpy() for ends in graph.find_edges(torch.from_numpy(edges))), strict=True):
        found.append(1 + sum(h[u] @ h[x] > h[u] @ h[v] for x in negatives if x not in (u, v)))
    return np.array(found)


def test_negatives_and_validation_edges(tiny: Dataset) -> None:
    """D10. The validation edges are thinned over all ranks. Negatives are distinct and depend on the seed alone."""
    task, again, other = (
        LinkTask(LocalShard(tiny), replace(CONFIG, batch_size=size, seed=seed))
        for size, seed in ((100, 1), (200, 1), (100, 2))
    )
    assert len(task.negatives.unique()) == 50
    assert torch.equal(task.negatives, again.negatives)
    assert not torch.equal(task.negatives, other.negatives)
    assert 200 <= len(task.val_loader.examples) < 300
    assert len(task.train_loader) == 10


def test_exact_embeddings_exclude_held_out_edges(tiny: Dataset) -> None:
    """D9. The exact embeddings equal those of a graph without the held-out edges."""
    graph, task = tiny.graph, LinkTask(LocalShard(tiny), replace(CONFIG, eval_batch_size=700))
    removed = dgl.remove_edges(graph, torch.cat([task.edges["val"], task.edges["test"]]))
    assert torch.allclose(task.embed(), normalize_rows(task.model([removed, removed], graph.ndata["feat"])), atol=1e-5)


def without_labels(dataset: Dataset) -> Dataset:
    """Return the same graph with features only."""
    graph = dataset.graph.local_var()
    for name in graph.ndata.keys() - {"feat"}:
        del graph.ndata[name]
    return replace(dataset, structure=graph, num_classes=0)


@pytest.mark.whole_run
def test_resume_single_process_exactly(tiny: Dataset, tmp_path: Path) -> None:
    shard = LocalShard(tiny)
    whole = train_single(shard, CONFIG)
    assert whole.epochs[-1].loss < 0.75 * whole.epochs[0].loss
    untrained = train_single(shard, replace(CONFIG, epochs=0))
    assert whole.test_score > untrained.test_score + 0.1
    assert whole.scores["test_hits@10"] > untrained.scores["test_hits@10"]
    assert float((1 / whole.test_edges["rank"].double()).mean()) == pytest.approx(whole.test_score)

    folder = tmp_path / "checkpoint"
    looks = iter([False] * 2)  # after step 5 and the end of the first of the epochs, which have ten steps
    with pytest.raises(Stopped):
        train_single(shard, CONFIG, CheckpointManager(folder, {}, stop=lambda: next(looks, True)))
    saved = read_checkpoint(folder).manifest
    assert (len(saved.epochs), saved.step) == (1, 5)
    resumed = train_single(shard, CONFIG, CheckpointManager(folder, {}, resume=True))
    assert torch.equal(resumed.embeddings, whole.embeddings)
    assert [epoch.loss for epoch in resumed.epochs] == [epoch.loss for epoch in whole.epochs]


@pytest.mark.cluster
def test_two_machines_from_the_command_line(emulation, nothing_left, data_root, tiny, tmp_path, monkeypatch) -> None:
    """Exact embeddings and ranks equal those of one process. Edges have their original IDs."""
    out = tmp_path / "run"
    monkeypatch.undo()
    options = ["--task", "link", "--scale", "0.002", "--hidden-size", "16", "--fanouts", "5,5", "--batch-size", "5000"]
    result = train(out, data_root, *options, "--emulate", "2", "--epochs", "1")
    task = LinkTask(LocalShard(tiny), TrainConfig.from_dict(result["config"]))
    task.model.load_state_dict(load_file(out / "checkpoint" / "model.safetensors"))
    embeddings = torch.from_numpy(np.load(out / "embeddings.npy"))
    assert torch.allclose(embeddings, task.embed(), atol=1e-4)

    with np.load(out / "test_edges.npz") as found:
        edge, rank = (torch.from_numpy(found[name]) for name in ("edge", "rank"))
    assert torch.equal(edge, task.edges["test"])
    some = slice(None, None, max(1, len(edge) // 100))
    by_hand = ranks_one_by_one(tiny.graph, embeddings.numpy(), edge[some].numpy(), task.negatives.numpy())
    assert np.abs(by_hand - rank[some].numpy()).max() <= 1  # a sum of products may round otherwise
    assert (by_hand == rank[some].numpy()).mean() > 0.9
    assert (result["score"], result["val_accuracy"], result["test_accuracy"]) == ("MRR", None, None)
    assert result["test_score"] == pytest.approx(float((1 / rank.double()).mean()), abs=1e-9)
    assert result["scores"]["test_hits@10"] == pytest.approx(float((rank <= 10).double().mean()), abs=1e-9)
    splits = [event for event in read_events(out) if event["kind"] == "split"]
    for side in SPLITS:
        assert sum(event[f"{side}_edges"] for event in splits) == len(task.edges[side])
    assert abs(splits[0]["train_edges"] - splits[1]["train_edges"]) <= 1


@pytest.mark.cluster
def test_two_machines_agree_with_one_process(emulation, nothing_left, tiny, tmp_path, monkeypatch) -> None:
    """D6. Ranks write only rows of their own machine. Mean MRRs over three seeds differ by less than 0.015."""
    config = replace(CONFIG, epochs=5, hidden_size=32, dropout=0.0, batch_size=500)
    options = {**OPTIONS, "epoch_edges": 10_000, "eval_negatives": 100}
    plain = without_labels(tiny)
    part = partition_dataset(plain, 2, tmp_path / "parts", method="kaminpar")
    halved = [replace(config, batch_size=250, seed=seed) for seed in range(3)]
    events = run_trainings(part, tmp_path / "two", halved, **options)
    for name, value in options.items():
        monkeypatch.setattr(LinkTask, name, value)
    two = [event["test_score"] for event in events if event["kind"] == "evaluation"]
    one = [train_single(LocalShard(plain), replace(config, seed=seed)).test_score for seed in range(3)]
    assert mean(two) == pytest.approx(mean(one), abs=0.015), (two, one)
    assert mean(two) > 0.25  # ranks by chance give 0.05
    out = tmp_path / "two" / "0"
    task = LinkTask(LocalShard(plain), config)
    task.model.load_state_dict(load_file(out / "checkpoint" / "model.safetensors"))
    assert two[0] == pytest.approx(task.evaluate().test_score, abs=0.01)
    assert {path.name for path in out.glob("*.np*")} == {"embeddings.npy", "test_edges.npz"}
