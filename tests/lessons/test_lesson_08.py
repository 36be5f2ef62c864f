"""The checkers of lesson 8 know right from wrong; the GraphBolt data set is made whole, once, and holds our data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dgl
import dgl.graphbolt as gb
import numpy as np
import pytest
import torch
from solution_support import lesson_code, solutions, verdict

from support import graphbolt_data
from support.exercises import lesson_08
from support.graphbolt_data import graphbolt_folder, is_whole, load_graphbolt
from support.lessons import graphbolt_ranks
from support.plots import graphbolt
from tutorial_lib.data import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.processes import fork

ANSWERS = solutions("08")
batches_per_rank = ANSWERS.batches_per_rank
overall_mean = ANSWERS.overall_mean
degree_stage = ANSWERS.degree_stage


def all_degrees(graph: gb.FusedCSCSamplingGraph) -> Callable[[gb.MiniBatch], gb.MiniBatch]:
    def stage(batch: gb.MiniBatch) -> gb.MiniBatch:
        degrees = graph.csc_indptr.diff()[: len(batch.input_nodes)].float()
        batch.node_features["feat"] = torch.cat([batch.node_features["feat"], degrees[:, None]], dim=1)
        return batch

    return stage


def put_first(graph: gb.FusedCSCSamplingGraph) -> Callable[[gb.MiniBatch], gb.MiniBatch]:
    def stage(batch: gb.MiniBatch) -> gb.MiniBatch:
        batch = degree_stage(graph)(batch)
        batch.node_features["feat"] = batch.node_features["feat"].roll(1, dims=1)
        return batch

    return stage


CHECKS = (lesson_08.check_batches_per_rank, lesson_08.check_overall_mean, lesson_08.check_degree_stage)


@pytest.mark.parametrize(("check", "answer"), zip(CHECKS, (batches_per_rank, overall_mean, degree_stage), strict=True))
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


WRONG = {
    "stub": (0, lambda *_: None, r"got       None\n  expected  \[2, 2, 2, 2\]"),
    "items shared out": (0, lambda n, r, b, *_: [-(-n // r // b)] * r, r"got .*\n  expected  \[3, 3, 2, 2\]\n  hint"),
    "ignores options": (0, lambda n, r, b, *_: batches_per_rank(n, r, b, False, False), "drop_last=True"),
    "second stub": (1, lambda _p: None, "got       None\n  expected  1.25"),
    "mean of means": (1, lambda p: sum(m for m, _ in p) / len(p), "got       1.5\n  expected  1.25\n  hint: weight"),
    "NaN taken in": (1, lambda p: sum(m * n for m, n in p) / max(1, sum(n for _, n in p)), "got       nan.*\n.*1.5"),
    "third stub": (2, lambda _g: None, "got       'NoneType'\n  expected  'function'"),
    "returns nothing": (2, lambda _g: lambda _b: None, "got       'NoneType'\n  expected  'MiniBatch'"),
    "unchanged": (2, lambda _g: lambda batch: batch, "shape of the new features"),
    "other side": (2, put_first, "the old columns"),
    "wrong nodes": (2, all_degrees, "the new column(.|\n)*indptr"),
    "raises": (2, lambda g: g.no_such_thing, "Your code raised AttributeError"),
}


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number: int, answer: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = verdict(capsys, CHECKS[number], answer)
    assert output.startswith(f"Exercise {number + 1}: not yet.")
    assert re.search(said, output), output


def test_the_checker_agrees_with_the_distributed_sampler() -> None:
    settings = [{"drop_last": last, "drop_uneven_inputs": even} for last in (False, True) for even in (False, True)]
    ranks = fork(lesson_code("08", "replicas").replicas, 3, (19, 2, settings), backend="gloo", threads=1, timeout=60)
    for k, options in enumerate(settings):
        assert [len(found[k]) for found in ranks] == lesson_08.batches_of_replicas(19, 3, 2, *options.values())


@pytest.fixture(scope="module")
def folder(small_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graphbolt_folder(small_dataset, root=tmp_path_factory.mktemp("graphbolt"))


@pytest.mark.parametrize("in_memory", [True, False])
def test_data_set_on_disk_is_ours(
    in_memory: bool, folder: Path, small_dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    on_disk = load_graphbolt(folder, in_memory=in_memory)
    graph = small_dataset.graph
    indptr, indices, _ = graph.adj_tensors("csc")
    assert torch.equal(on_disk.graph.csc_indptr.long(), indptr)
    per_node = indices.new_zeros(1), torch.repeat_interleave(torch.arange(graph.num_nodes()), indptr.diff())
    key = per_node[1] * graph.num_nodes()
    ours, theirs = (torch.sort(key + ids.long()).values for ids in (indices, on_disk.graph.indices))
    assert torch.equal(ours, theirs)
    assert torch.equal(on_disk.feature.read("node", None, "feat"), graph.ndata["feat"])
    task = on_disk.tasks[0]
    assert task.metadata["num_classes"] == small_dataset.num_classes
    for items, mask in ((task.train_set, "train"), (task.validation_set, "val"), (task.test_set, "test")):
        ids = graph.ndata[f"{mask}_mask"].nonzero().flatten()
        assert items.names == ("seed_nodes", "labels")
        assert torch.equal(items[:][0].long(), ids)
        assert torch.equal(items[:][1], graph.ndata["label"][ids])
    assert capsys.readouterr().out == ""


def test_folder_is_reused_and_replaced_when_damaged(small_dataset: Dataset, tmp_path: Path) -> None:
    folder = graphbolt_folder(small_dataset, root=tmp_path)
    made = (folder / "feat.npy").stat().st_ino
    assert graphbolt_folder(small_dataset, root=tmp_path) == folder
    assert (folder / "feat.npy").stat().st_ino == made
    (folder / "preprocessed" / "feat.npy").write_bytes(b"half")
    with pytest.raises(InputError, match="not a whole"):
        load_graphbolt(folder)
    (folder.parent / f".{folder.name}.tmp-1-0123dead").mkdir()
    assert is_whole(graphbolt_folder(small_dataset, root=tmp_path))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert load_graphbolt(folder).graph.total_num_nodes == small_dataset.graph.num_nodes()


def test_a_failure_leaves_nothing(small_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Any, values: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(graphbolt_data.np, "save", fails)
    with pytest.raises(InputError, match="disk full"):
        graphbolt_folder(small_dataset, root=tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_asked_for_twice_at_once(small_dataset: Dataset, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda _: graphbolt_folder(small_dataset, root=tmp_path), range(3)))
    assert len(set(folders)) == 1
    assert is_whole(folders[0])
    assert len(list(folders[0].parent.iterdir())) == 1


def test_other_content_is_another_folder(small_dataset: Dataset, tmp_path: Path) -> None:
    graph = dgl.graph(([0, 1, 2, 2], [1, 2, 0, 1]), num_nodes=3)
    graph.ndata["feat"], graph.ndata["label"] = torch.eye(3), torch.tensor([0, 1, 0])
    for k, name in enumerate(("train", "val", "test")):
        graph.ndata[f"{name}_mask"] = torch.arange(3) == k
    tiny = Dataset("../x/tiny.npz", graph, 2)
    folder = graphbolt_folder(tiny, root=tmp_path)
    assert folder.name.startswith("graphbolt-tiny-")
    graph.ndata["label"] = torch.tensor([1, 1, 0])
    assert graphbolt_folder(tiny, root=tmp_path) != folder
    sizes = json.loads((folder / "sizes.json").read_text())
    assert "preprocessed/fused_csc_sampling_graph.pt" in sizes
    del graph.ndata["feat"]
    with pytest.raises(InputError, match="no node features"):
        graphbolt_folder(tiny, root=tmp_path)


def test_reshuffled_keeps_items_together() -> None:
    items = gb.ItemSet((torch.arange(50), torch.arange(50) * 2), names=("seed_nodes", "labels"))
    first, again, other = (graphbolt_ranks.reshuffled(items, seed) for seed in (1, 1, 2))
    ids, labels = first[:]
    assert first.names == items.names
    assert torch.equal(labels, ids * 2)
    assert torch.equal(ids.sort().values, torch.arange(50))
    assert torch.equal(ids, again[:][0])
    assert not torch.equal(ids, other[:][0])


def test_a_rank_without_items_counts_nothing() -> None:
    accuracy, count = graphbolt_ranks.evaluate(torch.nn.Linear(1, 1), [], 3)
    assert (accuracy.item(), count) == (0.0, 0)
    means, counts = [0.5, 1.0, 0.0], [6, 2, 0]

    def reduce_own(rank: int, _world_size: int) -> float:
        return graphbolt_ranks.weighted_reduce(torch.tensor(means[rank] * counts[rank]), counts[rank]).item()

    assert fork(reduce_own, 3, backend="gloo", threads=1, timeout=60)[0] == pytest.approx(5 / 8)


def test_pictures() -> None:
    assert {"copy_to", "picks items", "feature store"} <= {text.get_text() for text in graphbolt.stages().axes[0].texts}
    panels = {"a": [[[0, 1]], [[2]]], "b": [[[0, 1]], []]}
    figure = graphbolt.replicas([[0, 1], [2]], panels)
    assert [ax.get_title() for ax in figure.axes] == ["a", "b"]
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["rank 0: 1", "rank 1: 0"]
    panels = graphbolt.classes_seen({"a": np.ones((2, 3)), "b": np.eye(2, 3)}).axes[:2]
    shares = [ax.images[0].get_array() for ax in panels]
    assert [array.tolist() for array in shares] == [[[0.5] * 3] * 2, [[1, 0, 0], [0, 1, 0]]]
