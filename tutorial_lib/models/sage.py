"""The models of the course. Importing this module does not import DGL; building a model on DGL's layers does."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.models.plain_sage import PlainSAGEConv


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
    """GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, 2017).

    Args:
        in_size: width of the input features.
        hidden_size: width of every hidden layer.
        out_size: number of classes.
        num_layers: number of layers, the same as the number of sampled hops.
        dropout: share of hidden values set to 0 while training.
        plain: layers in plain torch (``plain_sage``) instead of DGL's: the same function of the same weights, also on a
            GPU that DGL was not built for.
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
        sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        if plain:
            self.layers = nn.ModuleList(PlainSAGEConv(a, b) for a, b in pairwise(sizes))
        else:
            from dgl.nn import SAGEConv

            self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.sizes = sizes
        self.dropout = dropout

    def forward(self, blocks: list[Any], x: Tensor | FirstLayer) -> Tensor:
        """Logits of the seed nodes.

        Args:
            blocks: message-flow graphs, outermost hop first; with plain layers also ``plain_sage.CscBlock``.
            x: float32 (number of input nodes of ``blocks[0]``, in_size); or the inputs of the first layer with the mean
                taken, and then ``blocks`` begins with the second hop.

        Returns:
            float32 (number of seed nodes, out_size).
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
