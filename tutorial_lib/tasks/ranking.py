"""Scores of node pairs, their loss, and the rank of an edge among negative pairs.

Embeddings have unit length, as in the GraphSAGE paper (Hamilton, Ying and Leskovec, 2017, algorithm 1), so a dot
product is a cosine. The probability of an edge is sigmoid(10 * cosine - 5). Without unit length, the first dot products
are in the tens, and the model spends its first epochs on shrinking them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

HITS_AT = 10
SCALE, SHIFT = 10.0, 5.0
unit = F.normalize  # scales rows to length 1 and keeps rows of zeros


def pair_loss(h: Tensor, src: Tensor, dst: Tensor, negatives: Tensor) -> Tensor:
    """Return the binary cross-entropy of edges (1) and negative pairs (0), with equal weight for both kinds.

    Args:
        h: float32 tensor of shape (S, D), embeddings of the seeds.
        src, dst: int64 tensors of shape (B,), positions in ``h``.
        negatives: int64 tensor of shape (B, K), positions in ``h``.
    """
    positive = SCALE * (h[src] * h[dst]).sum(1) - SHIFT
    negative = SCALE * torch.einsum("bd,bkd->bk", h[src], h[negatives]) - SHIFT
    return (F.softplus(-positive).mean() + F.softplus(negative).mean()) / 2


def ranks_among(h_src: Tensor, h_dst: Tensor, h_negatives: Tensor, allowed: Tensor) -> Tensor:
    """Return the rank of each edge among the pairs of its source with the negatives, float32 of shape (B,).

    The best rank is 1. A tie counts one half.

    Args:
        h_src, h_dst: float32 tensors of shape (B, D).
        h_negatives: float32 tensor of shape (K, D), the same negatives for all edges.
        allowed: bool tensor of shape (B, K), the negatives that count for each edge.
    """
    positive = (h_src * h_dst).sum(1, keepdim=True)
    negative = h_src @ h_negatives.T
    better = ((negative > positive) & allowed).sum(1)
    equal = ((negative == positive) & allowed).sum(1)
    return 1 + better + 0.5 * equal


def not_endpoints(negatives: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Return which negatives are neither endpoint of each edge, bool of shape (B, K).

    Args:
        negatives: int64 tensor of shape (K,) or (B, K).
        src, dst: int64 tensors of shape (B,).
    """
    return (negatives != src[:, None]) & (negatives != dst[:, None])


def rank_sums(ranks: Tensor) -> list[float]:
    """Return the sum of 1 / rank, the number of ranks up to ``HITS_AT`` and the number of ranks."""
    return [float((1 / ranks.double()).sum()), float((ranks <= HITS_AT).sum()), float(len(ranks))]
