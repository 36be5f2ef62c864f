"""Write a checkpoint that is complete at all times, and resume a job with the same losses (lesson 11)."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

FREE = {"num_epochs", "out", "best", "checkpoint", "ip_config", "part_config", "cache", "eval_every"}  # can change


def write(path, state):
    """Write the state to the file ``path`` on the machine of rank 0. All ranks call this function.

    Rank 0 writes a new file, flushes it to the disk (``os.fsync``), and renames it with ``os.replace``. So ``path``
    contains a complete state at all times. No rank returns before the rename.
    """
    if dist.get_rank() == 0:
        with open(f"{path}.new", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
    dist.barrier()


def read(path):
    """Return the state in the file ``path`` on all ranks, or None if this file does not exist.

    Only the machine of rank 0 has the file. Rank 0 reads it to the CPU and broadcasts the state.
    """
    state = [None]
    if dist.get_rank() == 0 and Path(path).exists():
        state = [torch.load(path, map_location="cpu")]
    dist.broadcast_object_list(state)
    return state[0]


def settings(task):
    """Return the options that must be equal in all starts of a job, and the number of ranks, as a dict."""
    fixed = {name: value for name, value in vars(task.args).items() if name not in FREE}
    return {**fixed, "ranks": dist.get_world_size()}


def save(task, epochs):
    """Write the model, the dense optimizer and the completed epochs if the option --checkpoint names a file.

    The keys are "model", "optimizer" (``state_dict`` of ``task.model.module`` and of ``task.optimizers[0]``), "epochs"
    (a list with a dict for each epoch) and "settings".
    """
    if task.args.checkpoint:
        model, optimizer = task.model.module.state_dict(), task.optimizers[0].state_dict()
        state = {"model": model, "optimizer": optimizer, "epochs": epochs, "settings": settings(task)}
        write(task.args.checkpoint, state)


def resume(task):
    """Load the checkpoint, if it exists, into the model and the dense optimizer. Return its epochs, or an empty list.

    Raises:
        ValueError: on all ranks, if the job that wrote the checkpoint had other settings. The message lists all of
            them, such as "lr is 0.5, and was 0.01".
    """
    state = read(task.args.checkpoint) if task.args.checkpoint else None
    if state is None:
        return []
    now, before = settings(task), state["settings"]
    if changed := [name for name in now if now[name] != before.get(name)]:
        raise ValueError(", ".join(f"{name} is {now[name]}, and was {before.get(name)}" for name in changed))
    task.model.module.load_state_dict(state["model"])
    task.optimizers[0].load_state_dict(state["optimizer"])
    return state["epochs"]
