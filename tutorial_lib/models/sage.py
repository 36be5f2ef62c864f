"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, 2017), on DGL's layers or on the same in plain torch.

Importing this module does not import DGL; building a model on DGL's layers does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class CscBlock:
    """A block as two tensors. Its destination nodes are the first of its source nodes, as in DGL.

    Attributes:
        indptr: int64 (D + 1,): the edges into destination node d are ``indptr[d]`` to ``indptr[d + 1] - 1``.
        indices: int64 (E,): source node of each edge, sorted by destination.
    """

    indptr: Tensor
    indices: Tensor

    @classmethod
    def of(cls, block: Any) -> CscBlock:
        """The tensors of a DGL block with one type of nodes and edges; they share its memory."""
        if isinstance(block, CscBlock):
            return block
        indptr, indices, _edge_ids = block.adj_tensors("csc")
        return cls(indptr, indices)

    def map(self, move: Callable[[Tensor], Tensor]) -> CscBlock:
        """The block with both tensors replaced."""
        return CscBlock(move(self.indptr), move(self.indices))


def mean_of_neighbours(block: CscBlock, x: Tensor) -> Tensor:
    """Mean of the source rows of each destination node; zeros where there is no edge.

    ``embedding_bag`` sums rows as it reads them: no (E, F) tensor of messages is made, forward or backward. On a CPU it
    took about as long as DGL's own kernel; ``index_add`` took 2 to 5 times, ``segment_reduce`` 5 to 13 times as long.

    Args:
        x: float (S, F), one row for each source node. The result is (D, F).
    """
    return F.embedding_bag(block.indices, x, block.indptr, mode="mean", include_last_offset=True)


class PlainSAGEConv(nn.Module):
    """``dgl.nn.SAGEConv(in_size, out_size, "mean")`` without DGL: runs on a GPU that DGL was not built for.

    Equal to it within 1e-5, forward and backward (tests/models/test_plain_sage.py). Weights have the same names, shapes
    and first values: a checkpoint of one loads into the other.
    """

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        # Made and drawn in DGL's order, so that equal seeds give equal weights.
        self.fc_neigh = nn.Linear(in_size, out_size, bias=False)
        self.fc_self = nn.Linear(in_size, out_size)
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.fc_self.weight, gain=gain)
        nn.init.xavier_uniform_(self.fc_neigh.weight, gain=gain)

    def forward(self, block: Any, x: Tensor) -> Tensor:
        """New vectors of the destination nodes, float32 (D, out_size).

        Args:
            block: ``CscBlock``, or a DGL block with one type of nodes and edges.
            x: float32 (S, in_size), one row for each source node.
        """
        block = CscBlock.of(block)
        own = self.fc_self(x[: len(block.indptr) - 1])
        if self.fc_neigh.in_features > self.fc_neigh.out_features:  # the shorter vectors are summed
            return own + mean_of_neighbours(block, self.fc_neigh(x))
        return own + self.fc_neigh(mean_of_neighbours(block, x))


@dataclass(frozen=True)
class FirstLayer:
    """What the first layer needs when the mean over the neighbours has been taken already, where the rows were read.

    Attributes:
        own: float32 (D, in_size), rows of the first layer's destination nodes.
        mean: float32 (D, in_size), mean row of the sampled neighbours of each; zeros where there are none.
    """

    own: Tensor
    mean: Tensor


class GraphSAGE(nn.Module):
    """The model.

    Args:
        out_size: number of classes.
        num_layers: the same as the number of sampled hops.
        dropout: share of hidden values set to 0 while training.
        plain: with ``PlainSAGEConv`` instead of DGL's layers: the same function of the same weights.
    """

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 3,
        dropout: float = 0.5,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self.sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.dropout = dropout
        if plain:
            self.layers = nn.ModuleList(PlainSAGEConv(a, b) for a, b in pairwise(self.sizes))
        else:
            from dgl.nn.pytorch import SAGEConv

            self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(self.sizes))

    def forward(self, blocks: list[Any], x: Tensor | FirstLayer) -> Tensor:
        """Logits of the seed nodes, float32 (seeds, out_size).

        Args:
            blocks: message-flow graphs, outermost hop first; with plain layers also ``CscBlock``.
            x: float32 (number of input nodes of ``blocks[0]``, in_size); or the inputs of the first layer with the mean
                taken, and then ``blocks`` begins with the second hop.
        """
        if isinstance(x, FirstLayer):
            blocks = [None, *blocks]
        for depth, block in enumerate(blocks):
            x = self.layer(depth, block, x)
            if depth < len(self.layers) - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x  # type: ignore[return-value]

    def layer(self, depth: int, block: Any, x: Tensor | FirstLayer) -> Tensor:
        """One layer with its activation and without dropout; what layer-wise inference calls."""
        layer = self.layers[depth]
        found = layer.fc_self(x.own) + layer.fc_neigh(x.mean) if isinstance(x, FirstLayer) else layer(block, x)
        return torch.relu(found) if depth < len(self.layers) - 1 else found


def stored_sizes(sizes: list[int]) -> list[int]:
    """Columns of what ``NarrowStores`` keeps: the input's, then each layer's."""
    *first, hidden, out = sizes
    return [*first, 2 * out, out] if first and 2 * out < hidden else sizes


class NarrowStores:
    """A GraphSAGE for layer-wise inference that stores less: a last layer that is narrow multiplies first.

    Its two products are taken of a hidden row as soon as that is there, and they are stored and asked for in its place:
    for 47 classes 94 numbers of each node instead of 256. Sums of products come in another order: equal within 1e-5.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.layers, self.sizes = model, model.layers, stored_sizes(model.sizes)
        self.early = self.sizes != model.sizes

    def eval(self) -> None:
        """No dropout."""
        self.model.eval()

    def layer(self, depth: int, block: Any, x: FirstLayer) -> Tensor:
        """As ``GraphSAGE.layer``, of rows whose mean is taken."""
        last, out = self.layers[-1], self.sizes[-1]
        if self.early and depth == len(self.layers) - 1:
            return x.own[:, :out] + x.mean[:, out:]
        found = self.model.layer(depth, block, x)
        if self.early and depth == len(self.layers) - 2:
            return torch.cat([last.fc_self(found), last.fc_neigh(found)], dim=1)
        return found
