"""Measured statistics of a data set: what makes a graph easy or hard to cut into parts, and to learn on.

All functions expect a homogeneous ``DGLGraph`` that stores every undirected edge in both directions, with ids int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tutorial_lib.data.base import MASKS, Dataset

if TYPE_CHECKING:
    import dgl

CHUNK = 1 << 24  # edges looked at in one go


def graph_statistics(dataset: Dataset, sample: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Count and measure a data set of N nodes and E directed edges.

    Args:
        dataset: with ``label`` int64 (N,) and the three masks bool (N,).
        sample: number of nodes whose local clustering is measured; N or more measures every node.
        seed: seed of that sample.

    Returns:
        JSON types only: ``nodes``, ``edges`` (directed), ``mean_degree``, ``median_degree``, ``max_degree``,
        ``clustering`` (see ``average_clustering``), ``edge_homophily`` (share of edges that join equal labels),
        ``classes``, ``classes_with_nodes``, and per mask ``split_counts`` and ``split_mean_degree``.
    """
    graph, label = dataset.graph, dataset.graph.ndata["label"]
    degree = graph.in_degrees().numpy()
    per_split = {mask: degree[graph.ndata[mask].numpy()] for mask in MASKS}
    pieces = zip(*(ends.split(CHUNK) for ends in graph.edges(order="eid")), strict=True)
    alike = sum(int((label[src] == label[dst]).sum()) for src, dst in pieces)
    return {
        "nodes": graph.num_nodes(),
        "edges": graph.num_edges(),
        "mean_degree": float(degree.mean()),
        "median_degree": float(np.median(degree)),
        "max_degree": int(degree.max()),
        "clustering": average_clustering(graph, sample, seed),
        "edge_homophily": alike / max(1, graph.num_edges()),
        "classes": dataset.num_classes,
        "classes_with_nodes": int((torch.bincount(label, minlength=dataset.num_classes) > 0).sum()),
        "split_counts": dataset.split_counts(),
        "split_mean_degree": {mask: float(d.mean()) if len(d) else 0.0 for mask, d in per_split.items()},
    }


def average_clustering(graph: dgl.DGLGraph, sample: int = 2000, seed: int = 0) -> float:
    """Mean local clustering: of the pairs of a node's neighbors, the share that is joined itself.

    Watts and Strogatz, Collective dynamics of small-world networks, Nature 393 (1998). A node with fewer than two
    neighbors counts as 0, as in networkx. Self loops and repeated edges are ignored at the node itself.
    """
    indptr, indices, _ = (tensor.numpy() for tensor in graph.adj_tensors("csc"))
    n = graph.num_nodes()
    rng = np.random.Generator(np.random.PCG64(seed))
    nodes = np.arange(n) if sample >= n else rng.choice(n, sample, replace=False)
    is_neighbor = np.zeros(n, dtype=bool)  # one scratch array for all nodes; each leaves it as it was
    return float(np.mean([_local_clustering(indptr, indices, int(node), is_neighbor) for node in nodes]))


def _local_clustering(indptr: np.ndarray, indices: np.ndarray, node: int, is_neighbor: np.ndarray) -> float:
    neighbors = np.unique(indices[indptr[node] : indptr[node + 1]])
    neighbors = neighbors[neighbors != node]
    if len(neighbors) < 2:
        return 0.0
    is_neighbor[neighbors] = True
    joined = sum(int(is_neighbor[indices[indptr[v] : indptr[v + 1]]].sum()) for v in neighbors)
    is_neighbor[neighbors] = False
    return joined / (len(neighbors) * (len(neighbors) - 1))
