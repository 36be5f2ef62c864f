"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, 2017) in plain torch. A CPU build of DGL suffices."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from dgl.heterograph import DGLBlock

Block: TypeAlias = Union["CscBlock", "DGLBlock"]


@dataclass(frozen=True)
class CscBlock:
    """A message-flow graph as two tensors. The destination nodes are the first source nodes, as in DGL."""

    indptr: Tensor  # (D + 1,). Node d has the edges ``indptr[d]`` to ``indptr[d + 1] - 1``
    indices: Tensor  # (E,), the source node of each edge

    @classmethod
    def from_block(cls, block: Block, relation: tuple[str, str, str] | None = None) -> "CscBlock":
        """Return the edges of one type of a DGL block. The tensors share the memory of the block."""
        return block if isinstance(block, CscBlock) else cls(*block.adj_tensors("csc", etype=relation)[:2])


def mean_of_neighbors(block: CscBlock, x: Tensor) -> Tensor:
    """Return the mean row of x (S, F) over the edges of each destination node (D, F), and zeros without edges."""
    # No (E, F) tensor of messages exists. ``index_add`` took 2 to 5 and ``segment_reduce`` 5 to 13 times as long.
    return F.embedding_bag(block.indices, x, block.indptr, mode="mean", include_last_offset=True)


@dataclass(frozen=True)
class FirstLayer:
    """Inputs of a layer whose neighbor means were computed where the rows were read."""

    dst_rows: Tensor  # float32 (D, in_size), rows of the destination nodes
    mean: Tensor  # float32 (D, in_size), mean row of the sampled neighbors of each node
    multiplied: bool = False  # whether ``fc_neigh`` has multiplied these rows, so that the mean is (D, out_size)


class SAGEConv(nn.Module):
    """``dgl.nn.SAGEConv(in_size, out_size, "mean")`` with the same names and initial weights. Outputs agree to 1e-5."""

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        # Created and initialized in DGL's order, so that equal seeds give equal weights.
        self.fc_neigh = nn.Linear(in_size, out_size, bias=False)
        self.fc_self = nn.Linear(in_size, out_size)
        for linear in (self.fc_self, self.fc_neigh):
            nn.init.xavier_uniform_(linear.weight, nn.init.calculate_gain("relu"))

    def forward(self, block: Block, x: Tensor | FirstLayer) -> Tensor:
        """Return the new rows (D, out_size) of the destination nodes of a ``CscBlock`` or DGL block of one type."""
        if isinstance(x, FirstLayer):
            return self.fc_self(x.dst_rows) + (x.mean if x.multiplied else self.fc_neigh(x.mean))
        block = CscBlock.from_block(block)
        own = self.fc_self(x[: len(block.indptr) - 1])
        if self.fc_neigh.in_features > self.fc_neigh.out_features:  # short rows are cheaper to add
            return own + mean_of_neighbors(block, self.fc_neigh(x))
        return own + self.fc_neigh(mean_of_neighbors(block, x))


class GraphSAGE(nn.Module):
    """GraphSAGE with ReLU and dropout between its layers, one layer for each sampled hop."""

    def __init__(
        self, in_size: int, hidden_size: int, out_size: int, num_layers: int = 3, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.sizes, self.dropout = [in_size, *[hidden_size] * (num_layers - 1), out_size], dropout
        self.layers = nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(self.sizes))

    def forward(self, blocks: list[Block], x: Tensor | FirstLayer) -> Tensor:
        """Return the logits (seeds, out_size). A ``FirstLayer`` replaces the first of the blocks, the outermost hop."""
        for depth, block in enumerate([None, *blocks] if isinstance(x, FirstLayer) else blocks):
            x = self.layer(depth, block, x)
        return x  # type: ignore[return-value]

    def layer(self, depth: int, block: Block | None, x: Tensor | FirstLayer) -> Tensor:
        """Apply one layer, its activation and dropout. Layer-wise inference calls this method."""
        y = self.layers[depth](block, x)
        return y if depth == len(self.layers) - 1 else F.dropout(torch.relu(y), self.dropout, self.training)


def build_graphsage(config: Any, in_size: int, out_size: int) -> GraphSAGE:
    """Return a GraphSAGE for a ``TrainConfig``. Its weights depend on the seed only and are equal on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return GraphSAGE(in_size, config.hidden_size, out_size, len(config.fanouts), config.dropout)
