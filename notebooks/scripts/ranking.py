"""Rank held-out edges among other pairs of nodes, and compute the mean reciprocal rank of all machines (lesson 13)."""

import torch
import torch.nn.functional as F

from ranks import weighted_reduce


def choose_candidates(original, count):
    """Return ``count`` node IDs, int64 (count,). They belong to the same original nodes in any partition.

    Args:
        original: original ID of each node, int64 (N,).
    """
    order = torch.randperm(len(original), generator=torch.Generator().manual_seed(0))
    return original.argsort()[order[:count]]


def rank_edges(h, src, dst, candidates):
    """Return the rank of each edge (u, v) among the pairs (u, x) for all candidates x, float32 (E,).

    The rank is 1, plus the number of candidates with a larger cosine than v, plus half the number with an equal cosine.
    Cosines (products of normalized rows) are equal if they differ by at most 1e-6. Candidates u and v do not count.

    Args:
        h: tensor or DistTensor (N, D). A DistTensor only supports reading rows by ID.
        src, dst: node IDs, int64 (E,).
        candidates: node IDs, int64 (C,).
    """
    u, v, x = (F.normalize(h[ids]) for ids in (src, dst, candidates))
    score = (u * v).sum(1, keepdim=True)
    gap = u @ x.T - score  # equal vectors have a gap of about 1e-7, because the two products are rounded differently
    gap[(candidates == src[:, None]) | (candidates == dst[:, None])] = -1  # a smaller cosine does not count
    return 1 + (gap > 1e-6).sum(1) + (gap.abs() <= 1e-6).sum(1) / 2


def mean_reciprocal_rank(h, graph, edges, candidates):
    """Return the mean of 1 / rank over the edges (IDs) of all ranks, a float, on every rank. Some ranks have no edges.

    Rank at most 4,096 edges at a time, because they need a matrix (4096, C). ``find_edges`` rejects zero edges.
    """
    total = 0.0
    for part in edges.split(4096):
        if len(part):
            ranks = rank_edges(h, *graph.find_edges(part), candidates)
            total += (1 / ranks).sum().item()
    return weighted_reduce(total, len(edges))
