"""Checkpoints: a run that was ended, in whatever way, continues from its last complete one.

``checkpoint/`` of a run folder::

    manifest.json                        which folder is valid, size and SHA-256 of each file, settings, epochs
    manifest-previous.json               the same of the checkpoint before, which is kept with its folder
    epoch-0003/model.safetensors         weights                                                  (rank 0)
    epoch-0003/optimizer.safetensors     the optimiser's tensors; its numbers are in the manifest (rank 0)
    epoch-0003/embeddings-MACHINE.safetensors   rows of the DistEmbeddings that this machine holds, with the state of
                                         their sparse optimiser                (the first trainer of each machine)

A checkpoint is written into a new folder, flushed to the disk, and takes effect when ``manifest.json`` is replaced, in
one step of the file system. At any moment there is one that is valid. The one before it stays, too: where a file of the
newest is damaged, on whichever machine, all ranks continue from that one, see ``generations``.
Loading runs no code from the files: safetensors and JSON, no pickle.

Random generators: nothing is saved, because DGL's state cannot be read. Every epoch seeds them from (seed, epoch,
rank), see ``seeding``; so the number of the epoch is their state.

A run folder that the machines do not share: weights, optimiser and manifest are then on machine 0 and are sent to the
other ranks on resuming; each machine finds the rows of its own embeddings where it wrote them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from tutorial_lib.errors import InputError
from tutorial_lib.files import write_json
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.exchange import broadcast, gather
from tutorial_lib.trainer.generations import (
    FORMAT_VERSION,
    FRESH,
    MANIFEST,
    PREVIOUS,
    check_files,
    exists,
    folders_named,
    make_valid,
    named,
    read_manifest,
    remove_checkpoint,
    remove_other_checkpoints,
)
from tutorial_lib.trainer.state import (
    flatten_optimizer,
    local_rows,
    restore_settings,
    sparse_settings,
    stores_of,
    unflatten_optimizer,
    write_local_rows,
    write_tensors,
)


@dataclass
class Checkpoints:
    """The checkpoints of one training run; what ``loop.fit`` takes as ``saver``.

    Attributes:
        folder: ``checkpoint/`` of the run folder.
        description: settings that must be the same on resuming.
        every: epochs between two checkpoints; after the last epoch there is always one.
        resume: continue from the checkpoint that is there.
        emit: takes ``checkpoint`` and ``resumed`` events.
        embeddings, sparse_optimizers: what else is saved and restored, see ``save``.
    """

    folder: Path
    description: Mapping[str, Any]
    every: int = 1
    resume: bool = False
    emit: Emit = no_events
    embeddings: Mapping[str, Any] | None = None
    sparse_optimizers: Sequence[Any] = ()

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        """See ``checkpoint.restore``."""
        if not self.resume:
            return []
        damaged: list[str] = []
        more = {"embeddings": self.embeddings, "sparse_optimizers": self.sparse_optimizers}
        epochs = restore(self.folder, model, optimizer, say=damaged.append, **more)
        self.emit("resumed", epochs=len(epochs), **({"damaged": damaged[0]} if damaged else {}))
        return epochs

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: Sequence[dict[str, Any]], *, last: bool
    ) -> None:
        """Save if it is time to, see ``checkpoint.save``."""
        if last or len(epochs) % self.every == 0:
            more = {"embeddings": self.embeddings, "sparse_optimizers": self.sparse_optimizers}
            save(self.folder, model, optimizer, epochs, self.description, **more)
            self.emit("checkpoint", epochs=len(epochs))


def save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: Sequence[dict[str, Any]],
    description: Mapping[str, Any],
    *,
    embeddings: Mapping[str, Any] | None = None,
    sparse_optimizers: Sequence[Any] = (),
) -> None:
    """Write a checkpoint and make it the valid one. In a job, every trainer must call this, between epochs.

    Args:
        folder: ``checkpoint/`` of the run folder.
        model: without its DistributedDataParallel wrapper; equal on all ranks.
        optimizer: equal on all ranks.
        epochs: what every finished epoch gave; JSON types.
        description: settings that must be the same on resuming; JSON types.
        embeddings: name to ``dgl.distributed.DistEmbedding``.
        sparse_optimizers: of ``dgl.distributed.optim``, always in the same order.

    Raises:
        OSError: a file cannot be written; it is named, and the checkpoint before this one stays valid.
    """
    target = folder / f"epoch-{len(epochs):04d}"
    stores = stores_of(embeddings or {}, sparse_optimizers)
    tensors, numbers = flatten_optimizer(optimizer)
    _barrier()  # no rank changes an embedding any more
    files = {}
    try:
        if _rank() == 0:
            for name, content in [("model", model.state_dict()), ("optimizer", tensors)]:
                about = write_tensors(target / f"{name}.safetensors", content)
                files[f"{name}.safetensors"] = {**about, "machine": None}
        if stores and _local_rank() == 0:
            name = f"embeddings-{_machine()}.safetensors"
            files[name] = {**write_tensors(target / name, local_rows(stores)), "machine": _machine()}
    except OSError:
        remove_checkpoint(target)  # a full disk gets its space back
        raise
    all_files = gather(files)
    if _rank() == 0:
        manifest = {
            "format": FORMAT_VERSION,
            "folder": target.name,
            "epochs": list(epochs),
            "description": dict(description),
            "optimizer": numbers,
            "sparse_optimizers": [sparse_settings(sparse) for sparse in sparse_optimizers],
            "files": {name: about for part in all_files for name, about in part.items()},
        }
        make_valid(folder, manifest)
    # Rank 0 sends this when the new one is valid: only now may an older one go.
    keep = broadcast(sorted(folders_named(folder)) if _rank() == 0 else None)
    if _local_rank() == 0:
        remove_other_checkpoints(folder, keep)


def restore(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    embeddings: Mapping[str, Any] | None = None,
    sparse_optimizers: Sequence[Any] = (),
    say: Callable[[str], None] = lambda _text: None,
) -> list[dict[str, Any]]:
    """Load the checkpoint into everything that was given to ``save``; returns ``epochs``. Every trainer must call it.

    Rank 0 reads and sends to the others. Rows of embeddings are written by the machine that holds them: a write to
    another machine's server is not acknowledged, so a barrier after it would prove nothing.

    Args:
        say: on rank 0, takes what is wrong with the newest checkpoint where the one before it is used.

    Raises:
        InputError: no checkpoint, or both are damaged; on all ranks.
    """
    stores = stores_of(embeddings or {}, sparse_optimizers)
    chosen = _choose(folder, bool(stores), say)
    content = None
    if _rank() == 0:
        content = (
            chosen,
            load_file(folder / chosen["folder"] / "model.safetensors"),
            load_file(folder / chosen["folder"] / "optimizer.safetensors"),
        )
    manifest, weights, tensors = broadcast(content)
    model.load_state_dict(weights)
    optimizer.load_state_dict(unflatten_optimizer(tensors, manifest["optimizer"]))
    if stores and _local_rank() == 0:
        write_local_rows(stores, folder / manifest["folder"] / f"embeddings-{_machine()}.safetensors")
    for sparse, settings in zip(sparse_optimizers, manifest["sparse_optimizers"], strict=True):
        restore_settings(sparse, settings)
    _barrier()  # nobody reads an embedding before it is there
    return manifest["epochs"]


def _choose(folder: Path, with_rows: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """The manifest of the newest checkpoint that is whole on every machine; rank 0 decides when it has heard from all.

    Where that is the one before the newest, it becomes the newest: the next save must not take its place.
    """
    problems = []
    for name in (MANIFEST, PREVIOUS):
        manifest, problem = _look_at(folder, name) if _rank() == 0 else (None, "")
        manifest = broadcast(manifest)
        if manifest is not None and _local_rank() == 0:
            problem = _problem_here(folder, manifest, with_rows)
        found = broadcast(sorted(filter(None, gather(problem))))
        if manifest is not None and not found:
            if problems and _rank() == 0:
                say(problems[0])
                make_valid(folder, manifest)
            return manifest
        problems += found[:1]
    raise InputError("; and the one before it: ".join(problems), FRESH)


def _look_at(folder: Path, name: str) -> tuple[dict[str, Any] | None, str]:
    """On rank 0: a manifest, or what is wrong with it."""
    if not exists(folder):
        return None, f"no checkpoint in {folder}: the run ended before its first was complete"
    if name == PREVIOUS and not (folder / name).exists():
        return None, ""
    try:
        return read_manifest(folder / name), ""
    except InputError as error:
        return None, error.message


def _problem_here(folder: Path, manifest: dict[str, Any], with_rows: bool) -> str:
    """What is wrong with the files of a checkpoint that this machine can see, or needs; empty: nothing."""
    rows = f"embeddings-{_machine()}.safetensors"
    if with_rows and rows not in manifest["files"]:
        return f"the checkpoint in {folder} has no embeddings of {_machine()}"
    if _rank() != 0:  # a machine without a shared folder has its own rows only
        manifest = {**manifest, "files": {name: about for name, about in manifest["files"].items() if name == rows}}
    try:
        check_files(folder, manifest, _machine())
    except InputError as error:
        return error.message
    return ""


def export_weights(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """``model.safetensors`` and ``config.json``: the trained model for other programs, beside the checkpoint."""
    temporary = folder / ".model.safetensors"
    write_tensors(temporary, model.state_dict())
    temporary.replace(folder / "model.safetensors")
    with named(folder / "config.json"):
        write_json(folder / "config.json", dict(config))


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0)) if dist.is_initialized() else 0


def _machine() -> str:
    return os.environ.get("TUTORIAL_MACHINE", "machine-0")


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
