"""Random numbers that depend on (seed, epoch, rank) alone, so that a resumed run draws what an uninterrupted one draws.

The state of DGL's generators cannot be read, in the trainers nor in the servers, which sample for other machines'
trainers. So no state is saved: at the start of each epoch every generator is seeded anew, and what an epoch draws does
not depend on what was drawn before it.

Exact this is where nothing else is left to chance: with one sampling thread (``TrainConfig.sampling_threads``), and
where the order in which a server answers is given: on up to two machines with one trainer and one server each, without
sampler processes. With more, the requests of several trainers reach a server in an order that chance decides, and its
generator serves them in that order: two uninterrupted runs differ in the same way.
"""

from __future__ import annotations

import os

import dgl
import numpy as np
import torch
from dgl.distributed import rpc
from dgl.distributed.dist_context import is_initialized

from tutorial_lib.batches.rpc import seed_servers
from tutorial_lib.compat.generators import seed_dgl
from tutorial_lib.trainer.comm import alone, barrier, own_rank

SERVERS = 2**20  # ranks from here on stand for servers


def seed_of(*numbers: int) -> int:
    """32 bits that depend on all of the numbers and on their order: where a generator begins that nobody shares."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def derived_seed(seed: int, epoch: int, rank: int) -> int:
    """31 bits (DGL takes a C int) that differ for each epoch and rank."""
    return seed_of(seed, epoch, rank) & 0x7FFFFFFF


def seed_rank(seed: int, rank: int) -> None:
    """Own random numbers for each rank as it begins: else all would draw the same dropout and neighbours.

    Scripts that never call ``start_epoch`` go on from here, so the formula stays what it was.
    """
    own = (seed * 1000 + rank) % 2**31  # DGL takes 32 bits
    torch.manual_seed(own)
    dgl.seed(own)


def reseed(seed: int, epoch: int, rank: int = 0) -> None:
    """Seed this process's generators: torch (order of the seeds, dropout), DGL (sampling), numpy (parts of DGL)."""
    value = derived_seed(seed, epoch, rank)
    torch.manual_seed(value)
    seed_dgl(value)
    np.random.seed(value)


def start_epoch(seed: int, epoch: int) -> None:
    """Seed all trainers and, where there are servers, all servers. Every trainer must call it, between epochs.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    reseed(seed, epoch, own_rank())
    if not alone() and own_rank() == 0 and is_initialized() and os.environ.get("DGL_DIST_MODE") == "distributed":
        seed_servers({k: derived_seed(seed, epoch, SERVERS + k) for k in range(rpc.get_num_server())})
    barrier()  # nobody asks a server before it has been seeded
