"""Lesson 9: the script of a small job. Servers and trainers run the same file; DGL_ROLE tells them apart.

    python -m support.lessons.anatomy_script      with the environment of a server or of a trainer

The trainers join and then wait for questions of the notebook, so that a living cluster can be looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import torch
import torch.distributed as dist
from torch import Tensor

from tutorial_lib.cluster.network import received_by_peer

POLL_SECONDS = 0.05


def main() -> None:
    """After the guide: DGL first, then the process group; LESSON_ORDER turns it round."""
    dgl.seed(0)
    if os.environ.get("LESSON_ORDER") == "torch first":
        dist.init_process_group("gloo")
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # a server never returns from here
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    graph = dgl.distributed.DistGraph(os.environ["LESSON_GRAPH"], part_config=os.environ["DGL_CONF_PATH"])
    answer_questions(graph)
    dist.barrier()
    dist.destroy_process_group()


def answer_questions(graph: Any) -> None:
    """Question k is the file ``k.ask`` with the name of a function; ``k-RANK.pt`` gets what that returns."""
    folder, rank = Path(os.environ["LESSON_FOLDER"]), dist.get_rank()
    (folder / f"joined-{rank}").touch()
    number = 0
    while (task := _question(folder / f"{number}.ask")) != "leave":
        answer = TASKS[task](graph)
        torch.save(answer, folder / f"{number}-{rank}.tmp")
        (folder / f"{number}-{rank}.tmp").rename(folder / f"{number}-{rank}.pt")
        number += 1


def _question(path: Path) -> str:
    while not path.exists():
        time.sleep(POLL_SECONDS)
    return path.read_text()


def in_turn(work: Callable[[], Any]) -> Any:
    """One rank after the other, so that the servers see the same requests in the same order in each run."""
    answer = None
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            answer = work()
        dist.barrier()
    return answer


def one_batch(graph: Any) -> dict[str, Any]:
    """Each rank in its turn: sample two hops around 64 training nodes, then pull the rows of the input nodes."""
    before = received_by_peer()
    dist.barrier()
    batch = in_turn(lambda: sample_and_pull(graph))
    return {**batch, "received": difference(before, received_by_peer())}


def sample_and_pull(graph: Any, fanouts: tuple[int, ...] = (10, 5)) -> dict[str, Any]:
    """Nodes of each hop, edges that were drawn, rows, and what the kernel counted while the rows were pulled."""
    book = graph.get_partition_book()
    seeds = dgl.distributed.node_split(graph.ndata["train_mask"], book, force_even=True)[:64]
    hops, edges = [seeds], []
    for fanout in fanouts:
        frontier = dgl.distributed.sample_neighbors(graph, hops[-1], fanout)
        edges.append(torch.stack(frontier.edges()))
        hops.append(dgl.to_block(frontier, hops[-1]).srcdata[dgl.NID])
    before = received_by_peer()
    rows = graph.ndata["feat"][hops[-1]]
    pulled = difference(before, received_by_peer())
    owners = [book.nid2partid(nodes) for nodes in hops]
    return {"hops": hops, "edges": edges, "owners": owners, "rows": rows, "pulled": pulled}


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Bytes that came in between, by the address that sent them."""
    return {address: count - before.get(address, 0) for address, count in after.items()}


def who_samples(graph: Any) -> dict[str, Any]:
    """The process that makes a mini-batch, and the one that takes it."""
    loader = dgl.distributed.DistDataLoader(torch.arange(4), batch_size=2, collate_fn=_pid_of)
    return {"trainer": os.getpid(), "made by": [pid for pid, _seeds in loader]}


def _pid_of(seeds: Tensor) -> tuple[int, Tensor]:
    return os.getpid(), seeds


TASKS = {task.__name__: task for task in (one_batch, who_samples)}

if __name__ == "__main__":
    main()
