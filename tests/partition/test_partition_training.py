"""Real servers and trainers on parts that were cut and written in bounded memory."""

import shlex
from pathlib import Path

import pytest
from commands import launch

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.partition import Partition, partition_dataset


@pytest.fixture(scope="module")
def bounded(small_dataset, tmp_path_factory) -> Partition:
    """The small data set in two parts, by our own way."""
    return partition_dataset(small_dataset, 2, tmp_path_factory.mktemp("ours") / "p", method="random")


@pytest.mark.cluster
@pytest.mark.parametrize("graphbolt", [False, True])
def test_dgl_s_servers_serve_every_edge(graphbolt, emulation, nothing_left, bounded, small_dataset, tmp_path):
    if graphbolt and graphbolt_problem():
        pytest.skip(graphbolt_problem())
    words = ["python3", str(Path(__file__).parents[1] / "programs" / "every_edge_script.py"), "--ip_config", "ip.txt"]
    words += ["--part_config", str(bounded.config), "--graph_name", bounded.graph_name]
    words += ["--node_map", str(bounded.folder / "node_map.npy"), *["--use_graphbolt"] * graphbolt]
    options = ["--emulate", "2", "--part_config", str(bounded.config), "--ip_config", "ip.txt", "--out", "logs"]
    done = launch(*options, shlex.join(words), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    src, dst = (ends.numpy() for ends in small_dataset.graph.edges(order="eid"))
    first = bounded.report.nodes[0]
    part_of = (bounded.node_map_inverse >= first).astype(int)
    label = small_dataset.graph.ndata["label"].numpy()
    for rank in range(2):
        mine = part_of[dst] == rank
        away = int((part_of[src[mine]] != rank).sum())
        mixed = int(((src[mine] * 7919 + dst[mine] * 104729) % 1000003).sum())
        expected = f"edges {mine.sum()} away {away} labels {label[src[mine]].sum()} mixed {mixed}"
        assert expected in (tmp_path / "logs" / f"machine-{rank}" / "trainer-0.log").read_text()


@pytest.mark.cluster
def test_two_machines_learn_the_same(nothing_left, learned_run, bounded, tmp_path):
    """Two machines on KaMinPar's parts, two on random parts: accuracies within 0.02."""
    (config, usual), layout = learned_run, Layout(emulate=2)
    ours = run_distributed(bounded, layout, config, tmp_path / "run")
    for key in ("val_accuracy", "test_accuracy"):
        assert usual[key] > 0.5
        assert abs(usual[key] - ours[key]) <= 0.02, key
