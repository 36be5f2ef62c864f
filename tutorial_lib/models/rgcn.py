"""R-GCN: a graph network with weights of its own for each relation (Schlichtkrull et al., 2018).

A layer computes, for a node v of type t,

    h'(v) = W_t h(v) + b_t + sum over relations r into t of  W_r (mean of h over v's neighbours in r)

All weights of a layer take part in every step, also where a batch has no edge of a relation: then the mean is zero,
and so is the gradient. DDP would wait for a weight that takes no part.
"""
# dgl.function makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Relation = tuple[str, str, str]  # source type, name, destination type: a canonical edge type


class RelationalLayer(nn.Module):
    """One layer.

    Args:
        relations: those whose messages it sums; their destinations are the types that it computes.
        own: further types that it computes, from their own rows alone.

    Attributes:
        matrices: float32 (relations, in_size, out_size), in the order of ``relations``.
    """

    def __init__(self, relations: Sequence[Relation], own: Sequence[str], in_size: int, out_size: int) -> None:
        super().__init__()
        self.relations = sorted(relations)
        self.outputs = sorted({end for _, _, end in relations} | set(own))
        matrices = torch.empty(len(self.relations), in_size, out_size)
        for matrix in matrices:
            nn.init.xavier_uniform_(matrix)
        self.matrices = nn.Parameter(matrices)
        self.own = nn.ModuleDict({name: nn.Linear(in_size, out_size) for name in self.outputs})

    def forward(self, block: Any, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the destination nodes of a block, by type.

        Args:
            h: by type, float32 (source nodes of the block, in_size); the destination nodes are the first of them.
        """
        found = {name: self.own[name](h[name][: block.num_dst_nodes(name)]) for name in self.outputs}
        for relation, weight in zip(self.relations, self.matrices, strict=True):
            found[relation[2]] = found[relation[2]] + mean_of_neighbours(block, relation, h[relation[0]]) @ weight
        return found


def mean_of_neighbours(block: Any, relation: Relation, rows: Tensor) -> Tensor:
    """float32 (destination nodes, width); zeros for a node without a neighbour in this relation."""
    import dgl.function as fn

    if relation not in block.canonical_etypes:  # a batch from a DistGraph lacks the relations it has no edge of
        nothing = rows[:0].sum(0)  # zeros that still come from ``rows``, so that the gradient reaches it
        return nothing.expand(block.num_dst_nodes(relation[2]), -1)
    part = block[relation]  # by canonical name: the short one may stand for several
    with part.local_scope():
        part.srcdata["h"] = rows
        part.update_all(fn.copy_u("h", "m"), fn.mean("m", "h"))
        return part.dstdata["h"]


class RGCN(nn.Module):
    """R-GCN whose last layer gives logits of the nodes of one type.

    Args:
        relations: canonical edge types of the graph; what has no way to ``target`` is left out.
        target: the type of nodes to classify.
        feature_sizes: width of the features of each type that has some; they are projected to ``in_size``.
        in_size: width of the rows that are learned for all other types.
        out_size: number of classes.
        num_layers, dropout: as in ``sage.GraphSAGE``.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        target: str,
        feature_sizes: Mapping[str, int],
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.types = types_by_depth(relations, target, num_layers)
        self.sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.dropout = dropout
        inputs = sorted(set(feature_sizes) & set(self.types[0]))
        self.project = nn.ModuleDict({name: nn.Linear(feature_sizes[name], in_size) for name in inputs})
        self.layers = nn.ModuleList()
        for (width, next_width), types in zip(pairwise(self.sizes), self.types[1:], strict=True):
            into = [relation for relation in relations if relation[2] in types]
            self.layers.append(RelationalLayer(into, types, width, next_width))
        self.target = target

    def forward(self, blocks: Sequence[Any], rows: Mapping[str, Tensor]) -> Tensor:
        """Logits of the seed nodes: float32 (seeds, out_size).

        Args:
            blocks: message-flow graphs, outermost hop first.
            rows: by type, features or learned rows of the input nodes of ``blocks[0]``; all of ``types[0]``.
        """
        h = dict(rows)
        for depth, block in enumerate(blocks):
            h = self.layer(depth, block, h)
            if depth < len(self.layers) - 1:
                h = {name: F.dropout(value, self.dropout, self.training) for name, value in h.items()}
        return h[self.target]

    def layer(self, depth: int, block: Any, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One layer with its activation and without dropout; what layer-wise inference calls. The first takes rows."""
        if depth == 0:  # of one width for all types: projected features, or learned rows as they are
            h = {name: self.project[name](h[name]) if name in self.project else h[name] for name in self.types[0]}
        found = self.layers[depth](block, h)
        return found if depth == len(self.layers) - 1 else {name: torch.relu(value) for name, value in found.items()}


def types_by_depth(relations: Sequence[Relation], target: str, num_layers: int) -> list[list[str]]:
    """Types that the input and each layer must have rows of; the last entry is ``[target]``."""
    needed = [{target}]
    for _ in range(num_layers):
        needed.append(needed[-1] | {start for start, _, end in relations if end in needed[-1]})
    return [sorted(types) for types in reversed(needed)]
