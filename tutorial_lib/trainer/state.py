"""What a checkpoint holds, as tensors and numbers: of torch's optimisers, and of rows that are learned.

A ``DistEmbedding`` is a ``DistTensor``, and DGL's sparse optimisers keep their state in ``DistTensor``s of the same
partition (SparseAdagrad one per embedding, SparseAdam three), which their own ``local_state_dict`` reads, too. Each
machine reads and writes those rows that it holds. In a single process, a ``NodeEmbedding`` and its optimiser hold plain
tensors: all rows are here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tutorial_lib.errors import InputError
from tutorial_lib.files import flush, sha256_of

ROWS = 1_000_000  # read and written at a time


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write and flush a safetensors file; returns its size and SHA-256.

    Raises:
        OSError: it cannot be written; the file is named.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        for written in (path, path.parent, path.parent.parent):
            flush(written)
        return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    except (OSError, SafetensorError) as error:
        found = re.search(r"(?:os error|code:) (\d+)", str(error))  # safetensors says "... (os error 28)"
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number is None:
            raise
        raise OSError(number, f"cannot write the checkpoint: {os.strerror(number)}", str(path)) from None


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A torch optimiser's state as named tensors and JSON: ``{"0/exp_avg": ...}`` and groups, other numbers."""
    state = optimizer.state_dict()
    tensors, others = {}, {}
    for index, values in state["state"].items():
        for key, value in values.items():
            (tensors if isinstance(value, Tensor) else others)[f"{index}/{key}"] = value
    return tensors, {"param_groups": state["param_groups"], "others": others}


def unflatten_optimizer(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of ``flatten_optimizer``; what ``load_state_dict`` takes. JSON has made tuples into lists."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **numbers["others"]}.items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = value
    groups = [
        {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}
        for group in numbers["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def stores_of(embeddings: Mapping[str, Any], sparse_optimizers: Sequence[Any]) -> dict[str, Any]:
    """Every tensor behind embeddings and their optimisers, under a name that is the same in each run."""
    stores = {f"{name}/weight": embedding.weight for name, embedding in embeddings.items()}
    for number, optimizer in enumerate(sparse_optimizers):
        stores |= {f"optimizer-{number}/{name}": tensor for name, tensor in state_of(optimizer).items()}
    return stores


def state_of(optimizer: Any) -> dict[str, Any]:
    """The tensors of an optimiser of ``DistEmbedding``s, or of a SparseAdam of ``NodeEmbedding``s, by name."""
    if hasattr(optimizer, "_state"):
        states = [state if isinstance(state, tuple) else (state,) for state in optimizer._state.values()]
        return {tensor.tensor_name: tensor for state in states for tensor in state}
    return {
        f"{embedding.name}_{name}": tensor
        for embedding in optimizer._params
        for name, tensor in zip(("step", "mem", "power"), embedding.optm_state, strict=True)
    }


def sparse_settings(optimizer: Any) -> dict[str, Any]:
    """Learning rate and the like, as they are now."""
    names = getattr(optimizer, "_defaults", ("_lr", "_beta1", "_beta2", "_eps"))
    return {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}


def restore_settings(optimizer: Any, settings: Mapping[str, Any]) -> None:
    """Inverse of ``sparse_settings``; a file must not set any other attribute.

    Raises:
        InputError: a name that this optimiser does not save, or a value that is no number.
    """
    known = sparse_settings(optimizer)
    for name, value in settings.items():
        if name not in known or isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(
                f"the checkpoint sets {name} = {value!r}; {type(optimizer).__name__} saves {sorted(known)}"
            )
    vars(optimizer).update(settings)


def local_ids(store: Any) -> Tensor:
    """int64 ids of the rows of a ``DistTensor`` of nodes that this machine holds; of a plain tensor, all."""
    if isinstance(store, Tensor):
        return torch.arange(len(store))
    policy = store.part_policy
    return policy.partition_book.partid2nids(policy.part_id, policy.type_name)


def local_rows(stores: Mapping[str, Any]) -> dict[str, Tensor]:
    """This machine's rows of each store; the memory of all of them together is needed once more."""
    return {
        name: torch.cat([store[ids] for ids in local_ids(store).split(ROWS)] or [torch.empty(0, *store.shape[1:])])
        for name, store in stores.items()
    }


def write_local_rows(stores: Mapping[str, Any], path: Path) -> None:
    """Write back what ``local_rows`` read.

    Raises:
        ValueError: the file holds other names or shapes.
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
