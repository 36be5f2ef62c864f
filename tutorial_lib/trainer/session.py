"""The session of a trainer: join DGL and the process group, open the graph, and leave in the right order."""

import contextlib
import gc
import os
import resource
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple, NoReturn

import dgl
import torch
import torch.distributed as dist

import tutorial_lib.sampling.neighbors  # noqa: F401  registers our requests in every server and trainer
from tutorial_lib.compat.settings import shorten_server_sleep
from tutorial_lib.launcher.processes import fork_on_request
from tutorial_lib.trainer.events import EventWriter, span


class Session(NamedTuple):
    """A trainer that has joined its job, with the ``DistGraph`` of the job."""

    graph: dgl.distributed.DistGraph
    rank: int
    world_size: int
    events: EventWriter


def serve_if_server(*, graphbolt: bool = False) -> None:
    """If this process is a DGL server, serve until the job ends and then exit. Otherwise return."""
    fork_on_request()  # a ``forkserver`` forks its processes here. They share the modules imported before
    if os.environ.get("DGL_ROLE") == "server":
        gc.enable()
        shorten_server_sleep()
        dgl.seed(int(os.environ.get("TUTORIAL_SEED", 0)))
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"], use_graphbolt=graphbolt)
        end_process()


@contextlib.contextmanager
def open_session(graph_name: str, *, seed: int = 0) -> Iterator[Session]:
    """Join the job of this process, which ``train`` or ``launch`` started. Afterwards leave it and end the process.

    If the body raises an uncaught exception or exits with a code other than 0, the process ends at once (see
    ``launcher/hook``). DGL's exit handler would wait for the other trainers, which wait for this one.
    """
    events = EventWriter()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=float(os.environ.get("TUTORIAL_COLLECTIVE_SECONDS", 600)))
    with span(events.emit, "joining"):
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # connects to all servers, so it must come first
        store = connect_store(rank, world_size, timeout)
        dist.init_process_group("gloo", timeout=timeout, store=store, rank=rank, world_size=world_size)
        rank_seed = (seed * 1000 + rank) % 2**31  # DGL takes 32 bits
        torch.manual_seed(rank_seed)
        dgl.seed(rank_seed)
        graph = dgl.distributed.DistGraph(graph_name, part_config=os.environ["DGL_CONF_PATH"])
    events.emit("joined", machine=os.environ.get("TUTORIAL_MACHINE", "machine-0"))
    try:
        yield Session(graph, rank, world_size, events)
    except SystemExit as system_exit:
        if system_exit.code not in (0, None):
            sys.exit(system_exit.code)  # calls the hook, which other exits bypass
    dist.barrier()
    events.emit("left", peak_rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    dgl.distributed.exit_client()  # after the barrier, because client 0 sends the servers the request to exit
    end_process()


def end_process() -> NoReturn:
    """End this process without destructors, which take 0.3 s. Those of gloo in torch 2.2 can wait forever."""
    sys.stdout.flush()
    os._exit(0)


def connect_store(rank: int, world_size: int, timeout: timedelta) -> dist.TCPStore:
    """Return the store in which the ranks meet. torch would listen on all interfaces, so rank 0 makes the socket."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.create_server((address, port), backlog=2048) as listener:
            for options in ({}, {"use_libuv": False}):  # torch 2.4 to 2.7 accept the socket only with the second
                with contextlib.suppress(TypeError, NotImplementedError, RuntimeError):
                    fd = os.dup(listener.fileno())
                    arguments = {"wait_for_workers": False, "master_listen_fd": fd, **options}
                    return dist.TCPStore(address, port, world_size, True, timeout, **arguments)
        print("this torch cannot bind its store to one address, so the store listens on all interfaces", flush=True)
    return dist.TCPStore(address, port, world_size, rank == 0, timeout, wait_for_workers=False)
