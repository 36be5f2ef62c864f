"""Checkpoints: a run that ended in any way continues from its last complete checkpoint.

``checkpoint/`` of a run folder::

    manifest.json                               the newest checkpoint: folder, checksums, settings, epochs, step
    manifest-previous.json                      the checkpoint before, whose folder is kept as well
    epoch-0003/model.safetensors                weights                                           (rank 0)
    epoch-0003/optimizer.safetensors            tensors of the dense optimizer                    (rank 0)
    epoch-0003/embeddings-MACHINE.safetensors   rows of learnable embeddings that this machine holds, with the state
                                                of their optimizer           (first trainer of each machine)
    epoch-0003-step-000120/                     the same after 120 steps of the fourth epoch

A checkpoint is written into a new folder, flushed to the disk, and becomes valid when ``manifest.json`` is replaced in
one step of the file system. Loading runs no code from the files, because they are safetensors and JSON.

If the machines do not share the run folder, weights and manifests are on machine 0, and each machine has the rows of
its own embeddings. Rank 0 reads the weights and sends them to the other ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.cluster.manifests import generation, remove_checkpoint, remove_checkpoints
from tutorial_lib.errors import InputError
from tutorial_lib.files import flush, sha256_of, write_json
from tutorial_lib.trainer import manifest as manifests
from tutorial_lib.trainer import sparse_state
from tutorial_lib.trainer.comm import all_gather, alone, barrier, broadcast, gather, own_rank
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.manifest import EpochResult, FileRecord, Manifest


class HasRows(Protocol):
    """The part of a task that a checkpoint saves."""

    embeddings: Mapping[str, Any]
    sparse_optimizers: Sequence[Any]


@dataclass
class TrainState:
    """How far this rank is.

    Attributes:
        epochs: results of the finished epochs.
        step: finished steps of the next epoch, equal on all ranks.
        loss_sum: sum of the losses of the examples of these steps on this rank.
        examples: number of these examples.
        seconds: training time of these steps.
    """

    epochs: list[EpochResult] = field(default_factory=list)
    step: int = 0
    loss_sum: float = 0.0
    examples: int = 0
    seconds: float = 0.0

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0."""
        return len(self.epochs)

    def place(self) -> dict[str, int]:
        """Return the progress as fields of an event: finished epochs and, within an epoch, finished steps."""
        return {"epochs": self.epoch, **({"step": self.step} if self.step else {})}

    def add(self, loss: float, examples: int) -> None:
        """Count one step. ``loss`` is the mean over its examples."""
        self.step += 1
        self.loss_sum += loss * examples
        self.examples += examples


