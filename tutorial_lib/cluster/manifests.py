"""Checkpoints that come home from machines: their manifests come last, so that home has a valid one at any moment.

A manifest is fetched under another name. ``take_over`` gives it its own when all the files that it names are here, and
keeps the one before it as ``manifest-previous.json``. What the two are, see ``checkpoint``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.files import flush, sha256_of

FOLDER = "checkpoint"
NEWEST, BEFORE = "manifest.json", "manifest-previous.json"
ARRIVED = ".arrived-"


@dataclass(frozen=True)
class Manifest:
    """What a manifest says of its files.

    Attributes:
        path, content: of the manifest.
        folder: name of the folder of its files, beside it.
        epochs: number of the finished ones.
        files: name in the folder -> SHA-256.
        owners: names of the machines that hold files of their own; everything else is on the first one.
    """

    path: Path
    content: bytes
    folder: str
    epochs: int
    files: Mapping[str, str]
    owners: Mapping[str, str]


def place(name: str) -> str:
    """Where a file of a run folder is put when it arrives: a manifest waits under another name."""
    if name in (f"{FOLDER}/{NEWEST}", f"{FOLDER}/{BEFORE}"):
        return name.replace("/", f"/{ARRIVED}")
    return name


def number(name: str) -> int | None:
    """Of the checkpoint that a file of a run folder belongs to; None for a file of none."""
    found = re.fullmatch(rf"{FOLDER}/epoch-(\d+)/[^/]+", name)
    return None if found is None else int(found[1])


def read(path: Path) -> Manifest | None:
    """A manifest, or None where there is none that can be read."""
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
        files = {str(name): about["sha256"] for name, about in manifest["files"].items()}
        owners = {name: about["machine"] for name, about in manifest["files"].items() if about["machine"]}
        folder = manifest["folder"]
        if not re.fullmatch(r"epoch-\d+", folder) or any("/" in name or name.startswith(".") for name in files):
            return None
        return Manifest(path, content, folder, len(manifest["epochs"]), files, owners)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def kept(run: Path, prefix: str = "") -> list[Manifest]:
    """Those of a run folder, the newest first."""
    found = [read(run / FOLDER / f"{prefix}{name}") for name in (NEWEST, BEFORE)]
    return [manifest for manifest in found if manifest is not None]


def arrived(run: Path) -> list[Manifest]:
    """Those that have come from a machine and are not valid yet, the newest first."""
    return kept(run, ARRIVED)


def take_over(run: Path, fetched: Mapping[str, str], *, last: bool = False) -> bool:
    """Make the newest two checkpoints valid of which everything is here, and remove what we have brought of others.

    Args:
        fetched: name in the run folder -> SHA-256, of files that came from machines just now; others are read.
        last: nothing more will come; files of a newer checkpoint, which is not complete, are of no use.

    Returns:
        Whether the newest that has arrived is taken, or one as new was here.
    """
    folder, here, came = run / FOLDER, kept(run), arrived(run)
    whole = [manifest for manifest in came if _is_whole(folder, manifest, fetched)]
    by_epochs = {manifest.epochs: manifest for manifest in [*reversed(here), *reversed(whole)]}
    chosen = [by_epochs[epochs] for epochs in sorted(by_epochs, reverse=True)[:2]]
    before = {manifest.path.name: manifest.content for manifest in here}
    for name, manifest in reversed(list(zip((NEWEST, BEFORE), chosen, strict=False))):
        if before.get(name) != manifest.content:
            temporary = folder / f"{ARRIVED}now-{name}"
            temporary.write_bytes(manifest.content)
            flush(temporary)
            temporary.replace(folder / name)
            flush(folder)
    complete = not came or (bool(chosen) and chosen[0].epochs >= max(manifest.epochs for manifest in came))
    needed = {manifest.folder for manifest in (chosen if complete else [*chosen, *came])}
    if complete:
        for manifest in came:
            manifest.path.unlink(missing_ok=True)
    newest = chosen[0].epochs if chosen else 0
    old = {f"{FOLDER}/{manifest.folder}/{name}" for manifest in here for name in manifest.files}
    for name in old | set(fetched):
        epochs, path = number(name), run / name
        if epochs is not None and path.parent.name not in needed and (epochs < newest or last):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something of the user's is there
                path.parent.rmdir()
    return complete


def _is_whole(folder: Path, manifest: Manifest, known: Mapping[str, str]) -> bool:
    paths = {folder / manifest.folder / name: checksum for name, checksum in manifest.files.items()}
    found = {path: known.get(f"{FOLDER}/{manifest.folder}/{path.name}") for path in paths}
    return all(path.is_file() and (found[path] or sha256_of(path)) == paths[path] for path in paths)
