"""Which edges are held out: decided by their two ends alone, so that every process decides alike.

A link predictor is trained on some edges and asked about others. The others must be unknown to it: not examples of
training, and not neighbours in message passing either. In a symmetric graph an edge has a twin in the other direction,
and a twin on the other side of the split would tell the answer.

So the side of an edge is a hash of its undirected pair, in original node ids, and of a seed. Nothing is stored or sent:
both directions, all copies of an edge, every rank and a single process come to the same side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TRAIN, VAL, TEST = 0, 1, 2
SIDES = ("train", "val", "test")
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


@dataclass(frozen=True)
class EdgeSplit:
    """A split of the edges of a graph.

    Attributes:
        seed: other seeds hold out other edges.
        val, test: shares of the undirected pairs that are held out; the shares that come out differ from these by
            chance, by about ``sqrt(share / pairs)``.
    """

    seed: int = 0
    val: float = 0.05
    test: float = 0.05

    def side(self, u: Tensor, v: Tensor) -> Tensor:
        """``TRAIN``, ``VAL`` or ``TEST`` for each edge.

        Args:
            u, v: int64 (E,), the ends of each edge in the data set's original node ids, in either order.

        Returns:
            uint8 (E,).
        """
        point = pair_hash(u, v, self.seed) * 2.0**-64  # uniform in [0, 1)
        side = (point < self.val + self.test).astype(np.uint8) + (point < self.test)
        return torch.from_numpy(side)


def pair_hash(u: Tensor, v: Tensor, seed: int) -> np.ndarray:
    """uint64 (E,): a hash of each undirected pair and the seed (two rounds of the finalizer of SplitMix64)."""
    low, high = (ends.numpy().view(np.uint64) for ends in (torch.minimum(u, v), torch.maximum(u, v)))
    start = np.uint64((2 * seed + 1) * int(GOLDEN) % 2**64)
    return _mix(_mix(low + start) ^ high * GOLDEN)


def _mix(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of ``x``; arithmetic modulo 2**64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
