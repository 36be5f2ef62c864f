"""Statistics of a data set that affect how well it can be partitioned and learned.

All functions expect a homogeneous ``DGLGraph`` that stores every undirected edge in both directions.
"""

from typing import Any

import dgl
import numpy as np
from scipy import sparse

from tutorial_lib.data.base import MASKS, Dataset


def graph_statistics(dataset: Dataset, sample: int) -> dict[str, Any]:
    """Degrees, clustering of a sample of nodes, and homophily: the share of edges that join equal labels."""
    graph, label = dataset.graph, dataset.graph.ndata["label"]
    degree = graph.in_degrees().numpy()
    src, dst = graph.edges()
    return {
        "mean_degree": float(degree.mean()),
        "median_degree": float(np.median(degree)),
        "max_degree": int(degree.max()),
        "clustering": average_clustering(graph, sample),
        "edge_homophily": float((label[src] == label[dst]).double().mean()),
        "split_mean_degree": {mask: float(degree[graph.ndata[mask].numpy()].mean()) for mask in MASKS},
    }


def average_clustering(graph: dgl.DGLGraph, sample: int) -> float:
    """Return the mean local clustering, the share of pairs of neighbors of a node that are neighbors themselves.

    Watts and Strogatz, Collective dynamics of small-world networks, Nature 393 (1998). A node with fewer than two
    neighbors counts as 0, as in networkx.
    """
    src, dst = (ids.numpy() for ids in dgl.to_simple(dgl.remove_self_loop(graph)).edges())
    joined = sparse.csr_array((np.ones(len(src)), (src, dst)), shape=(graph.num_nodes(), graph.num_nodes()))
    of_nodes = joined[np.random.default_rng(0).choice(graph.num_nodes(), sample, replace=False)]
    pairs, closed = of_nodes.sum(axis=1), (of_nodes @ joined * of_nodes).sum(axis=1)
    pairs = pairs * (pairs - 1)
    return float(np.divide(closed, pairs, out=np.zeros(sample), where=pairs > 0).mean())
