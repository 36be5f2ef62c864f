"""The two checkpoints of a run folder: which of them are whole, and which files there are ours to remove.

Each has a manifest, see ``checkpoint``: one flipped bit costs the epochs between the two, and not the run. Everything
else that lies there is the user's: it is neither read nor removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.manifests import BEFORE, NEWEST, remove_checkpoints
from tutorial_lib.errors import InputError
from tutorial_lib.files import check_file, flush, what_is_wrong, write_json
from tutorial_lib.trainer.config import TrainConfig

FORMAT_VERSION = 1
WITH_STEP = 2  # from the middle of an epoch: who reads format 1 alone would begin that epoch again with these weights
FRESH = "Start again without --resume, in another folder."
# Exactly the names that ``Checkpoints.save`` and ``export_weights`` give.
_HALF_WRITTEN = re.compile(r"\.model\.safetensors|\.(manifest|manifest-previous|config)\.json\.\d+(-[0-9a-f]+)?")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk, with intact files.

    Attributes:
        folder: of the files.
        manifest: what ``Checkpoints.save`` has written down.
        damaged: what is wrong with a newer one, so that this one is used; empty for the newest.
    """

    folder: Path
    manifest: dict[str, Any]
    damaged: str = ""

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """One for each finished epoch, as in ``result.json``."""
        return self.manifest["epochs"]

    @property
    def step(self) -> int:
        """Steps that are done of the next epoch."""
        return self.manifest.get("part", {}).get("step", 0)


def exists(folder: Path) -> bool:
    """Whether ``folder`` (``checkpoint/`` of a run) says that it has a checkpoint, whole or not."""
    return any((folder / name).exists() for name in (NEWEST, BEFORE))


def read_checkpoint(folder: Path) -> Checkpoint:
    """The newest checkpoint in ``folder`` of which every file that is on this machine is whole.

    Raises:
        InputError: there is none, or each is damaged; the files that damage them are named.
    """

    def look(name: str) -> dict[str, Any]:
        manifest = read_checked_manifest(folder / name)
        check_files(folder, manifest)
        return manifest

    return newest_whole(folder, look)


def newest_whole(folder: Path, look: Callable[[str], dict[str, Any]]) -> Checkpoint:
    """The newer of the two manifests that ``look`` finds nothing wrong with: it returns one, or raises an InputError.

    Raises:
        InputError: what is wrong with both.
    """
    problems: list[str] = []
    for name in (NEWEST, BEFORE):
        try:
            manifest = look(name)
            return Checkpoint(folder / manifest["folder"], manifest, "".join(problems))
        except InputError as error:
            problems.append(error.message)
    raise InputError("; and the one before it: ".join(dict.fromkeys(problems)), FRESH)


def read_manifest(path: Path) -> dict[str, Any]:
    """Content of one of the two manifests, without its checksum, which is compared.

    Raises:
        InputError: it is missing, damaged, or of another format.
    """
    if not exists(path.parent):
        raise InputError(f"no checkpoint in {path.parent}: the run ended before its first was complete", FRESH)
    try:
        manifest = json.loads(path.read_bytes())
        version, promised = manifest["format"], manifest.pop("sha256")
    except FileNotFoundError:
        raise InputError(f"there is no {path}", FRESH) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"damaged checkpoint: {path} cannot be read", FRESH) from None
    if version not in (FORMAT_VERSION, WITH_STEP):
        raise InputError(f"{path} has format {version}, this program reads formats 1 and 2", FRESH)
    if _digest(manifest) != promised:
        raise InputError(f"damaged checkpoint: {path} has other content than when it was written (checksum)", FRESH)
    return manifest


def read_checked_manifest(path: Path) -> dict[str, Any]:
    """As ``read_manifest``, and its values have the types of a checkpoint: a stranger may have made the checksum."""
    from pydantic import TypeAdapter, ValidationError

    manifest = read_manifest(path)
    try:
        TypeAdapter(_Content).validate_python(manifest)
    except ValidationError as error:
        raise InputError(f"damaged checkpoint: {path}: {what_is_wrong(error)}", FRESH) from None
    return manifest


@dataclass
class _File:
    bytes: int
    sha256: str
    machine: str | None


@dataclass
class _Part:
    step: int = 0


@dataclass
class _Epoch:
    epoch: int = 0
    loss: float = 0.0
    seconds: float = 0.0


@dataclass
class _Content:
    """The part of a manifest that is read before a job."""

    folder: str
    files: dict[str, _File]
    epochs: list[_Epoch]
    description: dict[str, Any]
    part: _Part = field(default_factory=_Part)


def check_files(folder: Path, manifest: Mapping[str, Any], machine: str | None = None) -> None:
    """Compare the files of a checkpoint that this machine can see with its manifest.

    Args:
        machine: the files of this machine must be there, too; those of others may be on those machines only.

    Raises:
        InputError: one is missing or damaged; it is named.
    """
    for name, expected in manifest["files"].items():
        file = folder / manifest["folder"] / name
        ours = file.exists() or expected["machine"] in (None, machine)
        if ours and (problem := check_file(file, expected["bytes"], expected["sha256"])):
            raise InputError(f"damaged checkpoint: {file} {problem}", FRESH)


def check_same_settings(checkpoint: Checkpoint, description: Mapping[str, Any], where: Path) -> None:
    """Raise an InputError that lists every value that differs. The number of epochs may."""

    def text(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    # A setting that there was not when the checkpoint was written had the value that is now usual.
    usual = {key: value for key, value in TrainConfig().to_dict().items() if key in description}
    written = checkpoint.manifest["description"]
    old, new = {**written, **{key: usual[key] for key in usual if key not in written}}, description
    differences = [
        f"{key} {text(old.get(key))} in the checkpoint, {text(new.get(key))} now"
        for key in [*old, *(set(new) - set(old))]
        if key != "epochs" and old.get(key) != new.get(key)
    ]
    if differences:
        raise InputError(
            f"the checkpoint in {where} belongs to a run with other settings: {'; '.join(differences)}",
            "Leave those options out, --resume repeats the run's own; or use another --out.",
        )


def make_valid(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Make a checkpoint whose files are on the disk the newest one; the one that was becomes the one before.

    Raises:
        OSError: a manifest cannot be written; the one that was valid stays so.
    """
    with contextlib.suppress(InputError):  # none yet; a damaged one does not take the place of a whole one
        newest = read_manifest(folder / NEWEST)
        if newest["folder"] != manifest["folder"]:
            _write_manifest(folder / BEFORE, newest)
    _write_manifest(folder / NEWEST, manifest)


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    write_json(path, {**manifest, "sha256": _digest(manifest)})
    flush(path.parent)


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def folders_named(folder: Path) -> set[str]:
    """Folders that a readable manifest names: they are kept."""
    found = set()
    for name in (NEWEST, BEFORE):
        with contextlib.suppress(InputError, KeyError, TypeError):
            found.add(read_manifest(folder / name)["folder"])
    return found


def remove_leftovers(folder: Path) -> None:
    """Remove what an interrupted save left in ``folder``: checkpoints that no manifest names, half-written files.

    Before a job only: in a job, another rank may be writing such a file at this moment.
    """
    remove_checkpoints(folder, folders_named(folder))
    for path in folder.glob(".*"):
        if _HALF_WRITTEN.fullmatch(path.name):
            path.unlink(missing_ok=True)
