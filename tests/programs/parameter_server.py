"""A parameter server in the style of a torchrun program: rank 0 has the weight and its snapshots, other ranks train.

``parameter_server.py STEPS [FAILING]``: the last rank raises an exception in step FAILING.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import rpc

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SNAPSHOT = Path("snapshot.pt")
state = {"weight": torch.zeros(1), "step": 0}


def read_state() -> dict:
    """Return the weight and the number of finished steps. Runs on the server."""
    return state


def update(gradient: torch.Tensor) -> None:
    """Make a step and write a snapshot. Runs on the server."""
    state.update(weight=state["weight"] - 0.1 * gradient, step=state["step"] + 1)
    torch.save(state, SNAPSHOT.with_suffix(".new"))
    SNAPSHOT.with_suffix(".new").replace(SNAPSHOT)


def train(steps: int, failing: int, trainers: dist.ProcessGroup) -> None:
    """Average the gradients over the trainers. The first trainer sends them to the server."""
    while (found := rpc.rpc_sync("rank0", read_state))["step"] < steps:
        if RANK == WORLD_SIZE - 1 and found["step"] == failing:
            raise ValueError(f"no batch in step {failing}")
        gradient = found["weight"] - RANK * (found["step"] + 1)
        dist.all_reduce(gradient, group=trainers)
        if RANK == 1:
            rpc.rpc_sync("rank0", update, args=(gradient / (WORLD_SIZE - 1),))
        dist.barrier(group=trainers)


group, local, size = (int(os.environ[name]) for name in ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
assert group * size + local == RANK
if RANK == 0 and SNAPSHOT.exists():
    state = torch.load(SNAPSHOT)
    print(f"continues after step {state['step']}", flush=True)
dist.init_process_group("gloo")
rpc.init_rpc(f"rank{RANK}", rank=RANK, world_size=WORLD_SIZE)
members = dist.new_group(range(1, WORLD_SIZE))
if RANK > 0:
    train(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1, members)
rpc.shutdown()
dist.destroy_process_group()
if RANK == 0:
    print(f"weight {state['weight'].item():.6f}", flush=True)
