"""On every machine: two trainers and the same learned row. ``python`` this, GRAPH, OUT.

Rank 0 is on machine 0, which keeps node 0's row. Both ranks want to change it in the same step.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import torch
import torch.distributed as dist
from torch import Tensor

from tutorial_lib.job.launch import LaunchRequest, launch
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.checkpoint import optimizer_tensors
from tutorial_lib.trainer.session import open_session, serve_if_server

WIDTH = 4


def new_rows(graph: Any, name: str) -> Any:
    """A ``DistEmbedding`` of zeros, a row for each node; every rank must call it."""
    policy = graph.get_node_partition_policy("_N")
    rows = dgl.distributed.DistEmbedding(graph.num_nodes(), WIDTH, name=name, part_policy=policy)
    dist.barrier()
    return rows


def step_together(graph: Any, gradients: list[float | None], optimizer_class: Callable[..., Any]) -> dict[str, float]:
    """Node 0's row and the state of its optimizer after one step of all ranks.

    Args:
        gradients: of each rank, for each number of the row; None: the rank has no batch that needs it.
    """
    rows = new_rows(graph, "shared")
    optimizer = optimizer_class([rows], lr=1.0)
    gradient = gradients[dist.get_rank()]
    optimizer.zero_grad()
    if gradient is not None:
        (gradient * rows(torch.tensor([0]))).sum().backward()
    optimizer.step()  # every rank: it is a collective
    state = optimizer_tensors(optimizer)
    found = {"row": rows.weight, **{name.removeprefix("shared_"): tensor for name, tensor in state.items()}}
    return {name: first_number(store) for name, store in found.items()}


def first_number(store: Any) -> float:
    """Of node 0's row."""
    return float(store[torch.tensor([0])].flatten()[0])


def write_together(graph: Any, changes: list[float]) -> float:
    """The row of a ``DistTensor`` that every rank has read, changed and written back."""
    table = dgl.distributed.DistTensor(
        (graph.num_nodes(), WIDTH), torch.float32, name="by-hand", part_policy=graph.get_node_partition_policy("_N")
    )
    dist.barrier()
    row: Tensor = table[torch.tensor([0])]
    dist.barrier()  # all have read before anyone writes
    table[torch.tensor([0])] = row + changes[dist.get_rank()]
    dist.barrier()
    return first_number(table)


def run_rows_script(part: Partition, out: Path) -> dict[str, Any]:
    """Run this script on two emulated machines with a trainer each; what it found, by experiment.

    Raises:
        JobFailed: with the first cause.
    """
    out.mkdir(exist_ok=True)
    request = LaunchRequest(
        command=[sys.executable, __file__, part.graph_name, str(out / "found.json")],
        workspace=out,
        part_config=part.config,
        ip_config=Path("ip_config.txt"),  # does not exist yet: launch writes it
        out=out / "logs",
        emulate=part.report.parts,
        num_omp_threads=1,
    )
    launch(request)
    return json.loads((out / "found.json").read_text())


def main(graph_name: str, out: str) -> None:
    """Serve, or run every experiment; rank 0, beside the row, writes what came out."""
    serve_if_server()
    optim = dgl.distributed.optim
    with open_session(graph_name) as session:
        graph = session.graph
        found = {
            "both ranks": step_together(graph, [2.0, 6.0], optim.SparseAdam),
            "rank 0 alone": step_together(graph, [2.0, None], optim.SparseAdam),
            "Adagrad": step_together(graph, [2.0, 6.0], optim.SparseAdagrad),
            "by hand": write_together(graph, [2.0, 6.0]),
        }
        if session.rank == 0:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
