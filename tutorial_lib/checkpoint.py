"""Checkpoints: a run that was ended, in whatever way, continues from its last complete one.

``checkpoint/`` of a run folder::

    manifest.json                        which folder is valid, size and SHA-256 of each file, settings, epochs
    epoch-0003/model.safetensors         weights                                                  (rank 0)
    epoch-0003/optimizer.safetensors     the optimiser's tensors; its numbers are in the manifest (rank 0)
    epoch-0003/embeddings-MACHINE.safetensors   rows of the DistEmbeddings that this machine holds, with the state of
                                         their sparse optimiser                (the first trainer of each machine)

A checkpoint is written into a new folder, flushed to the disk, and takes effect when ``manifest.json`` is replaced, in
one step of the file system; the folder before it is removed after that. At any moment there is one that is valid.
Loading runs no code from the files: safetensors and JSON, no pickle.

Random generators: nothing is saved, because DGL's state cannot be read. Every epoch seeds them from (seed, epoch,
rank), see ``seeding``; so the number of the epoch is their state.

A run folder that the machines do not share: weights, optimiser and manifest are then on machine 0 and are sent to the
other ranks on resuming; each machine finds the rows of its own embeddings where it wrote them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from tutorial_lib.durable import flush_folder, named, write_tensors
from tutorial_lib.embeddings import local_rows, sparse_settings, stores_of, write_local_rows
from tutorial_lib.errors import InputError
from tutorial_lib.exchange import broadcast, gather
from tutorial_lib.files import sha256_of, write_json
from tutorial_lib.optimizer_state import flatten_optimizer, unflatten_optimizer
from tutorial_lib.steps import Emit, no_events

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
FRESH = "Start again without --resume, in another folder."


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk, with intact files.

    Attributes:
        folder: of the files.
        epochs: one dict per finished epoch, as in ``result.json``.
        description: the settings that it belongs to.
    """

    folder: Path
    manifest: dict[str, Any]

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return self.manifest["epochs"]

    @property
    def description(self) -> dict[str, Any]:
        return self.manifest["description"]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Open the checkpoint in ``folder`` (``checkpoint/`` of a run) and check every file that is on this machine.

    Raises:
        InputError: there is none, or a file is damaged or missing; the file is named.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version, promised = manifest["format"], manifest.pop("sha256")
    except FileNotFoundError:
        raise InputError(f"no checkpoint in {folder}: the run ended before its first was complete", FRESH) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"damaged checkpoint: {path} cannot be read", FRESH) from None
    if version != FORMAT_VERSION:
        raise InputError(f"{path} has format {version}, this program reads format {FORMAT_VERSION}", FRESH)
    if _digest(manifest) != promised:
        raise InputError(f"damaged checkpoint: {path} has other content than when it was written (checksum)", FRESH)
    for name, expected in manifest["files"].items():
        file = folder / manifest["folder"] / name
        if file.exists() or expected["machine"] is None:  # rows of another machine may be on that machine only
            check_file(file, expected)
    return Checkpoint(folder / manifest["folder"], manifest)


def check_file(path: Path, expected: Mapping[str, Any]) -> None:
    """Raise an InputError that names the file unless size and SHA-256 are as expected."""
    if not path.is_file():
        problem = "is missing"
    elif path.stat().st_size != expected["bytes"]:
        problem = f"has {path.stat().st_size} bytes, expected {expected['bytes']}"
    elif sha256_of(path) != expected["sha256"]:
        problem = "has other content than when it was written (checksum)"
    else:
        return
    raise InputError(f"damaged checkpoint: {path} {problem}", FRESH)


def check_same_settings(checkpoint: Checkpoint, description: Mapping[str, Any], where: Path) -> None:
    """Raise an InputError that lists every value that differs. The number of epochs may."""
    old, new = checkpoint.description, description
    differences = [
        f"{key} {_text(old.get(key))} in the checkpoint, {_text(new.get(key))} now"
        for key in [*old, *(set(new) - set(old))]
        if key != "epochs" and old.get(key) != new.get(key)
    ]
    if differences:
        raise InputError(
            f"the checkpoint in {where} belongs to a run with other settings: {'; '.join(differences)}",
            "Repeat the options of the first start (job.json in that folder has them), or use another --out.",
        )


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def remove_leftovers(folder: Path, keep: str | None) -> None:
    """Remove what an interrupted save left in ``folder``: every checkpoint but ``keep``, and half-written files.

    Before a job only: in a job, another rank may be writing such a file at this moment.
    """
    remove_other_checkpoints(folder, keep)
    for path in folder.glob(".*"):
        path.unlink(missing_ok=True)


def remove_other_checkpoints(folder: Path, keep: str | None) -> None:
    """Remove every checkpoint but ``keep``; several machines may do so at once."""
    for path in folder.glob("epoch-*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class Checkpoints:
    """The checkpoints of one training run; what ``training.fit`` takes as ``saver``.

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
        sparse = self.sparse_optimizers
        epochs = restore(self.folder, model, optimizer, embeddings=self.embeddings, sparse_optimizers=sparse)
        self.emit("resumed", epochs=len(epochs))
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
        shutil.rmtree(target, ignore_errors=True)  # a full disk gets its space back
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
        with named(folder / MANIFEST):
            write_json(folder / MANIFEST, {**manifest, "sha256": _digest(manifest)})
            flush_folder(folder)
    _barrier()  # the new one is valid: now the old one may go
    if _local_rank() == 0:
        remove_other_checkpoints(folder, keep=target.name)


def restore(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    embeddings: Mapping[str, Any] | None = None,
    sparse_optimizers: Sequence[Any] = (),
) -> list[dict[str, Any]]:
    """Load the checkpoint into everything that was given to ``save``; returns ``epochs``. Every trainer must call it.

    Rank 0 reads and sends to the others. Rows of embeddings are written by the machine that holds them: a write to
    another machine's server is not acknowledged, so a barrier after it would prove nothing.

    Raises:
        InputError: no checkpoint, or a damaged one.
    """
    content = None
    if _rank() == 0:
        checkpoint = read_checkpoint(folder)
        content = (
            checkpoint.manifest,
            load_file(checkpoint.folder / "model.safetensors"),
            load_file(checkpoint.folder / "optimizer.safetensors"),
        )
    manifest, weights, tensors = broadcast(content)
    model.load_state_dict(weights)
    optimizer.load_state_dict(unflatten_optimizer(tensors, manifest["optimizer"]))
    stores = stores_of(embeddings or {}, sparse_optimizers)
    if stores and _local_rank() == 0:
        name = f"embeddings-{_machine()}.safetensors"
        if name not in manifest["files"]:
            raise InputError(f"the checkpoint in {folder} has no embeddings of {_machine()}", FRESH)
        check_file(folder / manifest["folder"] / name, manifest["files"][name])
        write_local_rows(stores, folder / manifest["folder"] / name)
    for sparse, settings in zip(sparse_optimizers, manifest["sparse_optimizers"], strict=True):
        vars(sparse).update(settings)
    _barrier()  # nobody reads an embedding before it is there
    return manifest["epochs"]


def export_weights(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """``model.safetensors`` and ``config.json``: the trained model for other programs, beside the checkpoint."""
    temporary = folder / ".model.safetensors"
    write_tensors(temporary, model.state_dict())
    temporary.replace(folder / "model.safetensors")
    with named(folder / "config.json"):
        write_json(folder / "config.json", dict(config))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0)) if dist.is_initialized() else 0


def _machine() -> str:
    return os.environ.get("TUTORIAL_MACHINE", "machine-0")


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
