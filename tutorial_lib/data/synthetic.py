"""synthetic-products: an imitation of ogbn-products in any size, for a machine without a network.

data/README.md has its figures beside those of ogbn-products, and says what is not imitated. How it is drawn: who is in
which split and class, what is bought together, what the features say.

    draw_nodes     popularity rank -> split -> label -> memberships -> home community
    draw_edges     baskets (near-cliques) inside communities + noise -> sorted unique pairs
    draw_features  class centre + community centre + noise

All of it is numpy on one thread. Random numbers come from the one generator that is handed in, in a fixed order, so the
same seed gives the same bytes whatever else the machine does. Where a sort decides an order it is a stable one: numpy
picks its other sorts by processor.

``MISPLACED`` makes the long tail hard. A misplaced node lives among the products of another class; it is more often a
node with few baskets, so it is more often in the test set, which is the unpopular end of the sales ranking.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tutorial_lib.data.base import Dataset, node_data
from tutorial_lib.data.cache import Arrays, Generated
from tutorial_lib.data.pairs import Pairs

VERSION = 1  # part of the cache's name: raise it with every change of what is generated
NUM_CLASSES, FEATURES = 47, 100
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

# These were turned until the measurements in data/README.md came out. None of them is a fact about Amazon.
SPREAD = 1.25  # standard deviation of the logarithm of a node's appetite for baskets
RANK_SHARE = 0.5  # correlation of that logarithm with the sales rank; the rest is luck
MEMBERSHIPS = 4.9  # mean number of baskets per node, before rounding up to 1
MOST_MEMBERSHIPS = 1300  # and at most n / 100: nobody is bought with everybody
MISPLACED = 0.27  # probability that a node of one basket lives in another class; falls with memberships ** -0.75
COMMUNITY_SIZE, COMMUNITY_SPREAD = 250, 0.8  # mean number of nodes; standard deviation of the logarithm
STAY, TRAVEL, ABROAD = 3, 0.5, 0.04  # from the 4th basket on, half are in another community, 4 % of these in any class
BASKET_MIN, BASKET_MEAN, BASKET_MAX = 3, 12, 40
BASKET_FILL = 0.75  # share of the pairs of a basket that become edges
NOISE = 0.055  # edges from a random node to a node drawn by appetite, as a share of all
CLASS_SIGNAL, COMMUNITY_SIGNAL = 0.238, 0.2  # standard deviation of the centres, per feature; that of the noise is 1
CHUNK = 1 << 22


@dataclass
class Nodes:
    """Attributes of N nodes in C classes, in the order of their ids.

    Attributes:
        split: int64 (N,), 0 train, 1 valid, 2 test.
        label: int64 (N,), the class.
        memberships: int64 (N,), number of baskets, at least 1.
        community: int32 (N,), the home community.
        first_community: int64 (C + 1,); class c has communities ``first_community[c]`` up to the next one's first.
    """

    split: np.ndarray
    label: np.ndarray
    memberships: np.ndarray
    community: np.ndarray
    first_community: np.ndarray


def scaled_counts(counts: np.ndarray, total: int) -> np.ndarray:
    """Scale a list of counts to another sum by largest remainders; int64 (K,); of equal remainders the first wins."""
    whole, remainder = np.divmod(counts * total, int(counts.sum()))
    whole[np.argsort(-remainder, kind="stable")[: total - int(whole.sum())]] += 1
    return whole


def draw_nodes(rng: np.random.Generator, counts: np.ndarray) -> Nodes:
    """Draw nodes with exactly ``counts[s, c]`` nodes of class c in split s; int64 (3, C).

    Nodes are drawn from the best seller down, so the training set comes first, as in the sales-rank split of
    ogbn-products; one permutation then hides rank, class and community from the ids.
    """
    classes = np.arange(counts.shape[1])
    split = np.repeat(np.arange(3), counts.sum(axis=1))
    label = np.concatenate([rng.permutation(np.repeat(classes, row)) for row in counts])
    memberships = _draw_memberships(rng, len(label))
    home = _draw_home_class(rng, label, memberships)
    first, community = _draw_communities(rng, home, counts.shape[1])
    order = rng.permutation(len(label))
    return Nodes(split[order], label[order], memberships[order], community[order], first)


def _draw_memberships(rng: np.random.Generator, n: int) -> np.ndarray:
    """Baskets per node from the best seller down: log-normal, correlated with the rank; int64 (n,)."""
    rank = -np.sort(-rng.standard_normal(n))
    luck = rng.standard_normal(n)
    appetite = np.exp(SPREAD * (RANK_SHARE * rank + (1 - RANK_SHARE**2) ** 0.5 * luck))
    rounded = np.floor(appetite * (MEMBERSHIPS / appetite.mean()) - 0.5 + rng.random(n))
    return np.clip(rounded, 1, max(1, min(MOST_MEMBERSHIPS, n // 100))).astype(np.int64)


def _draw_home_class(rng: np.random.Generator, label: np.ndarray, memberships: np.ndarray) -> np.ndarray:
    """The class a node lives in: its label, or for the misplaced the label of a random node; int64 (n,)."""
    misplaced = np.flatnonzero(rng.random(len(label)) < MISPLACED * memberships**-0.75)
    home = label.copy()
    home[misplaced] = label[rng.integers(0, len(label), len(misplaced))]
    return home


def _draw_communities(rng: np.random.Generator, home: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut each class into communities of very different sizes: (first of each class, community of each node)."""
    number = np.rint(np.bincount(home, minlength=num_classes) / COMMUNITY_SIZE).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(np.maximum(1, number))])
    ends = np.cumsum(rng.lognormal(0.0, COMMUNITY_SPREAD, int(first[-1])))
    class_ends = np.concatenate([[0.0], ends])[first]  # all communities lie on one line; a class is a stretch of it
    point = class_ends[home] + rng.random(len(home)) * (class_ends[home + 1] - class_ends[home])
    community = np.searchsorted(ends, point, side="right")
    return first, np.clip(community, first[home], first[home + 1] - 1).astype(np.int32)


