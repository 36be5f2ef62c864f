"""synthetic-academic: papers, their authors and their fields, for heterogeneous graphs, without a download.

Every relation is there with its reverse, and authors have topics too. The sizes are those of ogbn-mag (Hu et al. 2020);
institutions are left out, and the content is drawn here: each paper, author and field has a hidden topic, the label of
a paper is its topic, and most edges join nodes of one topic. Papers have features that say little; authors and fields
have none at all, so a model has to learn a row for each of them. data/README.md has figures.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tutorial_lib.data.base import Dataset, node_data, random_split
from tutorial_lib.data.cache import Arrays, Generated

NAME = "synthetic-academic"
VERSION = 1  # part of the cache's name: raise it with every change of what is generated
PAPERS, AUTHORS, FIELDS = 736_389, 1_134_649, 59_965
WRITES, CITES, HAS_TOPIC, AUTHOR_TOPICS = 7_145_660, 5_416_271, 7_505_078, 1_700_000
NUM_CLASSES, FEATURES = 16, 64

# What is drawn, as (source type, relation, destination type): name of the reverse. Two relations are called has-topic.
RELATIONS = {
    ("author", "writes", "paper"): "written-by",
    ("paper", "cites", "paper"): "cited-by",
    ("paper", "has-topic", "field"): "topic-of",
    ("author", "has-topic", "field"): "topic-of",
}

# These were turned until features alone gave about half of the papers their class, and the graph most of them.
TOPIC_SPREAD = 0.5  # standard deviation of the logarithm of a topic's size
ACTIVITY_SPREAD = 1.0  # the same of how much an author writes, of how often a field or a paper is named
SAME_TOPIC = {"writes": 0.45, "cites": 0.4, "has-topic": 0.15}  # other edges go anywhere
STRAY = 0.08  # papers whose authors, fields and citations are those of another topic
FEATURE_SIGNAL = 0.22  # standard deviation of a topic's centre, per feature; that of the noise is 1


def _draw(scale: float, seed: int) -> Iterator[Arrays]:
    rng = np.random.Generator(np.random.PCG64(seed))
    sizes = {"paper": round(PAPERS * scale), "author": round(AUTHORS * scale), "field": round(FIELDS * scale)}
    share = np.exp(TOPIC_SPREAD * rng.standard_normal(NUM_CLASSES))
    share /= share.sum()
    topics = {name: rng.choice(NUM_CLASSES, size, p=share) for name, size in sizes.items()}
    label = topics["paper"].copy()
    stray = np.flatnonzero(rng.random(sizes["paper"]) < STRAY)
    topics["paper"][stray] = rng.integers(0, NUM_CLASSES, len(stray))
    pools = {name: _Pool(rng, topic) for name, topic in topics.items()}
    arrays: Arrays = {"label": label.astype(np.uint8), "split": random_split(rng.permutation(sizes["paper"]))}
    wanted = dict(zip(RELATIONS, (WRITES, CITES, HAS_TOPIC, AUTHOR_TOPICS), strict=True))
    for (start, name, end), full in wanted.items():
        # An edge is drawn from the side that there are many of: a paper picks its authors and fields.
        one, other = (end, start) if name == "writes" else (start, end)
        picked = _pick(rng, topics[one], pools[other], round(full * scale), SAME_TOPIC[name], distinct=one == other)
        pairs = picked[::-1] if name == "writes" else picked
        arrays[f"{start}-{name}-{end}"] = np.stack(pairs).astype(np.int32)
    centres = rng.standard_normal((NUM_CLASSES, FEATURES), dtype=np.float32) * np.float32(FEATURE_SIGNAL)
    arrays["feat"] = rng.standard_normal((sizes["paper"], FEATURES), dtype=np.float32)
    arrays["feat"] += centres[label]
    yield arrays


class _Pool:
    """Nodes of one type that are picked by topic, in proportion to how active each of them is.

    They lie on one line, ordered by topic, each with its activity as length; a point of the line picks a node.
    """

    def __init__(self, rng: np.random.Generator, topic: np.ndarray) -> None:
        self.order = np.argsort(topic, kind="stable")
        self.ends = np.cumsum(rng.lognormal(0.0, ACTIVITY_SPREAD, len(topic)))
        first = np.searchsorted(topic[self.order], np.arange(NUM_CLASSES + 1))
        self.topic_ends = np.concatenate([[0.0], self.ends])[first]

    def pick(self, rng: np.random.Generator, topic: np.ndarray, same: np.ndarray) -> np.ndarray:
        """For each entry, a node of ``topic`` where ``same``, else any: int64 ids."""
        low = np.where(same, self.topic_ends[topic], 0.0)
        high = np.where(same, self.topic_ends[topic + 1], self.ends[-1])
        point = low + rng.random(len(topic)) * (high - low)
        return self.order[np.minimum(np.searchsorted(self.ends, point, side="right"), len(self.order) - 1)]


def _pick(
    rng: np.random.Generator, topic: np.ndarray, pool: _Pool, count: int, same: float, *, distinct: bool
) -> tuple[np.ndarray, np.ndarray]:
    """About ``count`` different pairs (node, picked), sorted; every node is in one at least, if it can be."""
    n = len(topic)
    node = np.concatenate([np.arange(n), rng.integers(0, n, max(0, count - n))])
    other = pool.pick(rng, topic[node], rng.random(len(node)) < same)
    keys = np.unique(node * len(pool.order) + other)
    node, other = np.divmod(keys, len(pool.order))
    keep = node != other if distinct else np.ones(len(node), bool)
    return node[keep], other[keep]


def _to_dataset(arrays: Arrays, scale: float, seed: int) -> Dataset:
    """Edge e of a relation and edge e of its reverse are the two directions of one. Only papers have node data."""
    import dgl

    edges = {}
    for (start, name, end), back in RELATIONS.items():
        first, second = (torch.from_numpy(row.astype(np.int64)) for row in arrays[f"{start}-{name}-{end}"])
        edges[start, name, end] = (first, second)
        edges[end, back, start] = (second, first)
    counts = {"paper": len(arrays["label"]), "author": round(AUTHORS * scale), "field": round(FIELDS * scale)}
    graph = dgl.heterograph(edges, num_nodes_dict=counts)
    graph.nodes["paper"].data.update(node_data(arrays["feat"], arrays["label"], arrays["split"]))
    info = {"scale": scale, "seed": seed, "version": VERSION, "sizes_of": "ogbn-mag", "real_data": False}
    return Dataset(NAME, graph, NUM_CLASSES, info)


ACADEMIC = Generated(NAME, VERSION, f"ogbn-mag ({PAPERS:,} papers)", _draw, _to_dataset)
