"""The checkers of lesson 15 know right from wrong; its programs write parts that hold the graph; its pictures draw."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import pytest
import torch
from program_support import scripts_in
from solution_support import NOTEBOOKS, assert_not_yet, solutions, verdict

from support.exercises import lesson_15
from support.plots import heterographs as plots

ANSWERS = solutions("15")
typed_ids = ANSWERS.typed_ids


def test_right_answer(capsys):
    assert verdict(capsys, lesson_15.check_typed_ids, typed_ids) == "Exercise 1: correct\n"
    numpy = lambda ranges, ids: (typed_ids(ranges, ids)[0], typed_ids(ranges, ids)[1].numpy())  # noqa: E731
    assert verdict(capsys, lesson_15.check_typed_ids, numpy) == "Exercise 1: correct\n"


def end_counted_in(ranges: Any, ids: torch.Tensor) -> Any:
    return typed_ids({name: [[first, end + 1] for first, end in own] for name, own in ranges.items()}, ids)


def within_the_range(ranges: Any, ids: torch.Tensor) -> Any:
    starts = sorted(first for own in ranges.values() for first, _end in own)
    return typed_ids(ranges, ids)[0], torch.tensor([one - max(s for s in starts if s <= one) for one in ids.tolist()])


WRONG = {
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    "names alone": (lambda r, i: typed_ids(r, i)[0], "expected  'tuple of 2'"),
    "ids as they are": (
        lambda r, i: (typed_ids(r, i)[0], i),
        r"type-wise ids\n  got       \[0, 2, 3, 7, 8, 9, 10, 11\]\n  expected  \[0, 2, 0, 4, 3, 4, 5, 6\]",
    ),
    "one type": (lambda r, i: (["a"] * len(i), typed_ids(r, i)[1]), r"types\n  got       \['a', 'a', 'a'"),
    "end counted in": (end_counted_in, "types"),
    "earlier parts forgotten": (within_the_range, "add the lengths of their ranges"),
}


@pytest.mark.parametrize(("answer", "complaint"), WRONG.values(), ids=WRONG.keys())
def test_wrong_ids(answer, complaint, capsys):
    assert_not_yet(verdict(capsys, lesson_15.check_typed_ids, answer), complaint)


BEFORE = {
    "ranks": 2,
    "epochs": [{}] * 5,
    "test_accuracy": 0.80,
    "widths": {"paper": 64},
    "rows": {"author": [10_000, 4_500], "field": [1_500, 700], "paper": [14_000, 6_500]},
}
AFTER = {**BEFORE, "test_accuracy": 0.78, "rows": {"author": [9_000, 4_000], "field": [0, 0], "paper": [9_000, 4_100]}}
BYTES = [128 * rows[0] + 256 * rows[1] for rows in ((5_200, 6_500), (4_000, 4_100))]  # of both runs
SAVED = 1 - BYTES[1] / BYTES[0]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """What the lesson and the reader's program have written; paths of the program and of the lesson's result."""

    def write(late: bool = False, **changes: Any) -> tuple[Path, Path]:
        folder = tmp_path / "out" / "types"
        folder.mkdir(parents=True)
        program = tmp_path / "exercise_15_2.py"
        (folder / "trained.json").write_text(json.dumps(BEFORE))
        program.write_text("")
        (folder / "exercise_15_2.json").write_text(json.dumps({**AFTER, **changes}))
        if late:
            os.utime(folder / "exercise_15_2.json", (0, 0))
        return program, folder / "trained.json"

    return write


def check_job(saved: Any, paths: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> str:
    lesson_15.check_without_fields(saved, *paths)
    return capsys.readouterr().out


@pytest.mark.parametrize("saved", [SAVED, SAVED + 0.009, np.float32(SAVED), torch.tensor(SAVED), np.float64(SAVED)])
def test_right_job(saved, write, capsys):
    assert check_job(saved, write(), capsys) == "Exercise 2: correct\n"


WRONG_JOBS = {
    "stub": (None, {}, "got       None\n"),
    "rows instead of bytes": (1 - 8_100 / 11_700, {}, "bytes, not rows"),
    "what is left": (1 - SAVED, {}, "share of the bytes"),
    "in percent": (100 * SAVED, {}, "share of the bytes"),
    "as a text": (f"{SAVED:.0%}", {}, "share of the bytes"),
    "fields in one hop still": (SAVED, {"rows": {**AFTER["rows"], "field": [300, 140]}}, "begins at a field is 0"),
    "authors left out as well": (SAVED, {"rows": {**AFTER["rows"], "author": [0, 0]}}, "of type author are still read"),
    "one process": (SAVED, {"ranks": 1}, "launch --emulate 2"),
    "one epoch": (SAVED, {"epochs": [{}]}, "the options of the run"),
    "inference with fields": (SAVED, {"test_accuracy": 0.61}, "has not learned anything"),
    "older than the program": (SAVED, {"late": True}, "has failed, or not been started"),
}


@pytest.mark.parametrize(("saved", "changes", "complaint"), WRONG_JOBS.values(), ids=WRONG_JOBS.keys())
def test_wrong_job(saved, changes, complaint, write, capsys):
    assert_not_yet(check_job(saved, write(**changes), capsys), complaint)


def test_no_program(tmp_path, capsys):
    paths = tmp_path / "exercise_15_2.py", tmp_path / "trained.json"
    assert_not_yet(check_job(SAVED, paths, capsys), "exercise_15_2.py is there")


COUNTS = {"a": 40, "b": 30, "c": 1}  # np.loadtxt makes a number, not an array, of a file with one line
RELATIONS = {("a", "r", "b"): 120, ("b", "s", "a"): 25, ("b", "t", "b"): 60, ("c", "u", "a"): 3}


def write_chunks(folder: Path) -> dict[tuple[str, str, str], torch.Tensor]:
    """A small graph in chunks of at most 50 edges, of three types and four relations, in text and in arrays."""
    generator = torch.Generator().manual_seed(0)
    ends = {
        (start, name, end): torch.stack(
            [torch.randint(COUNTS[kind], (count,), generator=generator) for kind in (start, end)], dim=1
        )
        for (start, name, end), count in RELATIONS.items()
    }
    folder.mkdir()
    files: dict[str, list[str]] = {}
    for relation, pairs in ends.items():
        for number, piece in enumerate(pairs.numpy()[at : at + 50] for at in range(0, len(pairs), 50)):
            name = f"{relation[1]}-{number}.{'csv' if relation[1] == 'r' else 'npy'}"
            if relation[1] == "r":
                np.savetxt(folder / name, piece, fmt="%d")
            else:
                np.save(folder / name, piece)
            files.setdefault(":".join(relation), []).append(name)
    for number, ids in enumerate(np.array_split(np.arange(30), 3)):
        np.save(folder / f"feat-{number}.npy", np.stack([ids, ids * ids], axis=1).astype(np.float32))
        np.save(folder / f"mask-{number}.npy", ids % 2 == 0)
    about = {"graph_name": "small", "node_type": [*COUNTS], "num_nodes_per_type": [*COUNTS.values()]}
    about |= {"edge_type": [*files], "num_edges_per_type": [*RELATIONS.values()]}
    about["edges"] = {
        key: {"format": {"name": "csv" if names[0].endswith("csv") else "numpy", "delimiter": " "}, "data": names}
        for key, names in files.items()
    }
    fields = {"feat": [f"feat-{k}.npy" for k in range(3)], "train_mask": [f"mask-{k}.npy" for k in range(3)]}
    about["node_data"] = {"b": {name: {"format": {"name": "numpy"}, "data": names} for name, names in fields.items()}}
    (folder / "metadata.json").write_text(json.dumps({**about, "edge_data": {}}))
    return ends


@pytest.mark.whole_run
@pytest.mark.parametrize("parts", [1, 3])
def test_dispatched_parts_hold_the_graph(parts, tmp_path, monkeypatch):
    """As DGL reads and verifies them: each edge once, in the part of its destination, and each row with its node."""
    ends = write_chunks(tmp_path / "chunks")
    (tmp_path / "assigned").mkdir()
    part_of = {name: np.arange(count) * 7 % 11 % parts for name, count in COUNTS.items()}
    for name, of in part_of.items():
        np.savetxt(tmp_path / "assigned" / f"{name}.txt", of, fmt="%d")
    words = [str(tmp_path / name) for name in ("chunks", "assigned", "parts")]
    program = scripts_in(tmp_path) / "chunks_dispatch.py"
    subprocess.run([sys.executable, program, *words], check=True, capture_output=True, timeout=100)

    config = tmp_path / "parts" / "small.json"
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")
    original = {name: torch.from_numpy(np.argsort(of, kind="stable")) for name, of in part_of.items()}
    found: dict[Any, list[torch.Tensor]] = {relation: [] for relation in ends}
    for part in range(parts):
        stored, rows, _, book, *_ = dgl.distributed.load_partition(str(config), part)
        kept = dgl.data.utils.load_tensors(str(tmp_path / "parts" / f"part{part}" / "orig_nids.dgl"))
        for name in COUNTS:
            assert torch.equal(original[name][book.partid2nids(part, name)], kept[name])
        assert rows["b/feat"].tolist() == [[k, k * k] for k in kept["b"].tolist()]
        assert rows["b/train_mask"].bool().tolist() == [k % 2 == 0 for k in kept["b"].tolist()]
        src, dst = stored.edges()
        assert stored.ndata["inner_node"][dst].all()
        offsets = book.local_etype_offset  # the servers tell the relation of an edge from its place
        for number, relation in enumerate(book.canonical_etypes):
            place = slice(offsets[number], offsets[number + 1])
            assert (stored.edata[dgl.ETYPE][place] == number).all()
            both = (stored.ndata[dgl.NID][side[place]] for side in (src, dst))
            typed = [book.map_to_per_ntype(ids) for ids in both]
            pairs = [original[kind][ids] for kind, (_, ids) in zip((relation[0], relation[2]), typed, strict=True)]
            assert (torch.from_numpy(part_of[relation[2]])[pairs[1]] == part).all()
            found[relation].append(torch.stack(pairs, dim=1))
    for relation, pairs in ends.items():
        assert sorted(map(tuple, torch.cat(found[relation]).tolist())) == sorted(map(tuple, pairs.tolist()))


@pytest.mark.whole_run
@pytest.mark.parametrize("words", [[], ["--out", "o", "--checkpoint", "c"]])
def test_results_that_could_not_be_written_are_refused_at_once(words):
    words = ["--graph_name", "g", "--part_config", "p", "--ip_config", "i", "--weights", "w", *words]
    program = [sys.executable, "train_types.py", *words]
    ended = subprocess.run(program, cwd=NOTEBOOKS / "scripts", capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "--out is needed, and there are no checkpoints" in ended.stderr


def test_a_layer_adds_up_means_by_relation_and_every_weight_gets_a_gradient():
    from scripts.rgcn import RGCN, RelationalLayer

    torch.manual_seed(0)
    relations = [("a", "r", "b"), ("b", "t", "b"), ("b", "s", "a")]
    layer = RelationalLayer(relations, ["a", "b"], 3, 2)
    graph = dgl.heterograph(
        {("a", "r", "b"): ([0, 1, 2], [0, 0, 1]), ("b", "t", "b"): ([1, 1], [0, 2])}, num_nodes_dict={"a": 3, "b": 4}
    )  # no edge of s: as in a batch of a DistGraph
    h = {"a": torch.rand(3, 3), "b": torch.rand(4, 3)}
    out = layer(dgl.to_block(graph, {name: graph.nodes(name) for name in graph.ntypes}), h)
    to = {r: layer.of[":".join(r)].weight.T for r in relations}
    expected = layer.own["b"](h["b"])
    expected[0] += (h["a"][0] + h["a"][1]) / 2 @ to[relations[0]] + h["b"][1] @ to[relations[1]]
    expected[1] += h["a"][2] @ to[relations[0]]
    expected[2] += h["b"][1] @ to[relations[1]]
    torch.testing.assert_close(out["b"], expected)
    torch.testing.assert_close(out["a"], layer.own["a"](h["a"]))

    model = RGCN(relations, "b", {"a": 5}, 3, 2)
    x = {"a": torch.rand(3, 5), "b": torch.rand(4, 3, requires_grad=True)}
    blocks = [dgl.to_block(graph, {name: graph.nodes(name) for name in graph.ntypes})] * 2
    model(blocks, x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not any(name.startswith("layers.1.own.a") for name, _ in model.named_parameters())  # nobody asks for it
    model.eval()
    torch.testing.assert_close(
        model.inference(graph, {name: rows.detach() for name, rows in x.items()}), model(blocks, x)
    )


def test_pictures():
    relations = {("author", "writes", "paper"): 3, ("paper", "written-by", "author"): 3, ("paper", "cites", "paper"): 2}
    figure = plots.metagraph({"author": 5, "field": 2, "paper": 3}, relations, ["paper"])
    words = {text.get_text() for text in figure.axes[0].texts}
    assert {"writes", "written-by", "cites", "paper\n3 nodes\nfeatures, labels", "field\n2 nodes\nno features"} <= words
    figure = plots.id_line({"a": [[0, 3], [8, 10]], "b": [[3, 8], [10, 12]]})
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"3 to\n4", "5 to\n6", "part 0", "part 1"} <= set(texts)  # type-wise ids go on in the second part
    figure = plots.remote_rows({"author": [200, 90], "paper": [100, 25]})
    assert [text.get_text() for text in figure.axes[0].texts] == [" 45% remote", " 25% remote"]
    assert [bar.get_width() for bar in figure.axes[0].patches] == [110, 75, 90, 25]
    figure = plots.peaks({"one": 1200, "two": 300})
    assert [text.get_text() for text in figure.axes[0].texts] == [" 1,200 MB", " 300 MB"]