def draw_edges(rng: np.random.Generator, nodes: Nodes, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """About ``wanted`` undirected edges, no self loop, none twice: int32 (E,) ``low`` < ``high``, sorted."""
    n = len(nodes.label)
    keys = _unique(_draw_pairs(rng, nodes, 1.0, int(wanted * NOISE)))
    while len(keys) < wanted:  # in a small graph the same nodes meet again and again: fill some more baskets
        share = min(1.0, 1.5 * (wanted / len(keys) - 1) + 0.01)
        keys = _unique(np.concatenate([keys, _draw_pairs(rng, nodes, share, 0)]))
    keep = np.empty(len(keys), dtype=bool)
    for at in range(0, len(keys), CHUNK):
        keep[at : at + CHUNK] = rng.random(len(keep[at : at + CHUNK])) < wanted / len(keys)
    keys = _kept(keys, keep)
    low, high = np.empty(len(keys), dtype=np.int32), np.empty(len(keys), dtype=np.int32)
    for at in range(0, len(keys), CHUNK):
        low[at : at + CHUNK], high[at : at + CHUNK] = np.divmod(keys[at : at + CHUNK], n)
    return low, high


def _unique(keys: np.ndarray) -> np.ndarray:
    """The different keys, sorted; in place: np.unique would hold several copies, each 0.5 GB at full size."""
    keys.sort()
    keep = np.empty(len(keys), dtype=bool)
    keep[0] = True
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    return _kept(keys, keep)


def _kept(keys: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Those to keep, moved to the front of the same array."""
    used = 0
    for at in range(0, len(keys), CHUNK):
        piece = keys[at : at + CHUNK][keep[at : at + CHUNK]]
        keys[used : used + len(piece)] = piece
        used += len(piece)
    return keys[:used]


def _basket_slots(rng: np.random.Generator, nodes: Nodes) -> np.ndarray:
    """One entry per membership, int32: ordered by community, shuffled inside it. Any run of entries is a basket."""
    counts = nodes.memberships
    node = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    number = np.arange(len(node)) - np.repeat(np.cumsum(counts) - counts, counts)  # 0, 1, ... within each node
    community = nodes.community[node]
    travelling = np.flatnonzero((number >= STAY) & (rng.random(len(node)) < TRAVEL))
    home = np.searchsorted(nodes.first_community, community[travelling], side="right") - 1
    low, high = nodes.first_community[home], nodes.first_community[home + 1]
    abroad = rng.random(len(travelling)) < ABROAD
    low[abroad], high[abroad] = 0, nodes.first_community[-1]
    community[travelling] = rng.integers(low, high)
    shuffle = rng.permutation(len(node))
    return node[shuffle[np.argsort(community[shuffle], kind="stable")]]


def _draw_pairs(rng: np.random.Generator, nodes: Nodes, share: float, noise: int) -> np.ndarray:
    """Pairs of a ``share`` of all baskets and ``noise`` more: int64 keys ``low * n + high``, unsorted, some twice."""
    n, slots = len(nodes.label), _basket_slots(rng, nodes)
    count = int(1.2 * len(slots) / BASKET_MEAN) + 100
    size = np.minimum(BASKET_MAX, BASKET_MIN - 1 + rng.geometric(1 / (BASKET_MEAN - BASKET_MIN + 1), count))
    size = size[np.cumsum(size) <= len(slots)]  # baskets that together use all slots but a last few
    begin = np.cumsum(size) - size
    if share < 1:
        chosen = rng.random(len(size)) < share
        size, begin = size[chosen], begin[chosen]
    keys = np.empty(int((size * (size - 1) // 2).sum()) + noise, dtype=np.int64)
    used = 0
    for members in range(BASKET_MIN, BASKET_MAX + 1):
        left, right = np.triu_indices(members, 1)
        same_size = begin[size == members]
        for at in range(0, len(same_size), step := CHUNK // len(left)):
            basket = slots[same_size[at : at + step, None] + np.arange(members)]
            bought = rng.random((len(basket), len(left)), dtype=np.float32) < BASKET_FILL
            used = _append(keys, used, basket[:, left][bought], basket[:, right][bought], n)
    for at in range(0, noise, CHUNK):
        count = min(CHUNK, noise - at)
        used = _append(keys, used, rng.integers(0, n, count), slots[rng.integers(0, len(slots), count)], n)
    return keys[:used]


def _append(keys: np.ndarray, used: int, one: np.ndarray, other: np.ndarray, n: int) -> int:
    """Write the keys of all pairs of different nodes behind the first ``used`` keys; the new number in use."""
    different = one != other
    one, other = one[different].astype(np.int64), other[different].astype(np.int64)
    keys[used : used + len(one)] = np.minimum(one, other) * n + np.maximum(one, other)
    return used + len(one)


def draw_features(rng: np.random.Generator, nodes: Nodes) -> np.ndarray:
    """Centre of the label + centre of the home community + noise: float32 (N, 100).

    The centres are weak against the noise, so a node alone says little and the mean over its neighbours much.
    """
    num_classes, communities = len(nodes.first_community) - 1, int(nodes.first_community[-1])
    by_class = rng.standard_normal((num_classes, FEATURES), dtype=np.float32) * np.float32(CLASS_SIGNAL)
    by_community = rng.standard_normal((communities, FEATURES), dtype=np.float32) * np.float32(COMMUNITY_SIGNAL)
    feat = np.empty((len(nodes.label), FEATURES), dtype=np.float32)
    for at in range(0, len(feat), step := CHUNK // FEATURES):
        rows = feat[at : at + step]
        rng.standard_normal(out=rows, dtype=np.float32)
        rows += by_class[nodes.label[at : at + step]]
        rows += by_community[nodes.community[at : at + step]]
    return feat


def split_class_counts(scale: float) -> np.ndarray:
    """Nodes per split and class at a scale: int64 (3, 47), sums to round(2,449,029 * scale)."""
    per_split = scaled_counts(SPLIT_CLASS_COUNTS.sum(axis=1), round(NODES * scale))
    rows = zip(SPLIT_CLASS_COUNTS, per_split, strict=True)
    return np.stack([scaled_counts(row, int(total)) for row, total in rows])


def _draw(scale: float, seed: int) -> Iterator[Arrays]:
    """low, high: int32 (E,); feat: float32 (N, 100); label, split: uint8 (N,)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    nodes = draw_nodes(rng, split_class_counts(scale))
    yield dict(zip(("low", "high"), draw_edges(rng, nodes, round(EDGES * scale)), strict=True))
    yield {"feat": draw_features(rng, nodes)}
    yield {"label": nodes.label.astype(np.uint8), "split": nodes.split.astype(np.uint8)}


def _to_dataset(arrays: Arrays, scale: float, seed: int) -> Dataset:
    """Edge e and edge E + e of the graph are the two directions of undirected edge e."""
    feat = arrays["feat"]
    graph = Pairs(arrays["low"], arrays["high"], node_data(feat, arrays["label"], arrays["split"]), feat)
    info = {"scale": scale, "seed": seed, "version": VERSION, "imitation_of": "ogbn-products", "real_data": False}
    return Dataset("synthetic-products", graph, NUM_CLASSES, info)


PRODUCTS = Generated("synthetic-products", VERSION, f"ogbn-products ({NODES:,} nodes)", _draw, _to_dataset, 8.0)
