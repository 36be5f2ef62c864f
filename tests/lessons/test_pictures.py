"""Numbers in the pictures of the lessons. nbval tests that each picture can be drawn."""

from typing import Any

import dgl
import numpy as np
import pytest
import torch

from support.plots import graphbolt, heterographs, link_prediction, multi_gpu, partitioning, real_clusters


def texts(figure: Any) -> set[str]:
    return {text.get_text().strip() for text in figure.axes[0].texts}


def test_counts_and_shares():
    graph = dgl.to_bidirected(dgl.graph((range(11), range(1, 12))))
    groups = [0, 1, 2] * 4
    figure = partitioning.colored_parts(graph, groups, {"a": torch.tensor(groups), "b": torch.arange(12) // 4})
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["a: 11 of 11 pairs of neighbors cut", "b: 2 of 11 pairs of neighbors cut"]
    shares = multi_gpu.shares({"floor": [[0, 1], [2, 3]], "padded": [[0, 1, 2], [3, 4, 3]]}, range(5))
    assert {"floor: 1 left out, 0 visited twice", "padded: 0 left out, 1 visited twice"} <= texts(shares)
    seen = graphbolt.classes_seen({"a": np.ones((2, 3)), "b": np.eye(2, 3)})
    arrays = [ax.images[0].get_array().tolist() for ax in seen.axes[:2]]
    assert arrays == [[[0.5] * 3] * 2, [[1, 0, 0], [0, 1, 0]]]
    assert texts(heterographs.remote_rows({"author": [200, 90], "paper": [100, 25]})) == {"45% remote", "25% remote"}
    curve = link_prediction.rank_curves({"one": np.array([1.0, 3.0, 11.0])}, 101).axes[0].lines[0]
    assert list(curve.get_ydata()[:3]) == pytest.approx([1 / 3, 1 / 3, 2 / 3])


def test_medians():
    epochs = [{"seconds": 2.0, "accuracy": 0.5}, {"seconds": 3.0, "accuracy": 0.75}]
    (ax,) = multi_gpu.accuracy_over_time({1: [epochs], 2: [epochs, epochs]}, 0.7).axes
    assert [list(line.get_xdata()) for line in ax.lines[:3]] == [[2.0, 5.0]] * 3
    times = graphbolt.repeats({"epoch": {"x": [1.0, 2.0, 4.0], "y": [3.0, 3.0]}}).axes[0]
    assert [line.get_xdata().tolist() for line in times.lines] == [[1, 2, 4], [2, 2], [3, 3], [3, 3]]


def test_spans_of_job_states():
    seen = [(10.0, {"3": "RUNNING"}), (15.0, {"3": "PENDING"}), (16.0, {"3": "PENDING"}), (18.0, {"3": "RUNNING"})]
    assert real_clusters.spans(seen, "3") == [("RUNNING", 0, 5), ("PENDING", 5, 8), ("RUNNING", 8, 8)]
