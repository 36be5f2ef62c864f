"""Inside a trainer: join DGL and the process group, open the graph, and leave so that the servers can end."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from tutorial_lib.cluster._torchrun import store_on
from tutorial_lib.cluster.forkserver import fork_as_told
from tutorial_lib.trainer.events import EventWriter, age_of_process, span


def collective_limit() -> timedelta:
    """How long a collective may wait for a rank: ``TUTORIAL_COLLECTIVE_SECONDS``, which the job sets, or 10 minutes."""
    return timedelta(seconds=float(os.environ.get("TUTORIAL_COLLECTIVE_SECONDS", 600)))


@dataclass
class Session:
    """What a trainer knows once it has joined.

    Attributes:
        graph: the opened ``DistGraph``.
        rank, world_size: of this trainer among all trainers.
        machine: name of the machine it runs on.
        events: writer of this trainer's events.
    """

    graph: Any
    rank: int
    world_size: int
    machine: str
    events: EventWriter

    def split(self, mask: Tensor | Any, *, even: bool = True, ntype: str = "_N") -> Tensor:
        """This trainer's share of the nodes that a mask selects. Shares are disjoint and cover the mask.

        Args:
            mask: (N,) ``DistTensor`` of the graph, or a bool tensor; every trainer must pass the same.
            even: shares of nearly equal size, for training; some nodes may belong to another machine's part.
                False: only nodes of this machine's part, for writing rows of a ``DistTensor``.
            ntype: type of the nodes, in a graph with several.

        Returns:
            int64 ids in the partitioned numbering. Even shares still differ by a few nodes, so numbers of
            batches may differ: train under ``Join``.
        """
        import dgl

        book = self.graph.get_partition_book()
        return dgl.distributed.node_split(mask, book, ntype=ntype, force_even=even).long()

    def barrier(self) -> None:
        """Wait for all trainers; a RuntimeError where one is gone, or has not come in ``collective_limit``."""
        dist.barrier()


def serve_if_server(*, graphbolt: bool = False) -> None:
    """In a process that was started as a DGL server: serve until the job ends, then exit. Else return.

    With ``graphbolt``, servers load their parts in GraphBolt's format: 4 bytes for each edge instead of 25, and it has
    no ids of edges. Functions that a server must call (initialisers of a DistTensor, say) must be defined by now.

    In a job that starts its processes by a ``forkserver``, this is where they are forked: what is imported by now, they
    need not import.
    """
    fork_as_told()
    if os.environ.get("DGL_ROLE") == "server":
        import dgl

        # A server answers the requests that it knows: to seed its generator, to send or draw lists of neighbours.
        import tutorial_lib.sampling.rpc  # noqa: F401
        from tutorial_lib.compat.server_sleep import connect_soon

        gc.enable()
        connect_soon()
        dgl.seed(int(os.environ.get("TUTORIAL_SEED", 0)))
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"], use_graphbolt=graphbolt)
        sys.exit(0)


def meet() -> None:
    """The process group of all trainers. Torchrun has a store in which they meet; without it, rank 0 has."""
    limit, how = collective_limit(), {}
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size
        store = store_on(*where, limit, wait_for_workers=False) if rank == 0 else None
        store = store or dist.TCPStore(*where, rank == 0, limit, wait_for_workers=False)
        how = {"store": store, "rank": rank, "world_size": world_size}
    dist.init_process_group("gloo", timeout=limit, **how)


@contextlib.contextmanager
def join(graph_name: str, *, seed: int = 0) -> Iterator[Session]:
    """Join the job that this process was started in (by ``train`` or ``launch``), and leave it at the end.

    An exception in the body (also an exit with a code other than 0) that the program does not catch ends the process at
    once, see ``cluster/hook``: DGL's own exit would wait for all other trainers, which wait for this one.

    Args:
        graph_name: name the graph was partitioned under.
        seed: equal on all ranks; each rank draws its own numbers from it.
    """
    import dgl

    from tutorial_lib.trainer.seeding import seed_rank

    events = EventWriter()
    events.emit("span", name="starting", seconds=age_of_process())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    with span(events.emit, "joining"):
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # connects to every server: it must come first
        meet()
        rank = dist.get_rank()
        seed_rank(seed, rank)
        graph = dgl.distributed.DistGraph(graph_name, part_config=os.environ["DGL_CONF_PATH"])
    session = Session(graph, rank, dist.get_world_size(), os.environ.get("TUTORIAL_MACHINE", "machine-0"), events)
    events.emit("joined", machine=session.machine, client=dgl.distributed.rpc.get_rank())
    try:
        yield session
    except SystemExit as end:
        if end.code not in (0, None):
            sys.exit(end.code)  # through the hook's, which an exit by other means passes by
    dist.barrier()
    leave_process_group()
    events.emit("left", peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    dgl.distributed.exit_client()  # after a barrier: client 0 tells the servers to end


def leave_process_group() -> None:
    """As ``destroy_process_group``, but gloo's part is destroyed at the end of the process, and cannot hang.

    A thread of gloo's may still hold the tensor of the last collective, and needs Python's lock (the GIL) to free it.
    torch (2.2 at least) destroys the group with that lock held, and waits for the thread: for ever. The object kept
    here is destroyed without the lock. Not earlier than at exit: a DistributedDataParallel that is still alive would
    then be the last to let go of the group, with the lock.
    """
    gloo = [cast(Any, dist.group.WORLD)._get_backend(torch.device("cpu"))]
    dist.destroy_process_group()
    atexit.register(gloo.clear)
