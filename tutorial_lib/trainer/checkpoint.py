"""Checkpoints: a run that was ended, in whatever way, continues from its last complete one.

``checkpoint/`` of a run folder::

    manifest.json                        which folder is valid, size and SHA-256 of each file, settings, epochs
    manifest-previous.json               the same of the checkpoint before, which is kept with its folder
    epoch-0003/model.safetensors         weights                                                  (rank 0)
    epoch-0003/optimizer.safetensors     the optimiser's tensors; its numbers are in the manifest (rank 0)
    epoch-0003/embeddings-MACHINE.safetensors   rows of the DistEmbeddings that this machine holds, with the state of
                                         their sparse optimiser                (the first trainer of each machine)
    epoch-0003-step-000120/              the same after 120 steps of the fourth epoch, of a run that was told to end
    epoch-0003-step-000120/generators.safetensors    states of each rank's generators of torch     (rank 0)

A checkpoint is written into a new folder, flushed to the disk, and takes effect when ``manifest.json`` is replaced, in
one step of the file system. At any moment there is one that is valid. The one before it stays, too: where a file of the
newest is damaged, on whichever machine, all ranks continue from that one, see ``generations``.
Loading runs no code from the files: safetensors and JSON, no pickle.

Random generators: see ``seeding`` for the beginning of an epoch, ``stopping`` for the middle of one.

A run folder that the machines do not share: weights, optimiser and manifest are then on machine 0 and are sent to the
other ranks on resuming; each machine finds the rows of its own embeddings where it wrote them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from tutorial_lib.cluster.manifests import generation, remove_checkpoint, remove_checkpoints
from tutorial_lib.errors import InputError
from tutorial_lib.files import write_json
from tutorial_lib.trainer import generations, state
from tutorial_lib.trainer.comm import all_gather, alone, barrier, broadcast, gather, own_rank
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.stopping import EpochPart, Stop

Epochs = list[dict[str, Any]]  # one for each finished epoch, as in ``result.json``; JSON types


@dataclass
class Checkpoints:
    """The checkpoints of one training run; what ``loop.fit`` takes as ``saver``.

    Attributes:
        folder: ``checkpoint/`` of the run folder.
        description: settings that must be the same on resuming; JSON types.
        every: epochs between two checkpoints; after the last epoch there is always one.
        resume: continue from the checkpoint that is there.
        emit: takes ``checkpoint`` and ``resumed`` events.
        stop: ends an epoch in the middle, where it is asked to.
    """

    folder: Path
    description: Mapping[str, Any]
    every: int = 1
    resume: bool = False
    emit: Emit = no_events
    stop: Stop = field(default_factory=Stop)

    def restore(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        part: EpochPart | None = None,
        embeddings: Mapping[str, Any] | None = None,
        sparse_optimizers: Sequence[Any] = (),
    ) -> Epochs:
        """Load the checkpoint into what was given to ``save``; returns its ``epochs``, none unless the run is resumed.

        Every trainer must call it. Rank 0 reads and sends to the others. Rows of embeddings are written by the machine
        that holds them: a write to another machine's server is not acknowledged, so a barrier after it would prove
        nothing. The newest checkpoint is taken that is whole on every machine. Where that is the one before the newest,
        it becomes the newest: the next save must not take its place.

        Args:
            part: becomes what this rank has done of the next epoch.

        Raises:
            InputError: no checkpoint, or both are damaged; on all ranks.
        """
        if not self.resume:
            return []
        stores, first = state.stores_of(embeddings or {}, sparse_optimizers), own_rank() == 0

        def look(name: str) -> dict[str, Any]:
            manifest = broadcast(_agreed(lambda: generations.read_manifest(self.folder / name) if first else None))
            _agreed(lambda: _check_here(self.folder, manifest, bool(stores)))
            return manifest

        chosen = generations.newest_whole(self.folder, look)
        if chosen.damaged and first:
            generations.make_valid(self.folder, chosen.manifest)
        done = chosen.manifest.get("part")
        names = ["model", "optimizer", *(["generators"] if done else [])]
        files = [chosen.folder / f"{name}.safetensors" for name in names]
        weights, tensors, *states = broadcast([load_file(file) for file in files] if first else None)
        if done:
            if part is None:
                raise InputError(f"the checkpoint in {self.folder} is from the middle of an epoch", generations.FRESH)
            own = {name.split("/")[1]: s for name, s in states[0].items() if name.split("/")[0] == str(own_rank())}
            part.take(done["step"], done["ranks"][own_rank()], own)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state.unflatten_optimizer(tensors, chosen.manifest["optimizer"]))
        if stores and _first_of_machine():
            state.write_local_rows(stores, chosen.folder / _rows_file())
        for sparse, settings in zip(sparse_optimizers, chosen.manifest["sparse_optimizers"], strict=True):
            state.restore_settings(sparse, settings)
        barrier()  # nobody reads an embedding before it is there
        damaged = {"damaged": chosen.damaged} if chosen.damaged and first else {}
        self.emit("resumed", epochs=len(chosen.epochs), **({"step": chosen.step} if chosen.step else {}), **damaged)
        return chosen.epochs

    def save(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        epochs: Epochs,
        *,
        last: bool,
        part: EpochPart | None = None,
        embeddings: Mapping[str, Any] | None = None,
        sparse_optimizers: Sequence[Any] = (),
    ) -> None:
        """If it is time to, write a checkpoint and make it the valid one.

        In a job, every trainer must call this, between two steps.

        Args:
            model: without its DistributedDataParallel wrapper; equal on all ranks, as is ``optimizer``.
            last: it is time to in any case.
            part: what this rank has done of the next epoch; None: nothing.
            embeddings: name to ``dgl.distributed.DistEmbedding``.
            sparse_optimizers: of ``dgl.distributed.optim``, always in the same order.

        Raises:
            OSError: a file cannot be written; it is named, and the checkpoint before this one stays valid.
        """
        if not last and len(epochs) % self.every:
            return
        step = part.furthest if part else 0
        target = self.folder / generation(len(epochs), step)
        stores = state.stores_of(embeddings or {}, sparse_optimizers)
        tensors, numbers = state.flatten_optimizer(optimizer)
        barrier()  # no rank changes an embedding any more
        first, files = own_rank() == 0, {}
        contents = {"model": model.state_dict(), "optimizer": tensors}
        parts = gather({"done": part.to_list(), "generators": part.generators}) if part and step else []
        if parts:
            own = (of["generators"].items() for of in parts)
            contents["generators"] = {f"{rank}/{kind}": s for rank, found in enumerate(own) for kind, s in found}
        try:
            for name, content in contents.items() if first else ():
                name = f"{name}.safetensors"
                files[name] = {**state.write_tensors(target / name, content), "machine": None}
            if stores and _first_of_machine():
                about = state.write_tensors(target / _rows_file(), state.local_rows(stores))
                files[_rows_file()] = {**about, "machine": _machine()}
        except OSError:
            remove_checkpoint(target)  # a full disk gets its space back
            raise
        all_files = gather(files)
        if first:
            manifest = {
                "format": generations.WITH_STEP if step else generations.FORMAT_VERSION,
                "folder": target.name,
                "epochs": epochs,
                **({"part": {"step": step, "ranks": [of["done"] for of in parts]}} if step else {}),
                "description": dict(self.description),
                "optimizer": numbers,
                "sparse_optimizers": [state.sparse_settings(sparse) for sparse in sparse_optimizers],
                "files": {name: about for part in all_files for name, about in part.items()},
            }
            generations.make_valid(self.folder, manifest)
        # Rank 0 sends this when the new one is valid: only now may an older one go.
        keep = broadcast(sorted(generations.folders_named(self.folder)) if first else None)
        if _first_of_machine():
            remove_checkpoints(self.folder, keep)
        self.emit("checkpoint", epochs=len(epochs), **({"step": step} if step else {}))


def _agreed(action: Callable[[], Any]) -> Any:
    """What ``action`` gives on this rank; an InputError of one rank is raised on all."""
    found, problem = None, ""
    try:
        found = action()
    except InputError as error:
        problem = error.message
    if problems := sorted(filter(None, all_gather(problem))):
        raise InputError(problems[0], generations.FRESH)
    return found


def _check_here(folder: Path, manifest: dict[str, Any], with_rows: bool) -> None:
    """Raise an InputError for a file of a checkpoint that this machine can see, or needs, and that is not whole."""
    if not _first_of_machine():
        return
    if with_rows and _rows_file() not in manifest["files"]:
        raise InputError(f"the checkpoint in {folder} has no embeddings of {_machine()}")
    if own_rank() != 0:  # a machine without a shared folder has its own rows only
        manifest = {**manifest, "files": {n: about for n, about in manifest["files"].items() if n == _rows_file()}}
    generations.check_files(folder, manifest, _machine())


def export_weights(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """``model.safetensors`` and ``config.json``: the trained model for other programs, beside the checkpoint."""
    temporary = folder / ".model.safetensors"
    state.write_tensors(temporary, model.state_dict())
    temporary.replace(folder / "model.safetensors")
    write_json(folder / "config.json", dict(config))


def _first_of_machine() -> bool:
    return alone() or int(os.environ.get("LOCAL_RANK", 0)) == 0


def _machine() -> str:
    return os.environ.get("TUTORIAL_MACHINE", "machine-0")


def _rows_file() -> str:
    return f"embeddings-{_machine()}.safetensors"
