"""A second solution of checkpoint.py, written from its docstrings and public tests."""

import os
from pathlib import Path

import torch
import torch.distributed as dist


def write(path, state):
    if dist.get_rank() == 0:
        with open(f"{path}.new", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
    dist.barrier()


def read(path):
    found = [None]
    if dist.get_rank() == 0 and Path(path).exists():
        found = [torch.load(path, map_location="cpu")]
    dist.broadcast_object_list(found)
    return found[0]


def settings(task):
    found = {name: value for name, value in vars(task.args).items() if name not in FREE}
    found["ranks"] = dist.get_world_size()
    found["nodes"], found["edges"] = task.g.num_nodes(), task.g.num_edges()
    return found


def save(task, epochs):
    if task.args.checkpoint:
        model, optimizer = task.model.module.state_dict(), task.optimizers[0].state_dict()
        state = {"model": model, "optimizer": optimizer, "epochs": epochs, "settings": settings(task)}
        write(task.args.checkpoint, state)


def resume(task):
    state = read(task.args.checkpoint) if task.args.checkpoint else None
    if state is None:
        return []
    pairs = {name: (value, state["settings"].get(name)) for name, value in settings(task).items()}
    changed = [f"{name} is {now}, and was {then}" for name, (now, then) in pairs.items() if now != then]
    if changed:
        raise ValueError(", ".join(changed))
    task.model.module.load_state_dict(state["model"])
    task.optimizers[0].load_state_dict(state["optimizer"])
    return state["epochs"]
