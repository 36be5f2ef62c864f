<<<<<<< HEAD
"""A cache for the rows of other machines: ``g.ndata["feat"] = RowCache(g.ndata["feat"], book, capacity)``."""

import torch


class RowCache:
    """Reads like a DistTensor that nobody writes to. A remote row stays when it has come, while there is room."""

    def __init__(self, tensor, book, capacity):
        self.tensor, self.book, self.shape = tensor, book, tensor.shape
        self.rows = torch.empty(capacity, *tensor.shape[1:], dtype=tensor.dtype)
        self.place = torch.full((len(tensor),), -1)  # of a node's row in ``rows``; -1: not there
        self.kept = self.asked = self.found = 0

    def keep(self, ids, rows):
        """Take in as many of these rows as there is room for."""
        room = min(len(ids), len(self.rows) - self.kept)
        new = torch.arange(self.kept, self.kept + room)
        self.rows[new], self.place[ids[:room]] = rows[:room], new
        self.kept += room

    def __getitem__(self, ids):
        here = self.place[ids] >= 0
        result = torch.empty(len(ids), *self.shape[1:], dtype=self.rows.dtype)
        result[here] = self.rows[self.place[ids[here]]]
        others = ids[~here]
        result[~here] = came = self.tensor[others]  # own rows out of shared memory, the rest over the wire
        remote = self.book.nid2partid(others) != self.book.partid
        self.found += int(here.sum())
        self.asked += int(here.sum() + remote.sum())
        self.keep(others[remote], came[remote])
        return result
=======
"""A learned row for each node, on the machine of its node: ``from rows import Rows, SparseSteps``."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, node_split, optim
from torch.distributed.algorithms.join import Joinable, JoinHook


class Rows:
    """A DistEmbedding and its optimiser. Every rank must make it, and call save and load, at the same time."""

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
        """Each rank writes its rows; DGL's optimiser writes their state. Both names end with the rank's number."""
        if args.checkpoint:
            torch.save(self.table.weight[self.mine], f"{args.checkpoint}-{epochs}-rows_{dist.get_rank()}")
            self.optimizer.save(f"{args.checkpoint}-{epochs}-state")  # waits for all ranks at its end

    def load(self, args, epochs):
        if epochs:
            self.table.weight[self.mine] = torch.load(f"{args.checkpoint}-{epochs}-rows_{dist.get_rank()}")
            self.optimizer.load(f"{args.checkpoint}-{epochs}-state")


class SparseSteps(Joinable):
    """Tells Join that the step of a sparse optimiser is a collective, too."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def join_hook(self, **_options):
        return Answer(self.optimizer)

    @property
    def join_device(self):
        return self.model.join_device

    @property
    def join_process_group(self):
        return self.model.join_process_group


class Answer(JoinHook):
    """What a rank without batches does in each step of the others."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def main_hook(self):
        self.optimizer.zero_grad()  # forget the last batch of this rank
        self.optimizer.step()  # and take part: others may send gradients of rows that lie here


def share_state(optimizer, rank):
    """Give all ranks what the dense optimiser of one of them remembers."""
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state, src=rank)
    optimizer.load_state_dict(state[0])
>>>>>>> l13
