"""Generated data sets in the sizes of ogbn-products and ogbn-mag, for a machine without a network.

data/README.md compares synthetic-products with ogbn-products. All random numbers come from one generator in a fixed
order, on one thread, so equal seeds give equal bytes on every machine. Sorts that decide an order are stable, because
numpy selects its other sorts by processor.

synthetic-academic has authors, papers and fields. Each of them has a hidden topic, and the label of a paper is its
topic. Papers have weak features. Authors and fields have none, so a model must learn a row for each of them.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tutorial_lib.data.base import Dataset, Pairs, make_graph, node_data, random_split
from tutorial_lib.data.cache import NamedArrays, load_generated

VERSION = 1  # part of the name of the cache. Increase it with every change of the generated data
NUM_CLASSES, FEATURES = 47, 100
NODES, EDGES = 2_449_029, 61_859_140  # those of ogbn-products, with each edge counted once

# Nodes per class in the train, valid and test split of ogbn-products, counted in its label and split files
# (Open Graph Benchmark: Datasets for Machine Learning on Graphs, Hu et al., NeurIPS 2020). Class 42 is in test alone.
SPLIT_CLASS_COUNTS = np.loadtxt(Path(__file__).with_name("split_class_counts.csv"), np.int64, delimiter=",")

# These values lead to the measurements in data/README.md. They are not facts about Amazon.
MEAN_MEMBERSHIPS, MOST_MEMBERSHIPS = 4.9, 1300  # baskets of a node, which has at most n / 100
MEMBERSHIP_SPREAD = 1.25  # standard deviation of the logarithm of the number of baskets
RANK_CORRELATION = 0.5  # correlation of this logarithm with the sales rank
MISPLACED = 0.27  # probability that a node of one basket is with another class, falls with memberships ** -0.75
COMMUNITY_SIZE, COMMUNITY_SPREAD = 250, 0.8  # mean number of nodes, and standard deviation of its logarithm
HOME_BASKETS = 3  # the first baskets of a node are in its own community
TRAVEL = 0.5  # share of the other baskets that are in another community
ABROAD = 0.04  # share of these that are in any class
BASKET_MIN, BASKET_MEAN, BASKET_MAX = 3, 12, 40  # nodes
BASKET_FILL = 0.75  # share of the pairs of a basket that become edges
NOISE = 0.055  # share of the edges from a random node to a random member of a basket
CLASS_SIGNAL, COMMUNITY_SIGNAL = 0.238, 0.2  # standard deviation of the centers, where the noise has 1
CHUNK = 1 << 22

SIZES = {"paper": 736_389, "author": 1_134_649, "field": 59_965}  # nodes of ogbn-mag (Hu et al. 2020)
TOPICS, PAPER_FEATURES = 16, 64
# (source type, relation, destination type): reverse relation, number of edges, share of the edges inside one topic.
RELATIONS = {
    ("author", "writes", "paper"): ("written-by", 7_145_660, 0.45),
    ("paper", "cites", "paper"): ("cited-by", 5_416_271, 0.4),
    ("paper", "has-topic", "field"): ("topic-of", 7_505_078, 0.15),
    ("author", "has-topic", "field"): ("topic-of", 1_700_000, 0.15),
}
# With these values, a model predicts about half of the papers from the features, and most of them with the graph.
TOPIC_SPREAD = 0.5  # standard deviation of the logarithm of a topic's size
ACTIVITY_SPREAD = 1.0  # standard deviation of the logarithm of a node's number of edges
STRAY = 0.08  # share of the papers with the neighbors of another topic
FEATURE_SIGNAL = 0.22  # standard deviation of a topic's center, where the noise has 1


class NodeAttributes(NamedTuple):
    """Attributes of N nodes in C classes, in the order of their IDs."""

    split: np.ndarray  # int64 (N,): 0 train, 1 valid, 2 test
    label: np.ndarray  # int64 (N,)
    memberships: np.ndarray  # int64 (N,): number of baskets, at least 1
    community: np.ndarray  # int32 (N,): home community
    first_community: np.ndarray  # int64 (C + 1,): first community of each class, and the number of communities


def scaled_counts(counts: np.ndarray, total: int) -> np.ndarray:
    """Return int64 counts (K,) scaled to the sum ``total`` by the largest-remainder method. Ties go to the first."""
    quotient, remainder = np.divmod(counts * total, int(counts.sum()))
    quotient[np.argsort(-remainder, kind="stable")[: total - int(quotient.sum())]] += 1
    return quotient


def split_class_counts(scale: float) -> np.ndarray:
    """Return the number of nodes in each split and class at a scale: int64 (3, 47)."""
    per_split = scaled_counts(SPLIT_CLASS_COUNTS.sum(axis=1), round(NODES * scale))
    return np.stack([scaled_counts(row, int(n)) for row, n in zip(SPLIT_CLASS_COUNTS, per_split, strict=True)])


def sample_nodes(rng: np.random.Generator, counts: np.ndarray) -> NodeAttributes:
    """Sample ``counts[s, c]`` nodes of class c in split s, int64 of shape (3, C), with IDs in random order."""
    n, num_classes = int(counts.sum()), counts.shape[1]
    split = np.repeat(np.arange(3), counts.sum(axis=1))
    label = np.concatenate([rng.permutation(np.repeat(np.arange(num_classes), row)) for row in counts])
    # The best sellers are first so far. The number of baskets is log-normal and correlated with this rank.
    rank, luck = -np.sort(-rng.standard_normal(n)), rng.standard_normal(n)
    appetite = np.exp(MEMBERSHIP_SPREAD * (RANK_CORRELATION * rank + (1 - RANK_CORRELATION**2) ** 0.5 * luck))
    rounded = np.floor(appetite * (MEAN_MEMBERSHIPS / appetite.mean()) - 0.5 + rng.random(n))
    memberships = np.clip(rounded, 1, max(1, min(MOST_MEMBERSHIPS, n // 100))).astype(np.int64)
    # Customers buy a misplaced node with products of another class. Nodes with few baskets are misplaced more often.
    misplaced = np.flatnonzero(rng.random(n) < MISPLACED * memberships**-0.75)
    home = label.copy()
    home[misplaced] = label[rng.integers(0, n, len(misplaced))]
    # Each community is an interval of a line, each class is a larger interval, and each node is a point.
    num_communities = np.rint(np.bincount(home, minlength=num_classes) / COMMUNITY_SIZE).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(np.maximum(1, num_communities))])
    interval_ends = np.cumsum(rng.lognormal(0.0, COMMUNITY_SPREAD, int(first[-1])))
    class_ends = np.concatenate([[0.0], interval_ends])[first]
    point = class_ends[home] + rng.random(n) * (class_ends[home + 1] - class_ends[home])
    community = np.clip(np.searchsorted(interval_ends, point, side="right"), first[home], first[home + 1] - 1)
    order = rng.permutation(n)
    return NodeAttributes(split[order], label[order], memberships[order], community.astype(np.int32)[order], first)


def sample_edges(rng: np.random.Generator, nodes: NodeAttributes, num_edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample about ``num_edges`` distinct edges: int32 arrays (E,), ``low`` < ``high``, sorted."""
    keys = _sample_pairs(rng, nodes, 1.0, int(num_edges * NOISE))
    while True:
        keys.sort()
        is_new = np.append(True, keys[1:] != keys[:-1])
        if (num_keys := int(is_new.sum())) >= num_edges:
            break
        share = min(1.0, 1.5 * (num_edges / num_keys - 1) + 0.01)  # baskets of a small graph have many pairs in common
        keys = np.concatenate([keys, _sample_pairs(rng, nodes, share, 0)])
    low, high, num_sampled = np.empty(num_keys, np.int32), np.empty(num_keys, np.int32), 0
    for start in range(0, len(keys), CHUNK):
        sampled = keys[start : start + CHUNK][is_new[start : start + CHUNK]]
        sampled = sampled[rng.random(len(sampled)) < num_edges / num_keys]
        rows = slice(num_sampled, num_sampled := num_sampled + len(sampled))
        low[rows], high[rows] = np.divmod(sampled, len(nodes.label))
    return low[:num_sampled], high[:num_sampled]


