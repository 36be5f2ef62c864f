"""Checks that every data set passes before a job starts."""

import dgl
import pytest
import torch
from shared_data import tiny_dataset

from tutorial_lib.data import check_dataset, load_dataset
from tutorial_lib.errors import InputError


def with_node_data(**changes):
    dataset = tiny_dataset()
    dataset.graph.ndata.update(changes)
    return dataset


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"feat": torch.tensor([[0.0], [float("nan")]] * 4)}, "NaN or infinite values in 4 of 8 rows, first in row 1"),
        ({"feat": torch.zeros(8)}, r"feat has shape \(8,\)"),
        ({"val_mask": torch.zeros(8, dtype=torch.bool)}, "val_mask selects no node"),
    ],
)
def test_each_invalid_field_is_named(changes, words):
    with pytest.raises(InputError, match=words) as caught:
        check_dataset(with_node_data(**changes))
    assert "\n" not in caught.value.message


def test_empty_graph_is_refused_and_features_are_optional():
    dataset = tiny_dataset()
    assert check_dataset(dataset) is dataset
    del dataset.graph.ndata["feat"]
    with pytest.raises(InputError, match="has no node features"):
        check_dataset(dataset)
    assert check_dataset(dataset, need_features=False).num_features == 0
    dataset.structure = dgl.graph(([], []), num_nodes=8)
    with pytest.raises(InputError, match="8 nodes and 0 edges"):
        check_dataset(dataset)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name_or_path": "cora"}, "unknown data set 'cora'"),
        *(({"scale": scale}, "scale") for scale in (0.0019, 8.01, float("nan"))),
        ({"name_or_path": "synthetic-academic", "scale": 1.1}, "synthetic-academic: scale 1.1"),
        ({"seed": 2**32}, "expected 0 to 4294967295"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load_dataset(**{"name_or_path": "synthetic-products", "root": tmp_path, **arguments})
    assert not list(tmp_path.iterdir())


def test_fingerprint_depends_on_every_field():
    longer, other = with_node_data(), with_node_data()
    longer.structure = dgl.add_edges(longer.graph, 0, 2)
    other.graph.edata["length"] = torch.zeros(18)
    different = [with_node_data(feat=torch.zeros(8, 2)), with_node_data(label=torch.zeros(8, dtype=torch.int64))]
    found = [dataset.fingerprint() for dataset in (tiny_dataset(), *different, longer, other)]
    assert len(set(found)) == 5
    # Without edge data the value is part of the names of folders that are there already.
    assert found[0].startswith("6e131b54205f")
