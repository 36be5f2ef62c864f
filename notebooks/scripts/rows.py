"""Learnable embeddings, stored on the machine of each node. Use ``from rows import Rows, SparseSteps``."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, node_split, optim
from torch.distributed.algorithms.join import Joinable, JoinHook


class Rows:
    """A DistEmbedding and its optimizer. All ranks must call the constructor, ``save`` and ``load`` together."""

    def __init__(self, g, args):
        policy, name = g.get_node_partition_policy("_N"), f"learned-{args.seed}"
        self.table = DistEmbedding(g.num_nodes(), args.width, name=name, part_policy=policy)
        self.optimizer = optim.SparseAdam([self.table], lr=args.rows_lr)
        everyone = torch.ones(g.num_nodes(), dtype=torch.bool)
        self.mine = node_split(everyone, g.get_partition_book(), force_even=False)  # a share of the machine's nodes
        self.table.weight[self.mine] = self.first_values(args)[self.mine]
        dist.barrier()  # all rows must be initialized before a rank reads them

    def first_values(self, args):
        """Return initial rows of all nodes in partition order. The row of a node is the same for every partition."""
        node_map = np.load(Path(args.part_config).with_name("node_map.npy"))
        generator = torch.Generator().manual_seed(args.seed)
        return 0.1 * torch.randn(len(node_map), args.width, generator=generator)[node_map]

    def save(self, args, epochs):
        """Write the rows of this rank. DGL's optimizer writes their state. Both file names end with the rank."""
        if args.checkpoint:
            torch.save(self.table.weight[self.mine], f"{args.checkpoint}-{epochs}-rows_{dist.get_rank()}")
            self.optimizer.save(f"{args.checkpoint}-{epochs}-state")  # waits for all ranks at the end

    def forget(self, args, epochs):
        """Delete the files of this rank with fewer epochs, after all ranks have called this function."""
        dist.barrier()
        for old in range(1, epochs if args.checkpoint else 0):
            for kind in ("rows", "state"):
                Path(f"{args.checkpoint}-{old}-{kind}_{dist.get_rank()}").unlink(missing_ok=True)

    def load(self, args, epochs):
        if epochs:
            self.table.weight[self.mine] = torch.load(f"{args.checkpoint}-{epochs}-rows_{dist.get_rank()}")
            self.optimizer.load(f"{args.checkpoint}-{epochs}-state")


class SparseSteps(Joinable, JoinHook):
    """Add the step of a sparse optimizer to Join, because the step is a collective operation."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def join_hook(self, **_options):
        return self

    def main_hook(self):
        """Take part in a step of the other ranks after this rank has processed all of its batches."""
        self.optimizer.zero_grad()  # discard the last batch of this rank
        self.optimizer.step()  # other ranks can send gradients for rows on this machine

    @property
    def join_device(self):
        return self.model.join_device

    @property
    def join_process_group(self):
        return self.model.join_process_group


def share_state(optimizer, rank):
    """Copy the state of the dense optimizer from one rank to all ranks."""
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state, src=rank)
    optimizer.load_state_dict(state[0])
