"""A model for the tests of pieces that train."""

import torch
from torch import nn


class Scores(nn.Module):
    """A model whose parameters are the scores of six nodes in three classes, by default zeros."""

    def __init__(self, weight=None, mode=True):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 3) if weight is None else weight)
        self.mode = mode  # True for training, False for evaluation

    def forward(self, blocks, x):
        """Return the scores of the nodes whose one-hot rows are in x. If there are blocks, only of the seed nodes."""
        assert self.training is self.mode, "the model is in the wrong mode, so call model.train() or model.eval()"
        return (x[: blocks[-1].num_dst_nodes()] if blocks else x) @ self.weight

    def inference(self, _graph, x):
        return x[torch.arange(6)] @ self.weight.detach()
