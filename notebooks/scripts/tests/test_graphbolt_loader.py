"""Tests of ``graphbolt_loader.py``."""

import math
from pathlib import Path
from types import SimpleNamespace

import dgl
import dgl.graphbolt as gb
import pytest
import torch
import torch.nn.functional as F
import yaml
from scores import Scores
from torch.nn.parallel import DistributedDataParallel

import graphbolt_loader
from support.processes import fork

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
MASKS = {"train_mask": [0, 2, 3], "val_mask": [5], "test_mask": [4, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    graph = dgl.graph(([1, 2, 0, 3, 2, 4, 5, 5, 1], [0, 0, 2, 2, 3, 3, 4, 0, 5]), num_nodes=6)
    graph.ndata["feat"], graph.ndata["label"] = torch.eye(6)[:, :5], LABELS + torch.tensor([0, 0, 0, 0, 0, 4])
    for name, nodes in MASKS.items():
        graph.ndata[name] = torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor(nodes), True)
    path = tmp_path_factory.mktemp("six nodes")
    graphbolt_loader.write_dataset(graph, path)
    return path


@pytest.fixture(scope="module")
def dataset(folder):
    return gb.OnDiskDataset(str(folder)).load()


def test_graph_and_features(dataset):
    """Save torch.stack(graph.edges()) and the features. metadata.yaml names both files and the number of nodes."""
    got = [dataset.graph.csc_indptr.tolist(), dataset.graph.indices.tolist()]
    expected = [[0, 3, 3, 5, 7, 8, 9], [1, 2, 5, 0, 3, 2, 4, 5, 1]]
    assert got == expected
    got, expected = dataset.feature.read("node", None, "feat"), torch.eye(6)[:, :5]
    assert torch.equal(got, expected)


def test_task_and_item_sets(dataset):
    """The task has three item sets. Each one has the columns seed_nodes and labels, in this order."""
    (task,) = dataset.tasks
    sets = task.train_set, task.validation_set, task.test_set
    got = task.metadata["num_classes"], *([items.names, *(column.tolist() for column in items[:])] for items in sets)
    names = ("seed_nodes", "labels")
    expected = 5, [names, [0, 2, 3], [0, 0, 2]], [names, [5], [4]], [names, [1, 4], [1, 1]]
    assert got == expected


def test_features_are_mapped_from_their_file(folder):
    """Set in_memory to false, and use paths relative to the folder, so that somebody else can open the data set."""
    metadata = yaml.safe_load((folder / "metadata.yaml").read_text())
    (feature,) = metadata["feature_data"]
    got = feature["in_memory"], Path(feature["path"]).is_absolute(), len(metadata["tasks"])
    expected = False, False, 1
    assert got == expected


def test_names_of_the_files(folder):
    """Name the arrays edges, feat, train-seed_nodes, train-labels, and so on. Each split has two files."""
    splits = [f"{split}-{name}" for split in graphbolt_loader.SPLITS for name in ("seed_nodes", "labels")]
    got = sorted(path.stem for path in folder.glob("*.npy"))
    expected = sorted(["edges", "feat", *splits])
    assert got == expected


def batch_of(nodes, dtype=torch.int64):
    nodes = torch.tensor(nodes, dtype=dtype)
    return gb.MiniBatch(input_nodes=nodes, node_features={"feat": torch.eye(6)[nodes.long()]})


@pytest.mark.parametrize(("nodes", "degrees"), [([2, 0, 1, 5], [2, 3, 0, 1]), ([4, 3], [1, 2]), ([], [])])
def test_the_stage_appends_degrees(dataset, nodes, degrees):
    """The new column is the last one, log(1 + degree). Row i belongs to input_nodes[i]. Return the MiniBatch."""
    batch = graphbolt_loader.append_degrees(dataset.graph)(batch_of(nodes, dataset.graph.indices.dtype))
    feat = batch.node_features["feat"]
    got, expected = feat[:, -1], torch.tensor([math.log(1 + degree) for degree in degrees])
    assert got.dtype == expected.dtype
    assert torch.allclose(got, expected)
    assert torch.equal(feat[:, :-1], torch.eye(6)[nodes])


def test_batches_of_the_source(dataset):
    """Select the IDs and the labels of these rows. A step without seed nodes needs an empty MiniBatch."""
    items, rows = dataset.tasks[0].train_set, [torch.tensor([2, 0]), torch.tensor([], dtype=torch.int64)]
    source = graphbolt_loader.make_source(items, rows).copy_to("cpu")  # a datapipe, not a list
    got = [[(batch.seed_nodes.tolist(), batch.labels.tolist()) for batch in source] for _epoch in range(2)]
    expected = [[([3, 0], [2, 0]), ([], [])]] * 2
    assert got == expected
    got, expected = next(iter(source)).seed_nodes.dtype, items[:][0].dtype  # that of the graph
    assert got == expected


def pipeline_of(dataset, seeds, fanouts, stage=None):
    source = gb.ItemSampler(gb.ItemSet(torch.tensor(seeds).int(), names="seed_nodes"), batch_size=2)
    return graphbolt_loader.rank_pipeline(source, dataset, fanouts, "cpu", stage)


@pytest.mark.parametrize(("fanouts", "expected"), [([1, -1], [3, 2]), ([-1, -1], [5, 2]), ([-1], [2])])
def test_pipeline_samples_neighbors(dataset, fanouts, expected):
    """Pass the fan-outs to sample_neighbor. The last one belongs to the seed nodes."""
    (batch,) = pipeline_of(dataset, [3], fanouts)
    got = [block.num_edges() for block in batch.blocks]
    assert got == expected


def test_pipeline_fetches_features_and_calls_the_stage(dataset):
    """Fetch "feat" of the input nodes. The stage follows and can change the features."""

    def stage(batch):
        batch.node_features["feat"] = batch.node_features["feat"] + 1
        return batch

    (plain,), (changed,) = (pipeline_of(dataset, [3, 0], [-1], used) for used in (None, stage))
    rows = torch.eye(6)[:, :5][plain.input_nodes.long()]
    got, expected = plain.node_features["feat"].tolist(), rows.tolist()
    assert got == expected
    got, expected = changed.node_features["feat"].sum().item(), rows.sum().item() + rows.numel()
    assert got == expected


def test_pipeline_moves_the_seed_nodes(dataset):
    """copy_to moves the labels. Name seed_nodes in extra_attrs, because sampling runs on their device."""
    asked = []

    class Source(SimpleNamespace):
        def copy_to(self, device, extra_attrs=None):
            asked.append((str(device), list(extra_attrs or [])))
            return gb.ItemSampler(gb.ItemSet(torch.tensor([3]).int(), names="seed_nodes"), batch_size=1)

    list(graphbolt_loader.rank_pipeline(Source(), dataset, [-1], "cuda:1"))
    got, expected = asked, [("cuda:1", ["seed_nodes"])]
    assert got == expected


class Batch(SimpleNamespace):
    """A mini-batch that counts the accesses to its blocks."""

    accesses = 0

    @property
    def blocks(self):
        Batch.accesses += 1
        return [SimpleNamespace(num_dst_nodes=lambda: len(self.labels))]


@pytest.mark.parametrize("count", [1, 3])
def test_steps_are_those_of_one_process(count):
    """The gradient of a step is that of the mean loss over the nodes of all ranks, also if a rank has no node."""

    def train(rank, size):
        parts = [batch[rank::size] for batch in (torch.tensor([0, 2, 3, 1]), torch.tensor([5]))]
        batches = [Batch(node_features={"feat": torch.eye(6)[p]}, labels=LABELS[p], seed_nodes=p) for p in parts]
        model = DistributedDataParallel(Scores())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        total, nodes = graphbolt_loader.train_epoch(model.eval(), optimizer, batches, [4, 1])
        return [round(float(total), 4), nodes, model.module.weight.flatten().tolist(), Batch.accesses]

    found = fork(train, count, backend="gloo", threads=1, timeout=60)
    totals, nodes, weights, accesses = zip(*found)
    got = round(sum(totals), 3), sum(nodes), set(accesses)
    expected = round(5 * math.log(3), 3), 5, {2}
    assert got == expected
    one_hot = F.one_hot(LABELS, 3)
    change = (one_hot - 1 / 3) / torch.tensor([4.0, 4, 4, 4, float("inf"), 1]).unsqueeze(1)
    got, expected = torch.tensor(weights), torch.stack([change.flatten()] * count)
    assert torch.allclose(got, expected, atol=1e-4)
