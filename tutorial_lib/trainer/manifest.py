"""Manifests of checkpoints: which checkpoints a run folder has, and whether they are intact.

A run folder keeps two checkpoints. ``checkpoint/manifest.json`` names the folder of the newest one and
``checkpoint/manifest-previous.json`` the folder of the one before. A damaged file therefore costs the epochs between
the two checkpoints and not the run. All other files in the folder belong to the user and are neither read nor removed.

This module does not import torch, because the command line checks a run folder before it loads anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.manifests import BEFORE, NEWEST, remove_checkpoints
from tutorial_lib.errors import InputError
from tutorial_lib.files import check_file, flush, what_is_wrong, write_json

FORMAT = 3
NEW_RUN = "Start a new run without --resume, in another folder."
# Exactly the temporary names of ``CheckpointManager.save`` and ``export_weights``.
_HALF_WRITTEN = re.compile(r"\.model\.safetensors|\.(manifest|manifest-previous|config)\.json\.\d+(-[0-9a-f]+)?")


@dataclass
class EpochResult:
    """Result of one epoch over all ranks.

    Attributes:
        epoch: number of the epoch, from 0.
        loss: mean loss per example.
        seconds: time of the training steps.
        val_score: validation score with sampled neighbors.
        score: name of the score, "accuracy" or "MRR".
    """

    epoch: int
    loss: float
    seconds: float
    val_score: float
    score: str = "accuracy"

    @property
    def val_accuracy(self) -> float | None:
        """The validation score if it is an accuracy."""
        return self.val_score if self.score == "accuracy" else None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``result.json``."""
        return {name: getattr(self, name) for name in ("epoch", "loss", "seconds", "val_score", "val_accuracy")}


@dataclass
class FileRecord:
    """One file of a checkpoint. ``machine`` is None for files that rank 0 writes."""

    bytes: int
    sha256: str
    machine: str | None = None


@dataclass
class Manifest:
    """Content of a manifest.

    Attributes:
        folder: name of the folder with the files.
        epochs: the results of the finished epochs.
        description: settings that must be equal when the run resumes.
        files: size and checksum of each file.
        step: number of finished steps of the next epoch.
        sums: sum of the losses and number of examples of these steps, for each rank.
        seconds: training time of these steps.
        optimizer: parameter groups of the dense optimizer.
        sparse_optimizers: settings of each sparse optimizer.
    """

    folder: str
    epochs: list[EpochResult]
    description: dict[str, Any]
    files: dict[str, FileRecord]
    step: int = 0
    sums: list[tuple[float, int]] = field(default_factory=list)
    seconds: float = 0.0
    optimizer: list[dict[str, Any]] = field(default_factory=list)
    sparse_optimizers: list[dict[str, Any]] = field(default_factory=list)
    format: int = FORMAT


@dataclass(frozen=True)
class FoundCheckpoint:
    """An intact checkpoint. ``damaged`` says what is wrong with a newer one, and is empty for the newest."""

    folder: Path
    manifest: Manifest
    damaged: str = ""


def has_checkpoint(folder: Path) -> bool:
    """Return whether ``folder`` has a manifest, damaged or not."""
    return any((folder / name).exists() for name in (NEWEST, BEFORE))


def read_checkpoint(folder: Path) -> FoundCheckpoint:
    """Return the newest checkpoint whose files on this machine are intact, or raise an InputError."""

    def read(path: Path) -> Manifest:
        manifest = read_manifest(path)
        check_files(folder, manifest.folder, manifest.files)
        return manifest

    return newest_intact(folder, read)


