"""Learn the rows of a DistTensor with sparse Adagrad, on one or several trainers (lesson 02)."""

import os

import torch
import torch.distributed as dist
from dgl.distributed import DistTensor


def uniform(shape, dtype):
    """Return first rows of this shape and dtype, uniform between -b and b for ``b = 1 / sqrt(width)``.

    A server runs this function for the rows of its part. Sample from a new ``torch.Generator`` whose seed is the
    environment variable ``DGL_SERVER_ID`` (0 without it). Servers then create different rows, and each run the same.

    Args:
        shape: tuple or list (rows, width).
    """
    generator = torch.Generator()
    generator.manual_seed(int(os.environ.get("DGL_SERVER_ID", "0")))
    rows = torch.rand(tuple(shape), dtype=dtype, generator=generator)
    return (2 * rows - 1) / shape[1] ** 0.5


def sum_repeated(ids, grads):
    """Return each row once, in ascending order, and the sum of its gradients.

    Args:
        ids: int64 tensor (k,). The same row can occur several times.
        grads: float32 tensor (k, width), the gradient for each entry of ``ids``.

    Returns:
        Tensors (rows,) and (rows, width).
    """
    rows, places = ids.unique(return_inverse=True)
    sums = torch.zeros(len(rows), grads.shape[1])
    sums.index_add_(0, places, grads)
    return rows, sums


def adagrad_step(weight, memory, ids, grads, lr, eps=1e-10):
    """Apply one step of Adagrad to the rows in ``ids``, and neither read nor write another row.

    Add the square of a row's gradient to its row of ``memory``. Then subtract ``lr * gradient / (sqrt(memory) + eps)``
    from its row of ``weight``. If a row occurs several times, its gradient is the sum.

    Args:
        weight, memory: DistTensors (N, width). Reading rows returns a copy, so the function must write them.
        ids, grads: as in ``sum_repeated``. They can be empty.
    """
    rows, grads = sum_repeated(ids, grads)
    squares = memory[rows] + grads**2
    memory[rows] = squares
    steps = lr * grads / (squares.sqrt() + eps)
    weight[rows] = weight[rows] - steps


def collect_trace(emb):
    """Return the IDs (k,) and gradients (k, width) of all reads since the last step, and remove the reads.

    If no read has a gradient, k is 0, the width is ``emb.embedding_dim``, and the dtypes remain int64 and float32.

    Args:
        emb: DistEmbedding. ``emb._trace`` has a pair (ids, rows) for each call ``emb(ids)``, and ``rows.grad`` is None
            if no loss used the rows. Ignore such reads. ``emb.reset_trace()`` removes all reads.
    """
    ids = [torch.zeros(0, dtype=torch.int64)]
    grads = [torch.zeros(0, emb.embedding_dim)]
    for read, rows in emb._trace:
        if rows.grad is not None:
            ids.append(read)
            grads.append(rows.grad)
    emb.reset_trace()
    return torch.cat(ids), torch.cat(grads)


def exchange(ids, grads):
    """Return the IDs and gradients of all ranks for the rows that this rank updates.

    Rank ``id % world_size`` updates row ``id``, so that each row has one writer. ``dist.all_gather_object(values, x)``
    replaces the items of ``values``, a list of length ``world_size``, by the objects ``x`` of all ranks.
    """
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, (ids, grads))
    all_ids = torch.cat([ids for ids, _ in values])
    all_grads = torch.cat([grads for _, grads in values])
    mine = all_ids % len(values) == dist.get_rank()
    return all_ids[mine], all_grads[mine]


class SparseAdagrad:
    """Sparse Adagrad for a DistEmbedding. All trainers create it and call ``step`` equally often."""

    def __init__(self, emb, lr):
        self.emb, self.lr = emb, lr
        self.memory = DistTensor(emb.weight.shape, torch.float32, name=f"{emb.name}_squares")

    def zero_grad(self):
        """Forget the reads since the last step."""
        self.emb.reset_trace()

    def step(self):
        """Collect the gradients of ``self.emb``, exchange them, and update the rows of this rank.

        Then wait with ``dist.barrier()`` until all ranks have written, so that the next read returns the new rows.
        """
        ids, grads = collect_trace(self.emb)
        ids, grads = exchange(ids, grads)
        adagrad_step(self.emb.weight, self.memory, ids, grads, self.lr)
        dist.barrier()
