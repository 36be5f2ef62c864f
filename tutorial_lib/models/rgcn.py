"""R-GCN, a graph network with separate weights for each relation (Schlichtkrull et al., 2018).

    h'(v) = W_t h(v) + b_t + sum over relations r into the type t of v of  W_r (mean of h over v's neighbors in r)

If a batch has no edge of a relation, the mean and the gradient of W_r are zero. DDP would wait for a missing gradient.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from dgl.heterograph import DGLBlock
from torch import Tensor, nn

from tutorial_lib.models.graphsage import CscBlock, mean_of_neighbors

Relation = tuple[str, str, str]  # source type, name, destination type (DGL's canonical edge type)
Rows = Mapping[str, Tensor]  # by type, float32 (source nodes of the block, in_size)


class RelationalLayer(nn.Module):
    """One layer of R-GCN for the relations into the types ``outputs``."""

    def __init__(self, relations: Sequence[Relation], outputs: Sequence[str], in_size: int, out_size: int) -> None:
        super().__init__()
        self.relations = sorted(relation for relation in relations if relation[2] in outputs)
        self.outputs = sorted(outputs)
        self.matrices = nn.Parameter(torch.empty(len(self.relations), in_size, out_size))  # ordered as ``relations``
        for matrix in self.matrices.detach():
            nn.init.xavier_uniform_(matrix)
        self.own = nn.ModuleDict({ntype: nn.Linear(in_size, out_size) for ntype in self.outputs})

    def forward(self, block: DGLBlock, h: Rows) -> dict[str, Tensor]:
        """Return the new rows of the destination nodes of a DGL block, which are its first source nodes, by type."""
        rows = {ntype: self.own[ntype](h[ntype][: block.num_dst_nodes(ntype)]) for ntype in self.outputs}
        present = set(block.canonical_etypes)  # a batch of a DistGraph lacks the relations without edges
        for relation, weight in zip(self.relations, self.matrices, strict=True):
            source, _, destination = relation
            if relation in present:
                mean = mean_of_neighbors(CscBlock.from_block(block, relation), h[source])
            else:  # zeros that depend on the rows, so that every learnable row and weight gets a gradient
                mean = h[source][:0].sum(0).expand(block.num_dst_nodes(destination), -1)
            rows[destination] = rows[destination] + mean @ weight
        return rows


class RGCN(nn.Module):
    """R-GCN whose last layer returns the logits of the nodes of the type ``target``."""

    def __init__(
        self,
        relations: Sequence[Relation],  # relations without a path to ``target`` are ignored
        target: str,
        feature_sizes: Mapping[str, int],  # width of the features of each type that has some, projected to ``in_size``
        in_size: int,  # width of the learnable embeddings of the other types
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.target, self.dropout = target, dropout
        self.types = types_by_depth(relations, target, num_layers)
        self.sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        inputs = sorted(set(feature_sizes) & set(self.types[0]))
        self.project = nn.ModuleDict({ntype: nn.Linear(feature_sizes[ntype], in_size) for ntype in inputs})
        pairs = zip(pairwise(self.sizes), self.types[1:], strict=True)
        self.layers = nn.ModuleList(RelationalLayer(relations, types, *widths) for widths, types in pairs)

    def forward(self, blocks: Sequence[DGLBlock], h: Rows) -> Tensor:
        """Return the logits of the seeds from DGL blocks, outermost hop first, and the rows of ``types[0]``."""
        for depth, block in enumerate(blocks):
            h = self.layer(depth, block, h)
        return h[self.target]

    def layer(self, depth: int, block: DGLBlock, h: Rows) -> dict[str, Tensor]:
        """Apply one layer, its activation and dropout. The first layer projects features to ``in_size``."""
        if depth == 0:
            h = {ntype: self.project[ntype](h[ntype]) if ntype in self.project else h[ntype] for ntype in self.types[0]}
        new = self.layers[depth](block, h)
        if depth == len(self.layers) - 1:
            return new
        return {ntype: F.dropout(torch.relu(rows), self.dropout, self.training) for ntype, rows in new.items()}


def types_by_depth(relations: Sequence[Relation], target: str, num_layers: int) -> list[list[str]]:
    """Return the types whose rows the input and each layer need. The last entry is ``[target]``."""
    needed = [{target}]
    for _ in range(num_layers):
        needed.append(needed[-1] | {source for source, _, destination in relations if destination in needed[-1]})
    return [sorted(types) for types in reversed(needed)]
