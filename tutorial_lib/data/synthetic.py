"""synthetic-products: an imitation of ogbn-products in any size, for a machine without a network.

                                ogbn-products           scale 0.04           scale 1.0
    nodes                       2,449,029               97,961               2,449,029
    directed edges              123,718,280             4,949,586            123,716,734
    degree: mean, median, max   50.5, 26, 17,481        50.5, 25, 3,760      50.5, 24, 8,484
    average local clustering    0.41                    0.41                 0.37
    edge homophily              about 0.8               0.80                 0.81
    MLP, test                   0.6106                  0.57 to 0.62         -
    GraphSAGE, valid and test   0.9170, 0.7870          0.91, 0.78 to 0.81   -

Measured with ``support.statistics``; the real figures are those of the Open Graph Benchmark (Hu et al.
2020, and its leaderboard). data/README.md has the longer table and says what is not imitated.
"""

from __future__ import annotations

import numpy as np
import torch

from tutorial_lib.data.base import Dataset, masks_of
from tutorial_lib.data.cache import Arrays, Generated, Progress
from tutorial_lib.data.synthetic_graph import draw_edges, draw_features, draw_nodes, scaled_counts

VERSION = 1  # part of the cache's name: raise it with every change of what is generated
NUM_CLASSES = 47
NODES, EDGES = 2_449_029, 61_859_140  # of ogbn-products; each edge counted once

# Nodes per class in the train, valid and test split of ogbn-products, counted in its label and split files
# (Open Graph Benchmark: Datasets for Machine Learning on Graphs, Hu et al., NeurIPS 2020). Popular products are of
# other classes than unpopular ones: class 12 is 1.4 % of train and 5.8 % of test, class 42 is in test alone.
# fmt: off
SPLIT_CLASS_COUNTS = np.array([
    [11332, 12290, 10941, 13153, 60630, 3932, 15305, 16615, 10926, 6266, 4311, 3348, 2755, 10757, 287, 2515, 461, 4245,
     662, 1237, 2047, 1313, 64, 526, 200, 93, 75, 4, 84, 152, 9, 25, 33, 3, 2, 8, 2, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0],
    [2292, 2306, 2232, 2653, 12125, 798, 3110, 3382, 2191, 1240, 869, 656, 499, 2090, 58, 525, 114, 865,
     129, 244, 438, 246, 13, 80, 59, 19, 6, 1, 20, 36, 11, 5, 10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [100670, 95236, 102870, 135255, 596195, 35985, 140356, 152202, 97679, 59852, 47165, 28933, 128632, 88694, 2734,
     23871, 83019, 37227, 48228, 15957, 20090, 79236, 802, 3047, 45147, 2912, 472, 254, 1865, 1373, 257, 388, 470, 25,
     152, 36, 628, 511, 90, 36, 5, 60, 32500, 1399, 566, 9, 1],
], dtype=np.int64)
# fmt: on

# low, high: int32 (E,); feat: float32 (N, 100); label, split: uint8 (N,)
ARRAYS = ("low", "high", "feat", "label", "split")


def split_class_counts(scale: float) -> np.ndarray:
    """Nodes per split and class at a scale: int64 (3, 47), sums to round(2,449,029 * scale)."""
    per_split = scaled_counts(SPLIT_CLASS_COUNTS.sum(axis=1), round(NODES * scale))
    rows = zip(SPLIT_CLASS_COUNTS, per_split, strict=True)
    return np.stack([scaled_counts(row, int(total)) for row, total in rows])


def _draw(scale: float, seed: int, say: Progress) -> Arrays:
    rng = np.random.Generator(np.random.PCG64(seed))
    counts = split_class_counts(scale)
    say(f"drawing {int(counts.sum()):,} nodes")
    nodes = draw_nodes(rng, counts)
    low, high = draw_edges(rng, nodes, round(EDGES * scale), say)
    say("drawing features")
    feat = draw_features(rng, nodes)
    label, split = nodes.label.astype(np.uint8), nodes.split.astype(np.uint8)
    return {"low": low, "high": high, "feat": feat, "label": label, "split": split}


def _to_dataset(arrays: Arrays, scale: float, seed: int) -> Dataset:
    """Edge e and edge E + e of the graph are the two directions of undirected edge e."""
    import dgl

    src, dst = (_both(arrays, *ends) for ends in (("low", "high"), ("high", "low")))
    graph = dgl.graph((src, dst), num_nodes=len(arrays["label"]))
    graph.ndata["feat"] = torch.from_numpy(arrays["feat"])
    graph.ndata["label"] = torch.from_numpy(arrays["label"].astype(np.int64))
    graph.ndata.update(masks_of(arrays["split"]))
    info = {"scale": scale, "seed": seed, "version": VERSION, "imitation_of": "ogbn-products", "real_data": False}
    return Dataset("synthetic-products", graph, NUM_CLASSES, info)


def _both(arrays: Arrays, first: str, second: str) -> torch.Tensor:
    ids = np.empty(2 * len(arrays[first]), dtype=np.int64)
    ids[: len(arrays[first])] = arrays[first]
    ids[len(arrays[first]) :] = arrays[second]
    return torch.from_numpy(ids)


PRODUCTS = Generated(
    "synthetic-products", VERSION, ARRAYS, f"ogbn-products ({NODES:,} nodes)", _draw, _to_dataset, quiet_scale=0.05
)
load_synthetic_products, generate_synthetic_products = PRODUCTS.load, PRODUCTS.generate
