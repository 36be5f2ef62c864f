"""Random numbers that depend on (seed, epoch, step, rank) alone.

The state of DGL's generators cannot be read, neither in the trainers nor in the servers, which sample for the trainers
of other machines. Therefore no state is saved. The loaders and the loop seed their generators before each step, and
rank 0 seeds the servers before each epoch. A resumed run then samples the batches of an uninterrupted run.

This is exact with one sampling thread, and where no server samples or the request carries a seed, see
``rpc.SampleRequest``. DGL's own requests carry none. A server's generator serves them in their order of arrival, which
varies between runs if several trainers send requests, and it cannot return to the middle of an epoch.
"""

from __future__ import annotations

import os

import dgl
import numpy as np
import torch
from dgl.distributed import rpc
from dgl.distributed.dist_context import is_initialized

from tutorial_lib.compat.generators import derive_seed, seed_dgl
from tutorial_lib.sampling.rpc import seed_servers as seed_dgl_servers
from tutorial_lib.trainer.comm import alone, own_rank

SERVERS = 2**20  # ranks from here on stand for servers


def seed_rank(seed: int, rank: int) -> None:
    """Seed the generators of a rank at its start. The formula is stable, so that older scripts repeat their results."""
    own = (seed * 1000 + rank) % 2**31  # DGL takes 32 bits
    torch.manual_seed(own)
    dgl.seed(own)


def seed_all(seed: int, epoch: int, step: int, rank: int) -> None:
    """Seed the generators of torch, DGL and numpy for one step."""
    value = derive_seed(seed, epoch, step, rank)
    torch.manual_seed(value)
    seed_dgl(value)
    np.random.seed(value)


def seed_servers(seed: int, epoch: int) -> None:
    """Seed the generators of all DGL servers. Rank 0 sends the requests. Wait for a barrier before you sample.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    distributed = is_initialized() and os.environ.get("DGL_DIST_MODE") == "distributed"
    if not alone() and own_rank() == 0 and distributed:
        seed_dgl_servers({k: derive_seed(seed, epoch, SERVERS + k) for k in range(rpc.get_num_server())})
