"""Store learnable rows on the machines of a job, and update them as one process would (lesson 14)."""

import os

import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding
from dgl.distributed.optim import SparseAdam

from embedding_updates import collect_trace, sum_repeated
from job import is_standalone


def first_rows(ids, width, seed, chunk=4096):
    """Return the first rows of nodes, float32 (M, width), normally distributed with standard deviation 0.1.

    The row of a node depends only on its ID, ``seed`` and ``width``, so it is the same in every partition. Different
    nodes have different rows. Create a ``torch.Generator`` for each chunk of ``chunk`` consecutive IDs, so that the
    memory never holds all rows. Its seed depends on ``seed`` and the chunk. Only the low 32 bits of this seed matter.

    Args:
        ids: int64 tensor (M,) of original IDs, in any order.
    """
    rows = torch.empty(len(ids), width)
    for start in range(0, int(ids.max()) + 1, chunk):
        inside = (ids >= start) & (ids < start + chunk)
        generator = torch.Generator().manual_seed(1_000_003 * seed + start)
        rows[inside] = 0.1 * torch.randn(chunk, width, generator=generator)[ids[inside] - start]
    return rows


def make_table(g, nodes, width, seed):
    """Return a ``DistEmbedding`` (N, width) with the name "rows", which contains ``first_rows``.

    The table has the partition policy of the nodes ("_N"), so each machine stores the rows of its nodes. Every rank
    writes the rows of ``nodes`` to ``table.weight``. The original IDs of the nodes are in ``g.ndata["original"]``. No
    rank returns before all ranks have written, because a batch also reads rows of other ranks.

    Args:
        nodes: int64 tensor, the nodes whose first rows this rank writes.
    """
    table = DistEmbedding(g.num_nodes(), width, name="rows", part_policy=g.get_node_partition_policy("_N"))
    table.weight[nodes] = first_rows(g.ndata["original"][nodes], width, seed)
    dist.barrier()
    return table


class RowAdam(SparseAdam):
    """DGL's ``SparseAdam``, but with the gradients of one process, on any number of ranks, also without servers."""

    def update(self, ids, grads, table):
        """Update rows by their gradient, which is the sum over all ranks, divided by ``self._world_size``.

        ``sum_repeated`` of lesson 02 adds the gradients of a repeated row. ``SparseAdam.update`` then receives each row
        once. SparseAdam alone divides by the number of ranks that have read the row.

        Args:
            ids: int64 tensor (k,), which can be empty. A row occurs once for each rank that has read it.
            grads: float32 tensor (k, width).
        """
        rows, sums = sum_repeated(ids, grads)
        super().update(rows, sums / self._world_size, table)

    def step(self):
        """Update the rows that any rank has read since the last step. All ranks call this method.

        On machines, ``SparseAdam.step`` sends each gradient to a rank on the machine of the row, which calls
        ``update``. If ``is_standalone()``, each rank has the whole table. Then gather the reads of all ranks
        (``collect_trace`` of lesson 02, ``dist.all_gather_object``) and call ``update`` once on every rank with the
        reads in the order of the ranks. All tables stay equal. ``self._params`` is a list with the table.
        """
        if is_standalone():
            (table,) = self._params
            reads = [None] * dist.get_world_size()
            dist.all_gather_object(reads, collect_trace(table))
            ids, grads = (torch.cat(parts) for parts in zip(*reads))
            self.update(ids, grads, table)
        else:
            super().step()


def write_rows(path, tensors, nodes):
    """Write the rows of ``nodes`` of some DistTensors to the file ``path`` and flush it to the disk (``os.fsync``).

    The file is a list of tensors in the same order. Each rank writes a file with another name. No rank returns before
    the files of all ranks are complete.
    """
    with open(path, "wb") as file:
        torch.save([tensor[nodes] for tensor in tensors], file)
        file.flush()
        os.fsync(file.fileno())
    dist.barrier()


def read_rows(path, tensors, nodes):
    """Read a file of ``write_rows`` into the DistTensors. No rank returns before all ranks have written their rows."""
    for tensor, rows in zip(tensors, torch.load(path)):
        tensor[nodes] = rows
    dist.barrier()
