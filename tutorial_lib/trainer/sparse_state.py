"""Rows of learnable embeddings and of their sparse optimizers, as a checkpoint stores them.

In a job, a ``DistEmbedding`` and each state of DGL's sparse optimizer are ``DistTensor``s of the same partition. Each
machine reads and writes only the rows that it holds, because a write to another machine's server has no answer and no
barrier proves its arrival. In a single process, a ``NodeEmbedding`` and its optimizer hold plain tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tutorial_lib.errors import InputError

ROWS = 1_000_000  # read and written at a time


def stores_of(embeddings: Mapping[str, Any], sparse_optimizers: Sequence[Any]) -> dict[str, Any]:
    """Return every tensor of embeddings and of their optimizers, under a name that is equal in each run."""
    stores = {f"{name}/weight": embedding.weight for name, embedding in embeddings.items()}
    for number, optimizer in enumerate(sparse_optimizers):
        stores |= {f"optimizer-{number}/{name}": tensor for name, tensor in optimizer_tensors(optimizer).items()}
    return stores


def optimizer_tensors(optimizer: Any) -> dict[str, Any]:
    """Return the state tensors of a sparse optimizer by name."""
    if hasattr(optimizer, "_state"):  # of dgl.distributed.optim
        states = [state if isinstance(state, tuple) else (state,) for state in optimizer._state.values()]
        return {tensor.tensor_name: tensor for state in states for tensor in state}
    return {  # dgl.optim.SparseAdam
        f"{embedding.name}_{name}": tensor
        for embedding in optimizer._params
        for name, tensor in zip(("step", "mem", "power"), embedding.optm_state, strict=True)
    }


def sparse_settings(optimizer: Any) -> dict[str, Any]:
    """Return the learning rate and the other numbers of a sparse optimizer."""
    names = getattr(optimizer, "_defaults", ("_lr", "_beta1", "_beta2", "_eps"))
    return {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}


def restore_settings(optimizer: Any, settings: Mapping[str, Any]) -> None:
    """Set the numbers of a sparse optimizer.

    Raises:
        InputError: a name is not one of ``sparse_settings``, or a value is not a number.
    """
    known = sparse_settings(optimizer)
    for name, value in settings.items():
        if name not in known or isinstance(value, bool) or not isinstance(value, int | float):
            saved = f"{type(optimizer).__name__} saves {sorted(known)}"
            raise InputError(f"the checkpoint sets {name} = {value!r}; {saved}")
    vars(optimizer).update(settings)


def local_ids(store: Any) -> Tensor:
    """Return the int64 IDs of the rows of a ``DistTensor`` of nodes that this machine holds, or all of a tensor."""
    if isinstance(store, Tensor):
        return torch.arange(len(store))
    policy = store.part_policy
    return policy.partition_book.partid2nids(policy.part_id, policy.type_name)


def local_rows(stores: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a copy of the rows of each store that this machine holds."""
    return {
        name: torch.cat([store[ids] for ids in local_ids(store).split(ROWS)] or [torch.empty(0, *store.shape[1:])])
        for name, store in stores.items()
    }


def write_local_rows(stores: Mapping[str, Any], path: Path) -> None:
    """Write the rows of a safetensors file back into the stores.

    Raises:
        ValueError: the file has other names or shapes.
    """
    with safe_open(path, "pt") as file:
        if set(file.keys()) != set(stores):
            raise ValueError(f"{path} holds {sorted(file.keys())}, expected {sorted(stores)}")
        for name, store in stores.items():
            ids, rows = local_ids(store), file.get_slice(name)
            if rows.get_shape()[0] != len(ids):
                raise ValueError(f"{path}: {name} has {rows.get_shape()[0]} rows, expected {len(ids)}")
            for start in range(0, len(ids), ROWS):
                store[ids[start : start + ROWS]] = rows[start : start + ROWS]