def _basket_slots(rng: np.random.Generator, nodes: NodeAttributes) -> np.ndarray:
    """Return the node of each membership as int32, shuffled within each community. Consecutive slots form a basket."""
    counts = nodes.memberships
    node = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    index = np.arange(len(node)) - np.repeat(np.cumsum(counts) - counts, counts)  # 0, 1, ... within each node
    community = nodes.community[node]
    traveling = np.flatnonzero((index >= HOME_BASKETS) & (rng.random(len(node)) < TRAVEL))
    home = np.searchsorted(nodes.first_community, community[traveling], side="right") - 1
    low, high = nodes.first_community[home], nodes.first_community[home + 1]
    abroad = rng.random(len(traveling)) < ABROAD
    low[abroad], high[abroad] = 0, nodes.first_community[-1]
    community[traveling] = rng.integers(low, high)
    shuffle = rng.permutation(len(node))
    return node[shuffle[np.argsort(community[shuffle], kind="stable")]]


def _sample_pairs(rng: np.random.Generator, nodes: NodeAttributes, share: float, noise: int) -> np.ndarray:
    """Return int64 keys ``low * n + high`` of the pairs in a share of all baskets, and of ``noise`` other pairs."""
    n, slots = len(nodes.label), _basket_slots(rng, nodes)
    count = int(1.2 * len(slots) / BASKET_MEAN) + 100
    size = np.minimum(BASKET_MAX, BASKET_MIN - 1 + rng.geometric(1 / (BASKET_MEAN - BASKET_MIN + 1), count))
    size = size[np.cumsum(size) <= len(slots)]  # together these baskets use all slots except for the last few
    begin = np.cumsum(size) - size
    if share < 1:
        chosen = rng.random(len(size)) < share
        size, begin = size[chosen], begin[chosen]
    keys = np.empty(int((size * (size - 1) // 2).sum()) + noise, dtype=np.int64)
    num_keys = 0

    def add(u: np.ndarray, v: np.ndarray) -> None:
        nonlocal num_keys
        different = u != v
        u, v = u[different].astype(np.int64), v[different].astype(np.int64)
        keys[num_keys : num_keys + len(u)] = np.minimum(u, v) * n + np.maximum(u, v)
        num_keys += len(u)

    for members in range(BASKET_MIN, BASKET_MAX + 1):
        i, j = np.triu_indices(members, 1)
        same_size = begin[size == members]
        for start in range(0, len(same_size), step := CHUNK // len(i)):
            basket = slots[same_size[start : start + step, None] + np.arange(members)]
            bought = rng.random((len(basket), len(i)), dtype=np.float32) < BASKET_FILL
            add(basket[:, i][bought], basket[:, j][bought])
    for start in range(0, noise, CHUNK):
        count = min(CHUNK, noise - start)
        add(rng.integers(0, n, count), slots[rng.integers(0, len(slots), count)])
    return keys[:num_keys]


def sample_features(rng: np.random.Generator, nodes: NodeAttributes) -> np.ndarray:
    """Return label center + community center + noise: float32 (N, 100). The mean over neighbors has less noise."""
    communities = int(nodes.first_community[-1])
    by_class = rng.standard_normal((NUM_CLASSES, FEATURES), dtype=np.float32) * np.float32(CLASS_SIGNAL)
    by_community = rng.standard_normal((communities, FEATURES), dtype=np.float32) * np.float32(COMMUNITY_SIGNAL)
    feat = np.empty((len(nodes.label), FEATURES), dtype=np.float32)
    for start in range(0, len(feat), step := CHUNK // FEATURES):
        rows = feat[start : start + step]
        rng.standard_normal(out=rows, dtype=np.float32)
        rows += by_class[nodes.label[start : start + step]]
        rows += by_community[nodes.community[start : start + step]]
    return feat


def generate_products(scale: float, seed: int) -> NamedArrays:
    rng = np.random.Generator(np.random.PCG64(seed))
    nodes = sample_nodes(rng, split_class_counts(scale))
    yield from zip(("low", "high"), sample_edges(rng, nodes, round(EDGES * scale)), strict=True)
    yield "feat", sample_features(rng, nodes)
    yield "label", nodes.label.astype(np.uint8)
    yield "split", nodes.split.astype(np.uint8)


def load_products(*, scale: float, seed: int = 0, root: Path) -> Dataset:
    name = "synthetic-products"
    arrays = load_generated(root, name, VERSION, scale, seed, generate_products(scale, seed))
    ndata = node_data(arrays["feat"], arrays["label"], arrays["split"])
    info = {"scale": scale, "seed": seed, "version": VERSION, "imitation_of": "ogbn-products", "real_data": False}
    return Dataset(name, Pairs(arrays["low"], arrays["high"], ndata, arrays["feat"]), NUM_CLASSES, info)


class _Pool:
    """Nodes of one type as intervals of a line, sorted by topic. Their lengths are the expected numbers of edges."""

    def __init__(self, rng: np.random.Generator, topic: np.ndarray) -> None:
        self.rng, self.order = rng, np.argsort(topic, kind="stable")
        self.ends = np.cumsum(rng.lognormal(0.0, ACTIVITY_SPREAD, len(topic)))
        topic_starts = np.searchsorted(topic[self.order], np.arange(TOPICS + 1))
        self.topic_ends = np.concatenate([[0.0], self.ends])[topic_starts]

    def edges(self, topic: np.ndarray, count: int, same: float, *, loops: bool) -> tuple[np.ndarray, np.ndarray]:
        """Sample about ``count`` sorted edges, without duplicates, from nodes with these topics into the pool."""
        n, rng = len(topic), self.rng
        node = np.concatenate([np.arange(n), rng.integers(0, n, max(0, count - n))])
        same_topic = rng.random(len(node)) < same
        low = np.where(same_topic, self.topic_ends[topic[node]], 0.0)
        high = np.where(same_topic, self.topic_ends[topic[node] + 1], self.ends[-1])
        point = low + rng.random(len(node)) * (high - low)
        neighbor = self.order[np.minimum(np.searchsorted(self.ends, point, side="right"), len(self.order) - 1)]
        node, neighbor = np.divmod(np.unique(node * len(self.order) + neighbor), len(self.order))
        keep = (node != neighbor) | loops
        return node[keep], neighbor[keep]


def generate_academic(scale: float, seed: int) -> NamedArrays:
    rng = np.random.Generator(np.random.PCG64(seed))
    share = np.exp(TOPIC_SPREAD * rng.standard_normal(TOPICS))
    share /= share.sum()
    topics = {ntype: rng.choice(TOPICS, round(size * scale), p=share) for ntype, size in SIZES.items()}
    label = topics["paper"].copy()
    stray = np.flatnonzero(rng.random(len(label)) < STRAY)
    topics["paper"][stray] = rng.integers(0, TOPICS, len(stray))
    pools = {ntype: _Pool(rng, topic) for ntype, topic in topics.items()}
    yield "label", label.astype(np.uint8)
    yield "split", random_split(rng.permutation(len(label)))
    for (src_type, name, dst_type), (_, num_edges, same_topic) in RELATIONS.items():
        # The nodes of the more frequent type choose: a paper chooses its authors and fields.
        turn = -1 if name == "writes" else 1
        chooser, chosen = (src_type, dst_type)[::turn]
        pairs = pools[chosen].edges(topics[chooser], round(num_edges * scale), same_topic, loops=src_type != dst_type)
        yield f"{src_type}-{name}-{dst_type}", np.stack(pairs[::turn]).astype(np.int32)
    centers = rng.standard_normal((TOPICS, PAPER_FEATURES), dtype=np.float32) * np.float32(FEATURE_SIGNAL)
    yield "feat", centers[label] + rng.standard_normal((len(label), PAPER_FEATURES), dtype=np.float32)


def load_academic(*, scale: float, seed: int = 0, root: Path) -> Dataset:
    """Load synthetic-academic. Edge e of a relation is edge e of its reverse."""
    name = "synthetic-academic"
    arrays = load_generated(root, name, VERSION, scale, seed, generate_academic(scale, seed))
    edges = {}
    for (src_type, relation, dst_type), (reverse, _, _) in RELATIONS.items():
        src, dst = arrays[f"{src_type}-{relation}-{dst_type}"].astype(np.int64)
        edges |= {(src_type, relation, dst_type): (src, dst), (dst_type, reverse, src_type): (dst, src)}
    graph = make_graph(edges, {ntype: round(size * scale) for ntype, size in SIZES.items()})
    graph.nodes["paper"].data.update(node_data(arrays["feat"], arrays["label"], arrays["split"]))
    info = {"scale": scale, "seed": seed, "version": VERSION, "sizes_of": "ogbn-mag", "real_data": False}
    return Dataset(name, graph, TOPICS, info)
