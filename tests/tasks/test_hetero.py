"""--task hetero: the model, its batches, and two machines against one process."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

import dgl
import numpy as np
import pytest
import torch
from commands import check_predictions, kill_trainer, read_events, read_losses, start_and_kill, tutorial
from programs.train_runs import run_trainings
from safetensors.torch import load_file

from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.models.rgcn import RGCN, RelationalLayer
from tutorial_lib.partition import load_partition_folder, partition_dataset
from tutorial_lib.sampling.loader import BatchLoader
from tutorial_lib.tasks.node import HeteroTask, learnable_embeddings
from tutorial_lib.tasks.run import train_single
from tutorial_lib.tasks.task import LocalShard, graph_batches, layerwise_inference
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.manifest import read_checkpoint

SCALE = 0.004
CONFIG = TrainConfig(
    task="hetero", epochs=2, fanouts=(5, 5), batch_size=200, hidden_size=16, embedding_size=16, eval_batch_size=2000
)
COMMON = ["--task", "hetero", "--dataset", "synthetic-academic", "--scale", str(SCALE), "--hidden-size", "32"]
COMMON += ["--fanouts", "5,5", "--batch-size", "100"]


@pytest.fixture(scope="module")
def academic(data_root: Path) -> Dataset:
    return load_dataset("synthetic-academic", scale=SCALE, root=data_root)


def small_graph() -> dgl.DGLGraph:
    """A graph with two relations named r between different types."""
    return dgl.heterograph(
        {
            ("a", "r", "b"): (torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 3])),
            ("b", "r", "b"): (torch.tensor([0, 3, 2]), torch.tensor([1, 1, 0])),
            ("b", "s", "a"): (torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 2, 1])),
        }
    )


def test_layer_equals_formula():
    graph = small_graph()
    torch.manual_seed(0)
    layer = RelationalLayer(graph.canonical_etypes, ["a", "b"], 3, 5)
    weight_of = dict(zip(sorted(graph.canonical_etypes), layer.matrices, strict=True))
    h = {name: torch.randn(graph.num_nodes(name), 3) for name in graph.ntypes}
    found = layer(dgl.to_block(graph, {name: graph.nodes(name) for name in graph.ntypes}), h)
    for name in graph.ntypes:
        expected = h[name] @ layer.own[name].weight.T + layer.own[name].bias
        for relation, weight in weight_of.items():
            if relation[2] == name:
                src, dst = graph.edges(etype=relation)
                for node in dst.unique().tolist():
                    expected[node] += h[relation[0]][src[dst == node]].mean(0) @ weight
        assert torch.allclose(found[name], expected, atol=1e-5)


def test_types_without_path_to_target_are_skipped():
    relations = [("a", "r", "b"), ("b", "s", "c"), ("c", "t", "d")]
    model = RGCN(relations, "c", {"a": 7, "d": 3}, 4, 4, 2)
    assert list(model.project) == ["a"]
    assert [layer.relations for layer in model.layers] == [relations[:2], relations[1:2]]


def test_every_weight_gets_a_gradient():
    """D13. Every weight gets a gradient, even if a batch lacks relations or has no edge, because DDP waits for it."""
    relations = small_graph().canonical_etypes
    model = RGCN(relations, "b", {"a": 6}, 4, 4, 3)
    few = dgl.heterograph({("b", "r", "b"): ([0], [1])}, num_nodes_dict={"a": 3, "b": 4}, idtype=torch.int64)
    with pytest.raises(dgl.DGLError):
        few[("a", "r", "b")]
    inner = dgl.to_block(few, {"b": torch.tensor([1])})
    outer = dgl.to_block(few, {"b": inner.srcdata[dgl.NID]["b"]})
    rows = {"a": torch.randn(0, 6), "b": torch.randn(outer.num_src_nodes("b"), 4)}
    model([outer, inner], rows).sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_batches_cover_every_seed_once(academic):
    papers = torch.arange(0, 110, 2)
    loader = BatchLoader(academic.graph, {"paper": papers}, [3, 2], 20, shuffle=True)
    batches = [batch for _step, batch in loader.batches(0)]
    assert [len(batch.seeds["paper"]) for batch in batches] == [19, 18, 18]
    assert torch.equal(torch.cat([batch.seeds["paper"] for batch in batches]).sort().values, papers)
    for relation in academic.graph.canonical_etypes:  # the fan-out is of each edge type
        degrees = batches[0].blocks[1].in_degrees(etype=relation)
        assert not len(degrees) or int(degrees.max()) <= 2


@pytest.mark.cluster
def test_two_machines_reach_the_accuracy_of_one_process(emulation, nothing_left, data_root, tmp_path):
    """The test uses three seeds and equal batches. The standard deviation over seeds is about 0.006."""
    dataset = load_dataset("synthetic-academic", scale=0.007, root=data_root)
    partition = partition_dataset(dataset, 2, tmp_path / "parts")
    sizes = {"batch_size": 300, "hidden_size": 32, "embedding_size": 32}
    config = replace(CONFIG, epochs=4, learning_rate=0.01, embedding_learning_rate=0.03, **sizes)
    configs = [replace(config, seed=seed) for seed in (0, 1, 2)]
    events = run_trainings(partition, tmp_path / "runs", [replace(config, batch_size=150) for config in configs])
    two = [event["test_accuracy"] for event in events if event["kind"] == "evaluation"]
    one = [train_single(LocalShard(dataset), config).test_score for config in configs]
    print(f"two machines {two}, one process {one}")
    assert mean(one) > 0.8  # the features alone give about a half
    assert mean(two) == pytest.approx(mean(one), abs=0.015)


def rows_in_original_order(out: Path, folder: Path) -> dict[str, torch.Tensor]:
    """Return the embeddings of a distributed run from the checkpoint files of all machines."""
    checkpoint, node_map = read_checkpoint(out / "checkpoint").folder, load_partition_folder(folder).node_map
    machines = [load_file(path) for path in sorted(checkpoint.glob("embeddings-machine-*.safetensors"))]
    rows = {name: torch.cat([machine[f"{name}/weight"] for machine in machines]) for name in ("author", "field")}
    return {name: rows[name][np.argsort(node_map[name])] for name in rows}


@pytest.mark.cluster
def test_resume_with_equal_embeddings_after_killed_trainer(emulation, nothing_left, academic, tmp_path):
    """Embeddings, weights and predictions equal those of an undisturbed run."""
    data_root = tmp_path / "data"  # with no other partition in it
    common = [*COMMON, "--root", str(data_root), "--emulate", "2", "--epochs", "2"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    tutorial("train", *common, "--out", str(whole))
    check_predictions(whole, json.loads((whole / "result.json").read_text()), academic)
    start_and_kill(common, out, 1, kill_trainer(1))
    tutorial("train", *common, "--resume", "--out", str(out))
    assert read_losses(out) == pytest.approx(read_losses(whole), rel=1e-5)
    assert [event["epochs"] for event in read_events(out) if event["kind"] == "resumed"] == [1]
    (folder,) = (data_root / "partitions").glob("synthetic-academic-*")
    rows = [rows_in_original_order(run, folder) for run in (whole, out)]
    for name in rows[0]:
        assert torch.allclose(rows[0][name], rows[1][name], atol=1e-4), name
    first, _ = learnable_embeddings(LocalShard(academic), list(rows[0]), TrainConfig())
    assert all(not torch.allclose(rows[0][name], first[name].weight, atol=1e-3) for name in rows[0])
    same = np.load(out / "predictions.npy") == np.load(whole / "predictions.npy")
    assert same.mean() > 0.998
    # On the whole graph in this process, the saved weights and rows give the same predictions.
    shard = LocalShard(academic)
    config = TrainConfig.from_dict(json.loads((whole / "checkpoint" / "config.json").read_text()))
    model = HeteroTask(shard, config).model
    model.load_state_dict(load_file(whole / "checkpoint" / "model.safetensors"))
    stores = {"paper": academic.target_data["feat"], **rows[0]}
    logits = layerwise_inference(model, graph_batches, stores, shard, 1000)
    assert (logits.argmax(1).numpy() == np.load(whole / "predictions.npy")).mean() > 0.998
