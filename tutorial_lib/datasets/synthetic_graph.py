"""How synthetic-products is drawn: who is in which split and class, who is bought with whom, what the features say.

    draw_nodes   popularity rank -> split -> class -> home class -> community -> appetite for baskets
    draw_edges   baskets (near-cliques inside a community) + noise -> sorted, unique undirected pairs
    draw_features  class centre + community centre + noise

Everything is numpy on one thread and reads random numbers from the one generator that it is given, in a fixed order, so
the same seed gives the same bytes. Sorts that decide an order are stable ones, since numpy picks other unstable sorts
on other processors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Progress = Callable[[str], None]

TRAIN, VALID, TEST = 0, 1, 2
FEATURES = 100

# The knobs below were turned until the measurements in data/README.md came out; none of them is a property of Amazon.
MISPLACED = 0.26  # share of the nodes in one basket that live in a community of another class than their label
EXPO = 0.75
POPULARITY_SPREAD = 1.25  # standard deviation of the logarithm of a node's appetite
POPULARITY_WEIGHT = 0.5  # how much of that is its sales rank (the rest is luck)
MEMBERSHIPS = 4.2  # mean number of baskets per node
STAY = 3  # so many memberships are in the home community for sure ...
TRAVEL = 0.5  # ... of the others, this share goes to another community,
ABROAD = 0.08  # of which this share to any class
COMMUNITY_SIZE = 250  # mean number of nodes in a community
BASKET_MIN, BASKET_MAX, BASKET_MEAN = 3, 40, 12
BASKET_FILL = 0.85  # share of the pairs in a basket that become edges
NOISE_SHARE = 0.06  # share of edges that join a random node to a node drawn by appetite
CLASS_SIGNAL, COMMUNITY_SIGNAL = 0.25, 0.2  # standard deviation per feature of the centres; the noise has 1.0
CHUNK = 1 << 22


@dataclass
class Nodes:
    """Attributes of N nodes, in the order of their final ids.

    Attributes:
        split: uint8 (N,), TRAIN, VALID or TEST.
        label: uint8 (N,), the class.
        community: int32 (N,), the home community.
        first: int64 (C + 1,), communities ``first[c]`` to ``first[c + 1] - 1`` belong to class c.
        memberships: int32 (N,), number of baskets of the node, at least 1.
    """

    split: np.ndarray
    label: np.ndarray
    community: np.ndarray
    first: np.ndarray
    memberships: np.ndarray


def scaled_counts(counts: np.ndarray, total: int) -> np.ndarray:
    """Scale whole numbers to another sum by largest remainders; int64, same shape, ties to the lower index."""
    flat = np.asarray(counts, dtype=np.int64).ravel()
    whole, rest = np.divmod(flat * total, int(flat.sum()))
    whole[np.argsort(-rest, kind="stable")[: total - int(whole.sum())]] += 1
    return whole.reshape(np.shape(counts))


def draw_nodes(rng: np.random.Generator, split_class_counts: np.ndarray) -> Nodes:
    """Draw the nodes for exact counts per split and class, int64 of shape (3, C).

    Nodes are drawn from the best seller down, so the first rows are the training set, as in the sales-rank split of
    ogbn-products; one permutation then hides rank, class and community from the ids.
    """
    n, num_classes = int(split_class_counts.sum()), split_class_counts.shape[1]
    per_split = split_class_counts.sum(axis=1)
    split = np.repeat(np.arange(3, dtype=np.uint8), per_split)
    classes = np.arange(num_classes, dtype=np.uint8)
    label = np.concatenate([rng.permutation(np.repeat(classes, counts)) for counts in split_class_counts])
    memberships = _draw_memberships(rng, n)
    home = _draw_home_class(rng, label, memberships)
    first, community = _draw_communities(rng, home, num_classes)
    order = rng.permutation(n)
    return Nodes(split[order], label[order], community[order], first, memberships[order])


def _draw_home_class(rng: np.random.Generator, label: np.ndarray, memberships: np.ndarray) -> np.ndarray:
    """The class of the community a node lives in: its label, or for the misplaced the label of a random node.

    The fewer baskets a node is in, the more often it is misplaced: this makes the long tail harder than the best sellers.
    """
    misplaced = rng.random(len(label)) < MISPLACED * memberships.astype(float)**-EXPO
    home = label.copy()
    home[misplaced] = label[rng.integers(0, len(label), int(misplaced.sum()))]
    return home


def _draw_communities(rng: np.random.Generator, home: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut each class into communities of very different sizes; (first, community of each node)."""
    per_class = np.bincount(home, minlength=num_classes)
    number = np.maximum(1, np.rint(per_class / COMMUNITY_SIZE).astype(np.int64))
    first = np.concatenate([[0], np.cumsum(number)])
    size = rng.lognormal(0.0, 0.8, int(first[-1]))
    upper = np.cumsum(size)
    lower = np.concatenate([[0.0], upper])[first]  # where each class begins on the line of cumulated sizes
    point = lower[home] + rng.random(len(home)) * (lower[home.astype(np.int64) + 1] - lower[home])
    community = np.searchsorted(upper, point, side="right")
    return first, np.clip(community, first[home], first[home.astype(np.int64) + 1] - 1).astype(np.int32)


