"""Scores of pairs, and how good they are: ranks among negatives, a linear probe on embeddings.

Embeddings have length 1, as in the GraphSAGE paper (Hamilton, Ying and Leskovec, 2017, algorithm 1), so a dot product
is a cosine. How likely an edge is: sigmoid(10 * cosine - 5). Without unit length the first dot products are in the
tens, and the model spends its first epochs on shrinking them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

HITS_AT = 10
SCALE, SHIFT = 10.0, 5.0
unit = F.normalize  # makes rows of length 1; a row of zeros stays


def pair_loss(h: Tensor, src: Tensor, dst: Tensor, negatives: Tensor) -> Tensor:
    """Binary cross-entropy: edges are 1, negatives 0, and both weigh as much.

    Args:
        h: float32 (S, D), embeddings of length 1 of the seeds.
        src, dst: int64 (B,); negatives: int64 (B, K); places in ``h``.
    """
    positive = SCALE * (h[src] * h[dst]).sum(1) - SHIFT
    negative = SCALE * torch.einsum("bd,bkd->bk", h[src], h[negatives]) - SHIFT
    return (F.softplus(-positive).mean() + F.softplus(negative).mean()) / 2


def ranks_among(h_src: Tensor, h_dst: Tensor, h_negatives: Tensor, allowed: Tensor) -> Tensor:
    """Rank of each edge among the pairs of its source with the negatives; the best is 1, a tie counts as one half.

    Args:
        h_src, h_dst: float32 (B, D); h_negatives: float32 (K, D), the same for every edge.
        allowed: bool (B, K), which negatives count; those that are an end of the edge must not.

    Returns:
        float32 (B,).
    """
    positive = (h_src * h_dst).sum(1, keepdim=True)
    negative = h_src @ h_negatives.T
    better = ((negative > positive) & allowed).sum(1)
    equal = ((negative == positive) & allowed).sum(1)
    return 1 + better + 0.5 * equal


def is_no_end(negatives: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """bool (B, K): which negatives an edge may be compared with: those that are neither of its ends.

    Args:
        src, dst: int64 (B,); negatives: int64 (K,), or (B, K).
    """
    return (negatives != src[:, None]) & (negatives != dst[:, None])


def rank_sums(ranks: Tensor) -> list[float]:
    """[sum of 1 / rank, number of ranks up to ``HITS_AT``, number]: summed over a job, they give the scores."""
    return [float((1 / ranks.double()).sum()), float((ranks <= HITS_AT).sum()), float(len(ranks))]


@dataclass(frozen=True)
class Probe:
    """A linear classifier on frozen embeddings: what they know about the labels, which they never saw.

    Attributes:
        mean, scale: float64 (D,), of the embeddings that it was fitted on.
        weight: float64 (C, D); bias: float64 (C,); classes: int64 (C,), those that occurred.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    classes: Tensor

    def predict(self, h: Tensor) -> Tensor:
        """Class of each row; int64 (rows,)."""
        # In numpy, as scikit-learn does it: torch may add in another order.
        mean, scale, weight, bias = (each.numpy() for each in (self.mean, self.scale, self.weight, self.bias))
        logits = (h.numpy() - mean) / scale @ weight.T + bias
        return self.classes[logits.argmax(1)]


def fit_probe(h: Tensor, labels: Tensor) -> Probe:
    """Logistic regression (scikit-learn, L2, C = 1) on standardised embeddings.

    Args:
        h: float32 (rows, D); labels: int64 (rows,), at least two classes.
    """
    from sklearn.linear_model import LogisticRegression

    x = h.numpy().astype(np.float64)
    mean, scale = x.mean(0), x.std(0)
    scale[scale == 0] = 1.0  # a column without variation says nothing
    fitted: Any = LogisticRegression(max_iter=200, tol=1e-3).fit((x - mean) / scale, labels.numpy())
    weight, bias = fitted.coef_, fitted.intercept_
    if len(weight) == 1:  # two classes share one row
        weight, bias = np.concatenate([-weight, weight]), np.concatenate([-bias, bias])
    # One layout of memory, so that a probe that was sent to another rank adds in the same order.
    return Probe(*map(torch.from_numpy, (mean, scale, np.ascontiguousarray(weight), bias, fitted.classes_)))
