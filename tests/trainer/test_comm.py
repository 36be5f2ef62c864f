"""Collectives of Python values, and the one module of the package that unpickles."""

import ast
from collections.abc import Iterator
from pathlib import Path

from rank_functions import exchange_values

import tutorial_lib
from support.processes import fix_openmp, fork
from tutorial_lib.trainer.comm import all_gather, broadcast, gather

PACKAGE = Path(tutorial_lib.__file__).parent
RANKS = PACKAGE / "trainer/comm.py"  # torch's object collectives, between the ranks of a job
UNPICKLING = {"Unpickler", "read_pickle", "gather_object", "all_gather_object", "scatter_object_list"}
UNPICKLING |= {"broadcast_object_list", "send_object_list", "recv_object_list"}
LOADS = ("pickle.load", "pickle.loads", "joblib.load")


def test_collectives_return_sent_values():
    """Three ranks send values of very different sizes, with an empty tensor among them. One process needs no group."""
    assert (gather(1), all_gather("x"), broadcast(None)) == ([1], ["x"], None)
    ranks = fork(fix_openmp(exchange_values), 3, backend="gloo", threads=1)
    for rank, (gathered, everywhere, from_first) in enumerate(ranks):
        assert everywhere == [[0, 0, 0.0], [1, 1000, 499500.0], [2, 2000, 1999000.0]]
        assert gathered == (everywhere if rank == 0 else [])
        assert from_first == {"name": "rank 0", "sum": 10.0}


def unpickling_calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            unsafe_load = name == "torch.load" and given.get("weights_only") != "True"
            pickled = unsafe_load or given.get("allow_pickle", "False") != "False"
            if pickled or name in LOADS or name.rsplit(".", 1)[-1] in UNPICKLING:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {name}"


def test_only_collectives_unpickle():
    files = [path for path in PACKAGE.rglob("*.py") if path != RANKS]
    assert len(files) > 50
    assert [call for path in files for call in unpickling_calls(path)] == []
    assert any(unpickling_calls(RANKS))