def newest_intact(folder: Path, read: Callable[[Path], Manifest]) -> FoundCheckpoint:
    """Return the newest checkpoint that ``read`` accepts, or raise an InputError that names the damage of both."""
    problems: list[str] = []
    for name in (NEWEST, BEFORE):
        try:
            manifest = read(folder / name)
            return FoundCheckpoint(folder / manifest.folder, manifest, "".join(problems))
        except InputError as error:
            problems.append(error.message)
    raise InputError("; and the one before it: ".join(dict.fromkeys(problems)), NEW_RUN)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest, compare its checksum and check the types of its values.

    Raises:
        InputError: the manifest is missing, damaged, or from another version of this program.
    """
    from pydantic import TypeAdapter, ValidationError

    if not has_checkpoint(path.parent):
        raise InputError(f"no checkpoint in {path.parent}: the run ended before its first was complete", NEW_RUN)
    try:
        content = json.loads(path.read_bytes())
        version, checksum = content["format"], content.pop("sha256")
    except FileNotFoundError:
        raise InputError(f"there is no {path}", NEW_RUN) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"damaged checkpoint: {path} cannot be read", NEW_RUN) from None
    if version != FORMAT:
        known = f"format {version}, and this version reads format {FORMAT}"
        raise InputError(f"{path} was written by another version of this program ({known})", NEW_RUN)
    if _digest(content) != checksum:
        raise InputError(f"damaged checkpoint: {path} has other content than when it was written (checksum)", NEW_RUN)
    try:
        return TypeAdapter(Manifest).validate_python(content)
    except ValidationError as error:
        raise InputError(f"damaged checkpoint: {path}: {what_is_wrong(error)}", NEW_RUN) from None


def check_files(folder: Path, name: str, files: Mapping[str, FileRecord], machine: str | None = None) -> None:
    """Compare the files of a checkpoint that this machine can see with their checksums.

    The files of ``machine`` must exist. Files of other machines may exist only there.

    Raises:
        InputError: names a file that is missing or damaged.
    """
    for file, expected in ((folder / name / file, expected) for file, expected in files.items()):
        required = file.exists() or expected.machine in (None, machine)
        if required and (problem := check_file(file, expected.bytes, expected.sha256)):
            raise InputError(f"damaged checkpoint: {file} {problem}", NEW_RUN)


def check_same_settings(saved: Mapping[str, Any], settings: Mapping[str, Any], where: Path) -> None:
    """Compare the settings of a checkpoint with those of this run. Only the number of epochs may differ.

    Raises:
        InputError: lists every setting that differs.
    """

    def text(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    differences = [
        f"{key} {text(saved.get(key))} in the checkpoint, {text(settings.get(key))} now"
        for key in dict.fromkeys([*saved, *settings])
        if key != "epochs" and saved.get(key) != settings.get(key)
    ]
    if differences:
        raise InputError(
            f"the checkpoint in {where} belongs to a run with other settings: {'; '.join(differences)}",
            "Omit these options, because --resume repeats the options of the run, or use another --out.",
        )


def publish(folder: Path, manifest: Manifest) -> None:
    """Make a checkpoint the newest one after its files are on the disk. The newest one becomes the one before.

    Raises:
        OSError: a manifest cannot be written. The newest checkpoint stays the newest.
    """
    with contextlib.suppress(InputError):  # there is none, or it is damaged and must not replace an intact one
        newest = read_manifest(folder / NEWEST)
        if newest.folder != manifest.folder:
            _write(folder / BEFORE, newest)
    _write(folder / NEWEST, manifest)


def _write(path: Path, manifest: Manifest) -> None:
    content = json.loads(json.dumps(asdict(manifest)))  # tuples become lists, as they will be read
    write_json(path, {**content, "sha256": _digest(content)})
    flush(path.parent)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def named_folders(folder: Path) -> list[str]:
    """Return the names of the checkpoints that readable manifests name."""
    found = []
    for name in (NEWEST, BEFORE):
        with contextlib.suppress(InputError):
            found.append(read_manifest(folder / name).folder)
    return found


def remove_leftovers(folder: Path) -> None:
    """Remove the files of an interrupted save. Call this before a job, because a rank may be writing during a job."""
    remove_checkpoints(folder, named_folders(folder))
    for path in folder.glob(".*"):
        if _HALF_WRITTEN.fullmatch(path.name):
            path.unlink(missing_ok=True)
