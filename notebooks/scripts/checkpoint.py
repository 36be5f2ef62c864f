"""Write a checkpoint that is complete at all times, and resume a job with the same losses (lesson 11)."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

FREE = {"num_epochs", "out", "best", "checkpoint", "ip_config", "part_config", "cache", "eval_every"}  # can change


def write(path, state):
    """Write the state to the file ``path`` on the machine of rank 0. All ranks call this function.

    Rank 0 writes the new file ``f"{path}.new"`` with ``torch.save``, flushes this file to the disk (``os.fsync``), and
    renames it with ``os.replace``. So ``path`` contains a complete state at all times, also if a write fails. The other
    ranks write nothing. No rank returns before the rename.
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

    Only the file of rank 0 counts, because other machines can have no file or an old one. Rank 0 reads it to the CPU
    (``map_location="cpu"``) and broadcasts the state with ``dist.broadcast_object_list``.
    """
    state = [None]
    if dist.get_rank() == 0 and Path(path).exists():
        state = [torch.load(path, map_location="cpu")]
    dist.broadcast_object_list(state)
    return state[0]


def settings(task):
    """Return the settings that must be equal in all starts of a job, a dict.

    These are all options in ``task.args``, except those whose names are in ``FREE``, and then "ranks", the number of
    ranks, and "nodes" and "edges", the numbers of nodes and edges of ``task.g``.
    """
    fixed = {name: value for name, value in vars(task.args).items() if name not in FREE}
    return {**fixed, "ranks": dist.get_world_size(), "nodes": task.g.num_nodes(), "edges": task.g.num_edges()}


def save(task, epochs):
    """Write the model, the dense optimizer and the completed epochs to the file ``task.args.checkpoint``.

    Write nothing if this option is an empty string. The state is a dict with the keys "model" (``state_dict`` of
    ``task.model.module``), "optimizer" (that of ``task.optimizers[0]``), "epochs" (the whole list) and "settings".

    Args:
        epochs: list with a dict for each completed epoch.
    """
    if task.args.checkpoint:
        model, optimizer = task.model.module.state_dict(), task.optimizers[0].state_dict()
        state = {"model": model, "optimizer": optimizer, "epochs": epochs, "settings": settings(task)}
        write(task.args.checkpoint, state)


def resume(task):
    """Load the checkpoint into the model and the dense optimizer. Return its epochs.

    Return an empty list if ``task.args.checkpoint`` is an empty string or names a file that does not exist. All ranks
    call this function, and all of them load the same state.

    Raises:
        ValueError: on all ranks, if a value of ``settings(task)`` differs from the checkpoint. Nothing is loaded. The
            message lists all of them in the order of ``settings(task)``, such as "lr is 0.5, and was 0.01, ranks is 1,
            and was 2". A setting that the checkpoint does not have was None.
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
