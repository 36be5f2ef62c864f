"""A learned row for each node, on the machine of its node: ``from rows import Rows, SparseSteps``."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, node_split, optim
from torch.distributed.algorithms.join import Joinable, JoinHook


class Rows:
    """A DistEmbedding and its optimizer. Every rank must make it, and call save and load, at the same time."""

    def __init__(self, g, args):
        policy, name = g.get_node_partition_policy("_N"), f"learned-{args.seed}"
        self.table = DistEmbedding(g.num_nodes(), args.width, name=name, part_policy=policy)
        self.optimizer = optim.SparseAdam([self.table], lr=args.rows_lr)
        everyone = torch.ones(g.num_nodes(), dtype=torch.bool)
        self.mine = node_split(everyone, g.get_partition_book(), force_even=False)  # on this machine, a share of them
        self.table.weight[self.mine] = self.first_values(args)[self.mine]
        dist.barrier()  # nobody reads a row before it has its first value

    def first_values(self, args):
        """Of all nodes, in the order of this partition. A node's row does not depend on how the graph was cut."""
        node_map = np.load(Path(args.part_config).with_name("node_map.npy"))
        generator = torch.Generator().manual_seed(args.seed)
        return 0.1 * torch.randn(len(node_map), args.width, generator=generator)[node_map]

    def save(self, args, epochs):
        """Each rank writes its rows; DGL's optimizer writes their state. Both names end with the rank's number."""
        if args.checkpoint:
            torch.save(self.table.weight[self.mine], f"{args.checkpoint}-{epochs}-rows_{dist.get_rank()}")
            self.optimizer.save(f"{args.checkpoint}-{epochs}-state")  # waits for all ranks at its end

    def forget(self, args, epochs):
        """Each rank deletes its files of fewer epochs, when all ranks have come here."""
        dist.barrier()
        for old in range(1, epochs if args.checkpoint else 0):
            for kind in ("rows", "state"):
                Path(f"{args.checkpoint}-{old}-{kind}_{dist.get_rank()}").unlink(missing_ok=True)

    def load(self, args, epochs):
        if epochs:
            self.table.weight[self.mine] = torch.load(f"{args.checkpoint}-{epochs}-rows_{dist.get_rank()}")
            self.optimizer.load(f"{args.checkpoint}-{epochs}-state")


class SparseSteps(Joinable, JoinHook):
    """Tells Join that the step of a sparse optimizer is a collective, too."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def join_hook(self, **_options):
        return self

    def main_hook(self):
        """What a rank without batches does in each step of the others."""
        self.optimizer.zero_grad()  # forget the last batch of this rank
        self.optimizer.step()  # and take part: others may send gradients of rows that lie here

    @property
    def join_device(self):
        return self.model.join_device

    @property
    def join_process_group(self):
        return self.model.join_process_group


def share_state(optimizer, rank):
    """Give all ranks what the dense optimizer of one of them remembers."""
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state, src=rank)
    optimizer.load_state_dict(state[0])
