"""Save and load checkpoints. However a run ended, it can continue from its last complete checkpoint.

``checkpoint/`` of a run folder::

    manifest.json, manifest-previous.json       the newest checkpoint and the one before, see ``trainer.manifest``
    epoch-0003/model.safetensors                weights                                           (rank 0)
    epoch-0003/optimizer.safetensors            tensors of the dense optimizer                    (rank 0)
    epoch-0003/embeddings-MACHINE.safetensors   rows of learnable embeddings and their optimizers (first trainer there)
    epoch-0003-step-000120/                     the same after 120 steps of the fourth epoch
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject, fsync_path, sha256_of, write_json
from tutorial_lib.sampling.loader import Loader
from tutorial_lib.trainer import manifest as manifests
from tutorial_lib.trainer.comm import all_gather, barrier, broadcast, gather, get_rank
from tutorial_lib.trainer.events import Emit, OnBatch, no_events
from tutorial_lib.trainer.manifest import EpochResult, FileRecord, Manifest, remove_checkpoint

Result = TypeVar("Result")


class Trainable(Protocol):
    """The members of ``tasks.task.Task`` that the training loop uses. ``Task`` documents them."""

    score_name: ClassVar[str]
    train_loader: Loader
    embeddings: Mapping[str, Any]
    sparse_optimizers: Sequence[Any]

    def inputs(self, batch: Any) -> Any: ...
    def loss(self, model: nn.Module, inputs: Any) -> tuple[Tensor, int]: ...
    def traffic(self, batch: Any, inputs: Any) -> tuple[int, int]: ...
    def validate(self, model: nn.Module, on_batch: OnBatch = ..., *, epoch: int) -> float: ...


@dataclass
class TrainState:
    """Results of the finished epochs, and progress of this rank in the next epoch."""

    epochs: list[EpochResult] = field(default_factory=list)
    step: int = 0  # finished steps, equal on all ranks
    loss_sum: float = 0.0  # over the examples of these steps on this rank
    examples: int = 0
    seconds: float = 0.0

    @property
    def epoch(self) -> int:
        return len(self.epochs)

    def position(self) -> dict[str, int]:
        return {"epochs": self.epoch, **({"step": self.step} if self.step else {})}


@dataclass
class CheckpointManager:
    """Saves and loads the checkpoints of one run."""

    folder: Path  # ``checkpoint/`` of the run folder
    description: JsonObject  # settings that must be equal when the run resumes, in JSON types
    every: int = 1  # number of epochs between two checkpoints
    resume: bool = False
    emit: Emit = no_events
    stop: Callable[[], bool] = lambda: False  # returns whether the run must save and end

    def __post_init__(self) -> None:
        self.first_of_machine = int(os.environ.get("LOCAL_RANK", 0)) == 0
        self.machine = os.environ.get("TUTORIAL_MACHINE", "machine-0")
        self.rows_file = f"embeddings-{self.machine}.safetensors"

    def load_latest(self, model: nn.Module, optimizer: Optimizer, task: Trainable) -> TrainState:
        """If the run resumes, load the newest intact checkpoint. Return the state to start from. All ranks call it."""
        if not self.resume:
            return TrainState()
        is_root = get_rank() == 0
        stores = self._stores(task)

        def read(path: Path) -> Manifest:
            manifest = _on_all_ranks(lambda: manifests.read_manifest(path) if is_root else None)
            files = dict(manifest.files) if is_root else {}  # rank 0 checks all files that it can see
            if stores:
                files[self.rows_file] = manifest.files.get(self.rows_file, FileRecord(0, "", self.machine))
            _on_all_ranks(lambda: manifests.verify_files(self.folder / manifest.folder, files, self.machine))
            return manifest

        folder, manifest, damaged = manifests.read_checkpoint(self.folder, read)
        if damaged and is_root:  # otherwise the next save would replace the intact checkpoint
            manifests.publish_checkpoint(self.folder, manifest)
        names = ("model", "optimizer")
        weights, tensors = broadcast([load_file(folder / f"{name}.safetensors") for name in names] if is_root else None)
        model.load_state_dict(weights)
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split("/", 1)
            states.setdefault(int(index), {})[key] = value
        # Learning rates and other settings are those of this run, which ``check_same_settings`` has compared.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
        if stores:
            with safe_open(folder / self.rows_file, "pt") as file:
                for name, rows in stores.items():
                    rows[:] = file.get_tensor(name)
        barrier()  # no rank reads an embedding before it is restored
        sums = manifest.sums[get_rank()] if manifest.step else (0.0, 0)
        state = TrainState(manifest.epochs, manifest.step, *sums, manifest.seconds)
        self.emit("resumed", **state.position(), **({"damaged": damaged} if damaged else {}))
        return state

    def save(self, state: TrainState, model: nn.Module, optimizer: Optimizer, task: Trainable, *, last: bool) -> None:
        """Write a checkpoint if ``last`` is true or enough epochs are finished. All ranks call it between two steps."""
        if not last and state.epoch % self.every:
            return
        folder = self.folder / (f"epoch-{state.epoch:04d}" + (f"-step-{state.step:06d}" if state.step else ""))
        is_root = get_rank() == 0
        stores, files = self._stores(task), {}
        barrier()  # no rank changes an embedding from here on
        if is_root:
            states = optimizer.state_dict()["state"].items()
            tensors = {f"{index}/{key}": value for index, values in states for key, value in values.items()}
            for name, content in (("model.safetensors", model.state_dict()), ("optimizer.safetensors", tensors)):
                files[name] = write_tensors(folder / name, content)
        if stores:
            files[self.rows_file] = write_tensors(folder / self.rows_file, stores, self.machine)
        ranks = gather((files, (state.loss_sum, state.examples)))
        if is_root:
            written = {name: record for files, _ in ranks for name, record in files.items()}
            sums = [sums for _, sums in ranks] if state.step else []
            manifest = Manifest(folder.name, state.epochs, self.description, written, state.step, sums, state.seconds)
            manifests.publish_checkpoint(self.folder, manifest)
        # Rank 0 sends this after the new checkpoint is valid. Only then may a machine remove an older one.
        keep = broadcast([kept.folder for kept in manifests.read_manifests(self.folder).values()] if is_root else None)
        if self.first_of_machine:
            manifests.remove_checkpoints(self.folder, keep)
        self.emit("checkpoint", **state.position())

    def _stores(self, task: Trainable) -> dict[str, Tensor]:
        """Return the embeddings and the state of their optimizers that the first trainer saves for its machine."""
        if not self.first_of_machine:
            return {}
        stores = {f"{name}/weight": embedding.weight for name, embedding in task.embeddings.items()}
        for number, optimizer in enumerate(task.sparse_optimizers):
            stores |= {f"optimizer-{number}/{name}": tensor for name, tensor in optimizer_tensors(optimizer).items()}
        return {name: getattr(store, "local_partition", store) for name, store in stores.items()}


def _on_all_ranks(action: Callable[[], Result | None]) -> Result:
    """Return the result of ``action`` on rank 0. An InputError of one rank is raised on all ranks."""
    try:
        result, problem = action(), ""
    except InputError as error:
        result, problem = None, error.message
    results, problems = zip(*all_gather((result, problem)), strict=True)
    if any(problems):
        raise InputError(min(filter(None, problems)), manifests.NEW_RUN)
    return results[0]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], machine: str | None = None) -> FileRecord:
    """Write one file of a checkpoint and return its record. On failure, remove the checkpoint and raise an OSError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        for changed in (path, path.parent, path.parent.parent):
            fsync_path(changed)
        return FileRecord(path.stat().st_size, sha256_of(path), machine)
    except (OSError, SafetensorError) as error:
        remove_checkpoint(path.parent)  # frees the space on a full disk
        if (match := re.search(r"(?:Errno|os error|code:) (\d+)", str(error))) is None:  # as in "(os error 28)"
            raise
        number = int(match[1])
        raise OSError(number, f"cannot write the checkpoint: {os.strerror(number)}", str(path)) from None


def export_weights(model: nn.Module, config: Mapping[str, object], folder: Path) -> None:
    """Write ``model.safetensors`` and ``config.json``, the trained model for other programs."""
    write_tensors(folder / "model.safetensors", model.state_dict())
    write_json(folder / "config.json", dict(config))


def optimizer_tensors(optimizer: Any) -> dict[str, Tensor]:
    if hasattr(optimizer, "_state"):  # dgl.distributed.optim
        states = [state if isinstance(state, tuple) else (state,) for state in optimizer._state.values()]
        return {tensor.tensor_name: tensor for state in states for tensor in state}
    return {  # dgl.optim.SparseAdam
        f"{embedding.name}_{name}": tensor
        for embedding in optimizer._params
        for name, tensor in zip(("step", "mem", "power"), embedding.optm_state, strict=True)
    }
