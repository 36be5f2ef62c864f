"""Lesson 2: what two trainers see of one DistTensor, and how an initialiser that a server lacks ends a job.

``python -m support.lessons.collective GRAPH`` is the program of both trainers and of the server. ``run_job``
starts it on this machine and brings home what each rank saw.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.lessons.machines import plan_in
from tutorial_lib.cluster.coordinator import Coordinator, JobFailed, Limits
from tutorial_lib.cluster.local import LocalCluster, free_ports
from tutorial_lib.errors import InputError
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.session import Session, join, serve_if_server

DELAY = 1.5  # seconds that rank 1 comes later than rank 0
PATIENCE = 30.0  # seconds to wait for another job on this computer to end
Initializer = Callable[[Any, torch.dtype], torch.Tensor]


def ones(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """An initialiser that a server has: it is part of the module, above the call of ``serve_if_server``."""
    return torch.ones(tuple(shape), dtype=dtype)


def create_together(session: Session) -> Any:
    """Rank 1 comes late; rank 0 measures how long the constructor held it."""
    import dgl

    session.barrier()
    if session.rank == 1:
        time.sleep(DELAY)
    start = time.monotonic()
    tensor = dgl.distributed.DistTensor((session.graph.num_nodes(), 1), torch.float32, name="shared", init_func=ones)
    session.events.emit("created", waited=time.monotonic() - start, first_row=tensor[[0]].tolist())
    return tensor


def write_and_read(session: Session, tensor: Any) -> None:
    """Rank 0 writes 7 into a DistTensor and into a plain tensor of ``ndata``; both ranks read."""
    session.graph.ndata["plain"] = torch.ones(session.graph.num_nodes(), 1)
    if session.rank == 0:
        tensor[[3]] = torch.tensor([[7.0]])
        session.graph.ndata["plain"][[3]] = torch.tensor([[7.0]])
    session.barrier()
    session.events.emit("read", dist_tensor=tensor[[3]].item(), plain=session.graph.ndata["plain"][[3]].item())


def add_one(session: Session, tensor: Any) -> None:
    """Both ranks add 1 to row 5, as ``tensor[[5]] += 1`` would. The barriers make them meet at the worst moment."""
    before = tensor[[5]]
    session.barrier()
    tensor[[5]] = before + 1
    session.barrier()
    session.events.emit("added", before=before.item(), after=tensor[[5]].item())


def add_one_safely(session: Session, tensor: Any) -> None:
    """The ranks first add up what they want to add; then one of them writes."""
    wanted = torch.ones(1, 1)
    dist.all_reduce(wanted)
    before = tensor[[6]]
    session.barrier()
    if session.rank == 0:
        tensor[[6]] = before + wanted
    session.barrier()
    session.events.emit("added safely", before=before.item(), after=tensor[[6]].item())


def write_a_number(session: Session, tensor: Any) -> None:
    """Standalone, one number for all rows is accepted; here it is not."""
    try:
        tensor[[0, 1]] = 2.0
    except Exception as error:
        session.events.emit("number", error=f"{type(error).__name__}: {error}")


def main(graph_name: str, late: Initializer) -> None:
    """What each trainer does. The last line ends the server, and with it the job."""
    import dgl

    with join(graph_name) as session:
        tensor = create_together(session)
        write_and_read(session, tensor)
        add_one(session, tensor)
        add_one_safely(session, tensor)
        write_a_number(session, tensor)
        dgl.distributed.DistTensor((session.graph.num_nodes(), 1), torch.float32, name="late", init_func=late)


def _enter_when_free(stack: contextlib.ExitStack) -> LocalCluster:
    """This computer as a cluster; waits a while if another job is using it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return stack.enter_context(LocalCluster())
        except InputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def run_job(part: Partition, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Run this module as one server and two trainers on this computer.

    Args:
        part: a partition with one part.
        folder: an empty folder for the address file and the logs.

    Returns:
        The events of the ranks, by rank, each rank's in the order they happened; and the cause that ended the job.

    Raises:
        InputError: another DGL job still uses this computer's shared memory after half a minute.
    """
    with contextlib.ExitStack() as stack:
        cluster = _enter_when_free(stack)
        command = [sys.executable, "-m", "support.lessons.collective", part.graph_name]
        plan = plan_in(folder, cluster.machines, part, command, master_port=free_ports(1), trainers=2)
        coordinator = Coordinator(cluster, plan, limits=Limits(serving=60, job=60))
        cause = "none"
        try:
            coordinator.run()
        except JobFailed as failure:
            cause = str(failure)
    return sorted((e for e in coordinator.events if "rank" in e), key=lambda event: event["rank"]), cause


if __name__ == "__main__":
    serve_if_server()  # a server stays in here until the job ends

    def late_ones(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """The same as ``ones``, but only a trainer ever gets to this line."""
        return torch.ones(tuple(shape), dtype=dtype)

    main(sys.argv[1], late_ones)
