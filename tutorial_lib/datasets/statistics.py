"""Measured statistics of a data set: what makes a graph easy or hard to partition and to learn on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tutorial_lib.datasets.base import MASKS, Dataset

if TYPE_CHECKING:
    import dgl


def graph_statistics(dataset: Dataset, sample: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Measure a data set that stores every undirected edge in both directions.

    Args:
        dataset: graph with N nodes and E directed edges, labels int64 (N,), masks bool (N,).
        sample: number of nodes whose local clustering is computed; N or more computes all of them.
        seed: seed of that sample.

    Returns:
        ``nodes``, ``edges`` (directed), ``mean_degree``, ``median_degree``, ``max_degree``, ``clustering`` (average
        local clustering, nodes of degree 0 and 1 count as 0: Watts and Strogatz 1998), ``edge_homophily`` (share of
        edges whose ends have one label), ``split_counts`` and ``split_mean_degree`` per mask, ``classes`` and
        ``classes_with_nodes``; JSON types only.
    """
    graph = dataset.graph
    degree, label = graph.in_degrees(), graph.ndata["label"]
    per_split = {name: degree[graph.ndata[name]] for name in MASKS}
    return {
        "nodes": graph.num_nodes(),
        "edges": graph.num_edges(),
        "mean_degree": float(degree.double().mean()),
        "median_degree": float(np.median(degree.numpy())),
        "max_degree": int(degree.max()),
        "clustering": average_clustering(graph, sample, seed),
        "edge_homophily": _share_of_edges(graph, lambda src, dst: label[src] == label[dst]),
        "split_counts": dataset.split_counts(),
        "split_mean_degree": {name: float(d.double().mean()) if len(d) else 0.0 for name, d in per_split.items()},
        "classes": dataset.num_classes,
        "classes_with_nodes": int((torch.bincount(label, minlength=dataset.num_classes) > 0).sum()),
    }


def average_clustering(graph: dgl.DGLGraph, sample: int = 2000, seed: int = 0) -> float:
    """Mean over sampled nodes of (edges among the neighbours) / (pairs of neighbours), for a symmetric graph."""
    n = graph.num_nodes()
    indptr, indices, _ = (part.numpy() for part in graph.adj_tensors("csc"))
    rng = np.random.Generator(np.random.PCG64(seed))
    nodes = np.arange(n) if sample >= n else rng.choice(n, sample, replace=False)
    marked = np.zeros(n, dtype=bool)
    return float(np.mean([_local_clustering(indptr, indices, int(v), marked) for v in nodes]))


def _local_clustering(indptr: np.ndarray, indices: np.ndarray, node: int, marked: np.ndarray) -> float:
    neighbours = np.unique(indices[indptr[node] : indptr[node + 1]])
    neighbours = neighbours[neighbours != node]
    k = len(neighbours)
    if k < 2:
        return 0.0
    marked[neighbours] = True
    found = sum(int(marked[indices[indptr[v] : indptr[v + 1]]].sum()) for v in neighbours)
    marked[neighbours] = False
    return found / (k * (k - 1))
def _share_of_edges(graph, test, chunk=1 << 24):
    src, dst = graph.edges(order="eid")
    hits = sum(int(test(src[at : at + chunk], dst[at : at + chunk]).sum()) for at in range(0, len(src), chunk))
    return hits / max(1, len(src))
def metis_cut(graph, parts):
    import dgl
    a = dgl.metis_partition_assignment(graph, parts)
    return _share_of_edges(graph, lambda s, d: a[s] != a[d])
