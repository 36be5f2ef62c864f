"""Values from rank to rank: the same bit for bit, and nothing in the package is unpickled on the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_functions import exchanged

import tutorial_lib
from support.processes import fix_openmp, fork
from tutorial_lib.tasks.link_scores import Probe
from tutorial_lib.trainer.exchange import all_gather, broadcast, gather, pack, unpack

PACKAGE = Path(tutorial_lib.__file__).parent
# A parent and the child that it has started talk over a socket that nobody else has; a lesson shows what it warns of.
OWN_CHILDREN = ("processes", "lessons")
OBJECT_COLLECTIVES = {
    *("gather_object", "all_gather_object", "scatter_object_list", "broadcast_object_list"),
    *("send_object_list", "recv_object_list"),
}

TENSORS = {
    "empty": torch.empty(0, 3),
    "none_of_two": torch.empty(2, 0, dtype=torch.int64),
    "scalar": torch.tensor(3, dtype=torch.int16),
    "bools": torch.tensor([True, False, True]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "half": torch.tensor([1.5, float("inf"), float("nan")], dtype=torch.float16),
    "bfloat": torch.tensor([0.1], dtype=torch.bfloat16),
    "double": torch.tensor([1 / 3, -0.0, 5e-324], dtype=torch.float64),
    "transposed": torch.arange(6).reshape(2, 3).T,
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = [t.contiguous().flatten().view(torch.uint8) if t.dim() else t[None].view(torch.uint8) for t in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


def test_tensors_come_back_bit_for_bit():
    found = unpack(pack(TENSORS))
    assert list(found) == list(TENSORS)
    assert [name for name in TENSORS if not same(found[name], TENSORS[name])] == []


def test_two_views_of_one_memory_can_be_sent():
    whole = torch.arange(10)
    first, second, again = unpack(pack((whole[:4], whole[2:], whole)))
    assert (first.tolist(), second.tolist(), again.tolist()) == ([0, 1, 2, 3], list(range(2, 10)), list(range(10)))


@pytest.mark.parametrize(
    "value", [None, True, 0, 2**70, 0.1, float("inf"), "", "ä\n", [], {}, [1, [2.5, None]], {"tensor": {"dict": [1]}}]
)
def test_plain_values_come_back(value: object):
    found = unpack(pack(value))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.arange(3), "the value is a ndarray"),
        ([0, {"a": {1, 2}}], r"the value\[1\]\['a'\] is a set"),
        ({1: "x"}, "the value is a dict"),
        (Path("x"), "the value is a PosixPath"),
        (torch.ones(2, dtype=torch.complex64), "tensor of torch.complex64"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo tensor"),
        (print, "the value is a builtin_function_or_method"),
    ],
)
def test_what_cannot_be_sent_is_named(value: object, words: str):
    with pytest.raises(TypeError, match=words):
        pack(value)


def test_a_process_alone_sends_to_itself():
    assert (gather(1), all_gather("x"), broadcast(None)) == ([1], ["x"], None)


def test_ranks_receive_what_was_sent():
    """Values of very different sizes, an empty tensor among them; three ranks."""
    for rank, (gathered, everywhere, from_first) in enumerate(
        fork(fix_openmp(exchanged), 3, backend="gloo", threads=1)
    ):
        assert everywhere == [[0, 0, 0.0], [1, 1000, 499500.0], [2, 2000, 1999000.0]]
        assert gathered == (everywhere if rank == 0 else [])
        assert from_first == {"name": "rank 0", "sum": 10.0}


def test_a_probe_survives():
    generator = np.random.default_rng(0)
    numbers = [*generator.random((2, 4)), generator.random((3, 4)), generator.random(3), np.array([0, 2, 5])]
    probe = Probe(*map(torch.from_numpy, numbers))
    found = Probe(**unpack(pack(vars(probe))))
    assert all(same(getattr(found, name), values) for name, values in vars(probe).items())


def unpickling_calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        last = name.rsplit(".", 1)[-1]
        if (
            last in OBJECT_COLLECTIVES
            or last in ("Unpickler", "read_pickle")
            or name in ("pickle.load", "pickle.loads", "joblib.load")
            or (name == "torch.load" and given.get("weights_only") != "True")
            or (last in ("load", "loadtxt", "genfromtxt") and given.get("allow_pickle", "False") != "False")
        ):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno} {name}"


def test_nothing_in_the_package_unpickles():
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in OWN_CHILDREN]
    assert len(files) > 100
    assert [call for path in files for call in unpickling_calls(path)] == []


def test_the_search_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    calls = ["dist.gather_object(x)", "pickle.loads(x)", "torch.load(x)", "np.load(x, allow_pickle=True)"]
    harmless = ["torch.load(x, weights_only=True)", "json.loads(x)", "np.load(x)", "dist.gather(x)"]
    path = tmp_path / "a.py"
    path.write_text("\n".join(calls + harmless))
    assert [call.split()[1] for call in unpickling_calls(path)] == [call.split("(")[0] for call in calls]
