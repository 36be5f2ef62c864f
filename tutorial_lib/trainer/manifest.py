"""Manifests of checkpoints. The command line reads them before it loads anything, so nothing here imports torch."""

import contextlib
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject, check_file, fsync_path, read_json, write_json

NEWEST, PREVIOUS = "manifest.json", "manifest-previous.json"
FORMAT = 4
# The names that ``CheckpointManager`` gives, and no others
FOLDER_NAME = re.compile(r"epoch-\d{4,}(-step-\d{6,})?")
FILE_NAME = re.compile(r"(model|optimizer|embeddings-[^/]+)\.safetensors")
NEW_RUN = "Start a new run without --resume, in another folder."


@dataclass
class EpochResult:
    """Mean loss, training time and sampled validation score of an epoch, counted from 0, over all ranks."""

    epoch: int
    loss: float
    seconds: float
    val_score: float
    val_accuracy: float | None = None  # the score, if it is an accuracy


@dataclass
class FileRecord:
    bytes: int
    sha256: str
    machine: str | None = None  # None for files that rank 0 writes


@dataclass
class Manifest:
    """Content of a manifest. ``step``, ``sums`` and ``seconds`` are the progress in the next epoch."""

    folder: str
    epochs: list[EpochResult]
    description: JsonObject  # settings that must be equal when the run resumes
    files: dict[str, FileRecord]
    step: int = 0
    sums: list[tuple[float, int]] = field(default_factory=list)  # losses and examples, for each rank
    seconds: float = 0.0
    format: int = FORMAT


class FoundCheckpoint(NamedTuple):
    folder: Path
    manifest: Manifest
    damaged: str  # defect of a newer checkpoint, or an empty string


def has_checkpoint(folder: Path) -> bool:
    return any((folder / name).exists() for name in (NEWEST, PREVIOUS))


def read_manifest(path: Path) -> Manifest:
    """Return a manifest, or raise an InputError if it is missing, damaged or from another version of this program."""
    if not path.exists():
        raise InputError(f"there is no checkpoint {path}", NEW_RUN)
    try:
        content = read_json(path, JsonObject)
        if content.get("format") != FORMAT:
            raise InputError(f"{path} has format {content.get('format')}, and this version reads format {FORMAT}")
        manifest = read_json(path, Manifest)
        if not (FOLDER_NAME.fullmatch(manifest.folder) and all(map(FILE_NAME.fullmatch, manifest.files))):
            raise InputError(f"{path} lists files that a checkpoint never has")
        return manifest
    except InputError as error:
        raise InputError(f"unusable checkpoint: {error.message}", NEW_RUN) from None


def verify_files(folder: Path, files: Mapping[str, FileRecord], machine: str = "", *, everything: bool = False) -> None:
    """Raise an InputError if a file is damaged or missing. Files of other machines may exist only there."""
    for file, expected in ((folder / name, expected) for name, expected in files.items()):
        required = everything or file.exists() or expected.machine in (None, machine)
        if required and (problem := check_file(file, expected.bytes, expected.sha256)):
            raise InputError(f"damaged checkpoint: {file} {problem}", NEW_RUN)


def read_checkpoint(folder: Path, read: Callable[[Path], Manifest] | None = None) -> FoundCheckpoint:
    """Return the newest checkpoint that ``read`` accepts, by default one whose files on this machine are intact."""
    problems: list[str] = []
    for name in (NEWEST, PREVIOUS):
        try:
            manifest = (read or read_manifest)(folder / name)
            if read is None:
                verify_files(folder / manifest.folder, manifest.files)
            return FoundCheckpoint(folder / manifest.folder, manifest, "".join(problems))
        except InputError as error:
            problems.append(error.message)
    raise InputError("; previous checkpoint: ".join(problems), NEW_RUN)


def check_same_settings(saved: Mapping[str, object], settings: Mapping[str, object], folder: Path) -> None:
    """Raise an InputError that lists all settings but ``epochs`` that differ between a checkpoint and this run."""
    keys = [key for key in {**saved, **settings} if key != "epochs" and saved.get(key) != settings.get(key)]
    if keys:
        text = "; ".join(f"{key} {saved.get(key)} in the checkpoint, {settings.get(key)} now" for key in keys)
        remedy = "Omit these options, because --resume repeats the options of the run, or use another --out."
        raise InputError(f"the checkpoint in {folder} belongs to a run with other settings: {text}", remedy)


def publish_checkpoint(folder: Path, manifest: Manifest) -> None:
    """Make a checkpoint the newest one after its files are on the disk. The newest one becomes the previous one."""
    newest = read_manifests(folder).get(NEWEST)  # a damaged or missing checkpoint must not replace an intact one
    previous = {PREVIOUS: newest} if newest and newest.folder != manifest.folder else {}
    for name, content in {**previous, NEWEST: manifest}.items():
        write_json(folder / name, asdict(content))
        fsync_path(folder)


def adopt_checkpoint(folder: Path, manifest: Manifest) -> None:
    """Make a copied checkpoint the newest one. An InputError names a file that is missing or damaged."""
    verify_files(folder / manifest.folder, manifest.files, everything=True)
    for name in (*manifest.files, "."):
        fsync_path(folder / manifest.folder / name)
    publish_checkpoint(folder, manifest)
    remove_checkpoints(folder)


def read_manifests(folder: Path) -> dict[str, Manifest]:
    manifests = {}
    for name in (NEWEST, PREVIOUS):
        with contextlib.suppress(InputError):
            manifests[name] = read_manifest(folder / name)
    return manifests


def remove_checkpoints(folder: Path, keep: Container[str] | None = None) -> None:
    """Remove all checkpoints except those in ``keep``, by default the checkpoints with a manifest."""
    keep = [manifest.folder for manifest in read_manifests(folder).values()] if keep is None else keep
    for path in folder.glob("epoch-*"):
        if FOLDER_NAME.fullmatch(path.name) and path.name not in keep:
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove the files of one checkpoint, and its folder if it contains no files of the user."""
    with contextlib.suppress(OSError):
        for file in () if path.is_symlink() else path.iterdir():
            if FILE_NAME.fullmatch(file.name):
                file.unlink(missing_ok=True)
        path.rmdir()