def _draw_memberships(rng: np.random.Generator, n: int) -> np.ndarray:
    """Baskets per node in the order of popularity: log-normal, partly given by the rank; int32 (n,)."""
    rank_part = -np.sort(-rng.standard_normal(n))
    luck = rng.standard_normal(n)
    appetite = np.exp(POPULARITY_SPREAD * (POPULARITY_WEIGHT * rank_part + (1 - POPULARITY_WEIGHT**2) ** 0.5 * luck))
    wanted = appetite * ((MEMBERSHIPS - 0.5) / appetite.mean())
    return np.maximum(1, np.floor(wanted + rng.random(n))).astype(np.int32)


def draw_edges(rng: np.random.Generator, nodes: Nodes, wanted: int, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """About ``wanted`` undirected edges without self loops or duplicates: (u, v), both int32 (E,), u < v, sorted."""
    n = len(nodes.label)
    progress("drawing baskets")
    slots = _basket_slots(rng, nodes)
    keys = np.empty(int(wanted * 1.6), dtype=np.int64)
    used = _basket_pairs(rng, slots, n, keys)
    progress("drawing noise edges")
    noise = int(wanted * 1.12 * NOISE_SHARE)
    one, other = rng.integers(0, n, noise), slots[rng.integers(0, len(slots), noise)]
    used = _append_pairs(keys, used, one, other, n)
    del slots
    progress("removing duplicates")
    keys[:used].sort()
    keep = np.empty(used, dtype=bool)
    keep[0] = True
    np.not_equal(keys[1:used], keys[: used - 1], out=keep[1:])
    unique = int(keep.sum())
    keep &= rng.random(used, dtype=np.float32) < np.float32(wanted / unique)
    keys = keys[:used][keep]
    if __debug__:
        progress(f"wanted {wanted} unique {unique} ratio {unique/wanted:.3f} raw {used/wanted:.3f}")
    return (keys // n).astype(np.int32), (keys % n).astype(np.int32)


def _basket_slots(rng: np.random.Generator, nodes: Nodes) -> np.ndarray:
    """One entry per membership, int32, ordered by community and shuffled inside it: cut anywhere, a run is a basket."""
    counts = nodes.memberships
    slot_node = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    begin = np.cumsum(counts, dtype=np.int64) - counts
    number = np.arange(len(slot_node), dtype=np.int64) - np.repeat(begin, counts)  # 0, 1, ... within each node
    travelling = np.flatnonzero((number >= STAY) & (rng.random(len(slot_node)) < TRAVEL))
    del number
    slot_community = nodes.community[slot_node]
    home = np.searchsorted(nodes.first, slot_community[travelling], side="right") - 1
    low, high = nodes.first[home], nodes.first[home + 1]
    abroad = rng.random(len(travelling)) < ABROAD
    low[abroad], high[abroad] = 0, nodes.first[-1]
    slot_community[travelling] = rng.integers(low, high)
    shuffle = rng.permutation(len(slot_node))
    order = shuffle[np.argsort(slot_community[shuffle], kind="stable")]
    return slot_node[order]


def _basket_pairs(rng: np.random.Generator, slots: np.ndarray, n: int, keys: np.ndarray) -> int:
    """Cut the slots into baskets and write most pairs of each basket into ``keys``; returns how many were written."""
    mean_extra = BASKET_MEAN - BASKET_MIN
    size = BASKET_MIN + rng.geometric(1.0 / (mean_extra + 1), int(len(slots) / BASKET_MEAN * 1.2) + 50) - 1
    size = np.minimum(size, BASKET_MAX)
    end = np.cumsum(size)
    size, end = size[end <= len(slots)], end[end <= len(slots)]
    used = 0
    for members in range(BASKET_MIN, BASKET_MAX + 1):
        start = (end - size)[size == members]
        left, right = np.triu_indices(members, 1)
        step = max(1, CHUNK // len(left))
        for at in range(0, len(start), step):
            baskets = slots[start[at : at + step, None] + np.arange(members)]
            taken = rng.random((len(baskets), len(left)), dtype=np.float32) < BASKET_FILL
            used = _append_pairs(keys, used, baskets[:, left][taken], baskets[:, right][taken], n)
    return used


def _append_pairs(keys: np.ndarray, used: int, one: np.ndarray, other: np.ndarray, n: int) -> int:
    """Write ``smaller * n + larger`` for every pair of different nodes behind the first ``used`` keys."""
    different = one != other
    one, other = one[different].astype(np.int64), other[different].astype(np.int64)
    pairs = np.minimum(one, other) * n + np.maximum(one, other)
    room = keys[used : used + len(pairs)]
    room[:] = pairs[: len(room)]
    return used + len(room)


def draw_features(rng: np.random.Generator, nodes: Nodes, num_classes: int) -> np.ndarray:
    """Class centre + community centre + noise, float32 (N, 100)."""
    n = len(nodes.label)
    class_centre = rng.standard_normal((num_classes, FEATURES), dtype=np.float32) * np.float32(CLASS_SIGNAL)
    shape = (int(nodes.first[-1]), FEATURES)
    community_centre = rng.standard_normal(shape, dtype=np.float32) * np.float32(COMMUNITY_SIGNAL)
    feat = np.empty((n, FEATURES), dtype=np.float32)
    step = CHUNK // FEATURES
    for at in range(0, n, step):
        rows = feat[at : at + step]
        rng.standard_normal(out=rows, dtype=np.float32)
        rows += class_centre[nodes.label[at : at + step]]
        rows += community_centre[nodes.community[at : at + step]]
    return feat