@dataclass
class CheckpointManager:
    """Saves and loads the checkpoints of one run.

    Attributes:
        folder: ``checkpoint/`` of the run folder.
        description: settings that must be equal when the run resumes, in JSON types.
        every: number of epochs between two checkpoints.
        resume: continue from the newest checkpoint.
        emit: receives ``checkpoint``, ``stopped`` and ``resumed`` events.
        stop: returns whether the run shall save and end.
    """

    folder: Path
    description: Mapping[str, Any]
    every: int = 1
    resume: bool = False
    emit: Emit = no_events
    stop: Callable[[], bool] = lambda: False

    def load_latest(self, model: nn.Module, optimizer: Optimizer, task: HasRows) -> TrainState:
        """Load the newest checkpoint that is intact on all machines, or start anew unless the run is resumed.

        All ranks must call this function.

        Raises:
            InputError: there is no checkpoint, or both are damaged. All ranks raise the same error.
        """
        if not self.resume:
            return TrainState()
        stores, first = sparse_state.stores_of(task.embeddings, task.sparse_optimizers), own_rank() == 0

        def read(path: Path) -> Manifest:
            manifest = broadcast(_agree(lambda: manifests.read_manifest(path) if first else None))
            _agree(lambda: self._check_local_files(manifest, rows=bool(stores)))
            return manifest

        found = manifests.newest_intact(self.folder, read)
        manifest = found.manifest
        if found.damaged and first:  # otherwise the next save would replace the intact checkpoint
            manifests.publish(self.folder, manifest)
        names = ("model", "optimizer")
        weights, tensors = broadcast([load_file(found.folder / f"{n}.safetensors") for n in names] if first else None)
        model.load_state_dict(weights)
        optimizer.load_state_dict(_optimizer_state(tensors, manifest.optimizer))
        if stores and _first_of_machine():
            sparse_state.write_local_rows(stores, found.folder / _rows_file())
        for sparse, settings in zip(task.sparse_optimizers, manifest.sparse_optimizers, strict=True):
            sparse_state.restore_settings(sparse, settings)
        barrier()  # no rank reads an embedding before it is restored
        damaged = {"damaged": found.damaged} if found.damaged else {}
        sums = manifest.sums[own_rank()] if manifest.step else (0.0, 0)
        state = TrainState(manifest.epochs, manifest.step, *sums, manifest.seconds)
        self.emit("resumed", **state.place(), **damaged)
        return state

    def save(self, state: TrainState, model: nn.Module, optimizer: Optimizer, task: HasRows, *, last: bool) -> None:
        """Write a checkpoint if ``last`` is true or enough epochs are finished.

        All ranks must call this function between two steps. ``model`` (without its DistributedDataParallel wrapper) and
        ``optimizer`` are equal on all ranks.

        Raises:
            OSError: a file cannot be written. The previous checkpoint stays valid.
        """
        if not last and state.epoch % self.every:
            return
        folder = self.folder / generation(state.epoch, state.step)
        stores = sparse_state.stores_of(task.embeddings, task.sparse_optimizers)
        barrier()  # no rank changes an embedding from here on
        first, files = own_rank() == 0, {}
        contents = {"model": model.state_dict(), "optimizer": _optimizer_tensors(optimizer)} if first else {}
        try:
            for name, content in contents.items():
                files[f"{name}.safetensors"] = write_tensors(folder / f"{name}.safetensors", content)
            if stores and _first_of_machine():
                rows = sparse_state.local_rows(stores)
                files[_rows_file()] = write_tensors(folder / _rows_file(), rows, _machine())
        except OSError:
            remove_checkpoint(folder)  # frees the space on a full disk
            raise
        ranks = gather((files, (state.loss_sum, state.examples)))
        if first:
            manifest = Manifest(
                folder=folder.name,
                epochs=state.epochs,
                description=dict(self.description),
                files={name: record for files, _ in ranks for name, record in files.items()},
                step=state.step,
                sums=[sums for _, sums in ranks] if state.step else [],
                seconds=state.seconds,
                optimizer=optimizer.state_dict()["param_groups"],
                sparse_optimizers=[sparse_state.sparse_settings(sparse) for sparse in task.sparse_optimizers],
            )
            manifests.publish(self.folder, manifest)
        # Rank 0 sends this after the new checkpoint is valid. Only then may a machine remove an older one.
        keep = broadcast(manifests.named_folders(self.folder) if first else None)
        if _first_of_machine():
            remove_checkpoints(self.folder, keep)
        self.emit("checkpoint", **state.place())

    def _check_local_files(self, manifest: Manifest, *, rows: bool) -> None:
        """Rank 0 checks all files that it can see. The first trainer of another machine checks its rows."""
        if not _first_of_machine():
            return
        own = {name: record for name, record in manifest.files.items() if name == _rows_file()}
        if rows and not own:
            raise InputError(f"the checkpoint in {self.folder} has no embeddings of {_machine()}")
        files = manifest.files if own_rank() == 0 else own
        manifests.check_files(self.folder, manifest.folder, files, _machine())


def export_weights(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """Write ``model.safetensors`` and ``config.json``, the trained model for other programs."""
    temporary = folder / ".model.safetensors"
    write_tensors(temporary, model.state_dict())
    temporary.replace(folder / "model.safetensors")
    write_json(folder / "config.json", dict(config))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], machine: str | None = None) -> FileRecord:
    """Write a safetensors file and flush it to the disk. An OSError names the file that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        for written in (path, path.parent, path.parent.parent):
            flush(written)
        return FileRecord(path.stat().st_size, sha256_of(path), machine)
    except (OSError, SafetensorError) as error:
        found = re.search(r"(?:os error|code:) (\d+)", str(error))  # safetensors reports "... (os error 28)"
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number is None:
            raise
        raise OSError(number, f"cannot write the checkpoint: {os.strerror(number)}", str(path)) from None


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the state of a torch optimizer as ``{"0/exp_avg": ...}``."""
    state = optimizer.state_dict()["state"]
    numbers = {f"{index}/{key}": value for index, values in state.items() for key, value in values.items()}
    return {name: value for name, value in numbers.items() if isinstance(value, Tensor)}


def _optimizer_state(tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the argument of ``load_state_dict`` from ``_optimizer_tensors`` and the parameter groups."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": groups}


def _agree(action: Callable[[], Any]) -> Any:
    """Return the result of ``action`` on this rank. An InputError of one rank is raised on all ranks."""
    result, problem = None, ""
    try:
        result = action()
    except InputError as error:
        problem = error.message
    if problems := sorted(filter(None, all_gather(problem))):
        raise InputError(problems[0], manifests.NEW_RUN)
    return result


def _first_of_machine() -> bool:
    return alone() or int(os.environ.get("LOCAL_RANK", 0)) == 0


def _machine() -> str:
    return os.environ.get("TUTORIAL_MACHINE", "machine-0")


def _rows_file() -> str:
    return f"embeddings-{_machine()}.safetensors"
