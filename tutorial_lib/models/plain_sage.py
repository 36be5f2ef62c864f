"""GraphSAGE's layer in plain torch, over the CSC tensors of a block: runs on a GPU without a CUDA build of DGL.

The weights have the names, shapes and first values of ``dgl.nn.SAGEConv(..., "mean")``: a checkpoint of one loads into
the other. Importing this module does not import DGL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class CscBlock:
    """A message-flow graph as two tensors. Its destination nodes are the first of its source nodes, as in DGL.

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

    @property
    def num_dst(self) -> int:
        """Number of destination nodes, D."""
        return len(self.indptr) - 1

    def map(self, move: Callable[[Tensor], Tensor]) -> CscBlock:
        """The block with both tensors replaced."""
        return CscBlock(move(self.indptr), move(self.indices))


def mean_of_neighbours(block: CscBlock, x: Tensor) -> Tensor:
    """Mean of the source rows of each destination node; zeros where there is no edge.

    ``embedding_bag`` sums rows as it reads them: no (E, F) tensor of messages is made, forward or backward. On a CPU it
    took about as long as DGL's own kernel; ``index_add`` took 2 to 5 times, ``segment_reduce`` 5 to 13 times as long.

    Args:
        x: float (S, F), one row for each source node.

    Returns:
        (D, F), dtype of ``x``.
    """
    return F.embedding_bag(block.indices, x, block.indptr, mode="mean", include_last_offset=True)


class PlainSAGEConv(nn.Module):
    """``dgl.nn.SAGEConv(in_size, out_size, "mean")`` without DGL (Hamilton, Ying and Leskovec, 2017).

    Equal to it within 1e-5, forward and backward; see tests/models/test_plain_sage.py.
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
        """New vectors of the destination nodes.

        Args:
            block: ``CscBlock``, or a DGL block with one type of nodes and edges.
            x: float32 (S, in_size), one row for each source node.

        Returns:
            float32 (D, out_size).
        """
        block = CscBlock.of(block)
        own = self.fc_self(x[: block.num_dst])
        if self.fc_neigh.in_features > self.fc_neigh.out_features:  # the shorter vectors are summed
            return own + mean_of_neighbours(block, self.fc_neigh(x))
        return own + self.fc_neigh(mean_of_neighbours(block, x))


def plain_blocks(blocks: list[Any]) -> list[CscBlock]:
    """The tensors of a batch's blocks, outermost hop first."""
    return [CscBlock.of(block) for block in blocks]
