"""synthetic-academic: authors, papers and fields in the sizes of ogbn-mag (Hu et al. 2020), without a download.

Each paper, author and field has a hidden topic, and the label of a paper is its topic. Papers have weak features.
Authors and fields have none, so a model must learn a row for each of them. data/README.md has figures.
"""

from pathlib import Path

import numpy as np

from tutorial_lib.data.base import Dataset, make_graph, node_data, random_split
from tutorial_lib.data.cache import Named, load_generated

NAME, VERSION = "synthetic-academic", 1  # increase the version with every change of the generated data
SIZES = {"paper": 736_389, "author": 1_134_649, "field": 59_965}
NUM_CLASSES, FEATURES = 16, 64
# (source type, relation, destination type): reverse relation, number of edges, share of the edges inside one topic.
# Two relations are called has-topic.
RELATIONS = {
    ("author", "writes", "paper"): ("written-by", 7_145_660, 0.45),
    ("paper", "cites", "paper"): ("cited-by", 5_416_271, 0.4),
    ("paper", "has-topic", "field"): ("topic-of", 7_505_078, 0.15),
    ("author", "has-topic", "field"): ("topic-of", 1_700_000, 0.15),
}
# With these values, a model predicts about half of the papers from the features, and most of them with the graph.
TOPIC_SPREAD = 0.5  # standard deviation of the logarithm of a topic's size
ACTIVITY_SPREAD = 1.0  # standard deviation of the logarithm of a node's expected number of edges
STRAY = 0.08  # share of the papers with the neighbors of another topic
FEATURE_SIGNAL = 0.22  # standard deviation of a topic's center, where the noise has 1


def draw(scale: float, seed: int) -> Named:
    """Generate the arrays of the data set by name. Equal seeds give equal bytes."""
    rng = np.random.Generator(np.random.PCG64(seed))
    share = np.exp(TOPIC_SPREAD * rng.standard_normal(NUM_CLASSES))
    share /= share.sum()
    topics = {kind: rng.choice(NUM_CLASSES, round(size * scale), p=share) for kind, size in SIZES.items()}
    label = topics["paper"].copy()
    stray = np.flatnonzero(rng.random(len(label)) < STRAY)
    topics["paper"][stray] = rng.integers(0, NUM_CLASSES, len(stray))
    pools = {kind: _Pool(rng, topic) for kind, topic in topics.items()}
    yield "label", label.astype(np.uint8)
    yield "split", random_split(rng.permutation(len(label)))
    for (start, name, end), (_, full, same) in RELATIONS.items():
        # The nodes of the more frequent type choose: a paper chooses its authors and fields.
        turn = -1 if name == "writes" else 1
        chooser, chosen = (start, end)[::turn]
        pairs = pools[chosen].edges(topics[chooser], round(full * scale), same, loops=start != end)
        yield f"{start}-{name}-{end}", np.stack(pairs[::turn]).astype(np.int32)
    centers = rng.standard_normal((NUM_CLASSES, FEATURES), dtype=np.float32) * np.float32(FEATURE_SIGNAL)
    feat = rng.standard_normal((len(label), FEATURES), dtype=np.float32)
    yield "feat", feat + centers[label]


class _Pool:
    """Nodes of one type as intervals of a line, sorted by topic. Their lengths are the expected numbers of edges."""

    def __init__(self, rng: np.random.Generator, topic: np.ndarray) -> None:
        self.rng, self.order = rng, np.argsort(topic, kind="stable")
        self.ends = np.cumsum(rng.lognormal(0.0, ACTIVITY_SPREAD, len(topic)))
        first = np.searchsorted(topic[self.order], np.arange(NUM_CLASSES + 1))
        self.topic_ends = np.concatenate([[0.0], self.ends])[first]

    def edges(self, topic: np.ndarray, count: int, same: float, *, loops: bool) -> tuple[np.ndarray, np.ndarray]:
        """Sample about ``count`` sorted edges, without duplicates, from nodes with these topics into the pool."""
        n, rng = len(topic), self.rng
        node = np.concatenate([np.arange(n), rng.integers(0, n, max(0, count - n))])
        inside, wanted = rng.random(len(node)) < same, topic[node]
        low = np.where(inside, self.topic_ends[wanted], 0.0)
        high = np.where(inside, self.topic_ends[wanted + 1], self.ends[-1])
        point = low + rng.random(len(node)) * (high - low)
        other = self.order[np.minimum(np.searchsorted(self.ends, point, side="right"), len(self.order) - 1)]
        node, other = np.divmod(np.unique(node * len(self.order) + other), len(self.order))
        keep = (node != other) | loops
        return node[keep], other[keep]


def load_academic(*, scale: float, seed: int = 0, root: Path) -> Dataset:
    """Load synthetic-academic from its cache, or generate it. Edge e of a relation is edge e of its reverse."""
    arrays, edges = load_generated(root, NAME, VERSION, scale, seed, draw), {}
    for (start, name, end), (reverse, _, _) in RELATIONS.items():
        src, dst = arrays[f"{start}-{name}-{end}"].astype(np.int64)
        edges |= {(start, name, end): (src, dst), (end, reverse, start): (dst, src)}
    graph = make_graph(edges, {kind: round(size * scale) for kind, size in SIZES.items()})
    graph.nodes["paper"].data.update(node_data(arrays["feat"], arrays["label"], arrays["split"]))
    info = {"scale": scale, "seed": seed, "version": VERSION, "sizes_of": "ogbn-mag", "real_data": False}
    return Dataset(NAME, graph, NUM_CLASSES, info)
