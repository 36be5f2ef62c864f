"""Label propagation: classes of nodes from the graph and the known labels alone. Nothing is learned.

Every node holds a distribution over the classes. In each round a node takes the mean of its neighbours' distributions,
mixed with what it began with; training nodes begin with their label, all others with nothing (Zhou et al., "Learning
with Local and Global Consistency", 2004; Zhu and Ghahramani, 2002).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def propagate_labels(
    graph: Any, labels: Tensor, known: Tensor, num_classes: int, *, rounds: int = 50, alpha: float = 0.9
) -> Tensor:
    """Predicted class of each node, int64 (N,).

    Args:
        graph: homogeneous ``DGLGraph`` with the reverse of each edge.
        labels: int64 (N,); only those of ``known`` nodes are read.
        known: bool (N,), or int64 ids: the training nodes. Validation nodes are not among them.
        rounds: a node's label reaches nodes up to so many hops away.
        alpha: share of the neighbours in a round; the rest is the beginning. DGL's normalisation D^-1/2 A D^-1/2.
    """
    import dgl.function as fn

    start = torch.zeros(graph.num_nodes(), num_classes)
    start[known] = F.one_hot(labels[known], num_classes).float()
    scale = graph.in_degrees().clamp(min=1).float().pow(-0.5)[:, None]
    y = start
    with graph.local_scope():
        for _ in range(rounds):
            graph.ndata["y"] = y * scale
            graph.update_all(fn.copy_u("y", "m"), fn.sum("m", "y"))
            y = alpha * graph.ndata["y"] * scale + (1 - alpha) * start
    return y.argmax(1)
