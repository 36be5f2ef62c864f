"""Checkpoints that come home from machines: their manifests come last, so that home has a valid one at any moment.

A manifest is fetched under another name. ``take_over`` gives it its own when all the files that it names are here, and
keeps the one before it as ``manifest-previous.json``. What the two are, see ``trainer.manifest``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.files import check_file, flush, write_json

FOLDER = "checkpoint"
NEWEST, BEFORE = "manifest.json", "manifest-previous.json"
ARRIVED = ".arrived-"
# Exactly the names that ``checkpoint.save`` and ``export_weights`` give; of a machine's embeddings, its host name.
_GENERATION = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?")
_IN_GENERATION = re.compile(r"(model|optimizer|embeddings-[^/]+)\.safetensors")
Done = tuple[int, int]  # finished epochs, and steps of the next one


@dataclass(frozen=True)
class Manifest:
    """What a manifest says: folder of its files, how far the run was, and name in the run folder -> SHA-256."""

    path: Path
    content: Mapping[str, Any]
    folder: str
    done: Done
    files: Mapping[str, str]


def place(name: str) -> str:
    """Where a file of a run folder is put when it arrives: a manifest waits under another name."""
    return name.replace("/", f"/{ARRIVED}") if name in (f"{FOLDER}/{NEWEST}", f"{FOLDER}/{BEFORE}") else name


def generation(epochs: int, step: int = 0) -> str:
    """Name of a checkpoint's folder."""
    return f"epoch-{epochs:04d}" + (f"-step-{step:06d}" if step else "")


def number(name: str) -> Done | None:
    """Of the checkpoint that a file of a run folder belongs to; None for a file of none."""
    found = re.fullmatch(rf"{FOLDER}/{_GENERATION.pattern}/[^/]+", name)
    return None if found is None else _done(found)


def _done(found: re.Match[str]) -> Done:
    return int(found[1]), int(found[2] or 0)


def kept(run: Path, prefix: str = "") -> list[Manifest]:
    """Those of a run folder that can be read, the newest first; with ``ARRIVED``, those that are not valid yet."""
    found = []
    for path in [run / FOLDER / f"{prefix}{name}" for name in (NEWEST, BEFORE)]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            content = json.loads(path.read_bytes())
            folder = content["folder"]
            files = {f"{FOLDER}/{folder}/{name}": about["sha256"] for name, about in content["files"].items()}
            if all(number(name) is not None for name in files):
                done = len(content["epochs"]), content["step"]
                found.append(Manifest(path, content, folder, done, files))
    return found


def take_over(run: Path, *, last: bool = False) -> bool:
    """Make the newest two checkpoints valid of which everything is here, and remove the others.

    Args:
        last: nothing more will come; files of a newer checkpoint, which is not complete, are of no use.

    Returns:
        Whether the newest that has arrived is taken, or one as new was here.
    """
    folder, here, came = run / FOLDER, kept(run), kept(run, ARRIVED)
    whole = [m for m in came if not any(check_file(run / name, None, digest) for name, digest in m.files.items())]
    by_age = {manifest.done: manifest for manifest in [*reversed(here), *reversed(whole)]}
    chosen = [by_age[done] for done in sorted(by_age, reverse=True)[:2]]
    before = {manifest.path.name: manifest.content for manifest in here}
    for name, manifest in reversed(list(zip((NEWEST, BEFORE), chosen, strict=False))):
        if before.get(name) != manifest.content:
            write_json(folder / name, manifest.content)
            flush(folder)
    newest = chosen[0].done if chosen else (0, 0)
    complete = all(manifest.done <= newest for manifest in came)
    needed = {manifest.folder for manifest in (chosen if complete else [*chosen, *came])}
    for manifest in came if complete else ():
        manifest.path.unlink(missing_ok=True)
    remove_checkpoints(folder, needed, None if last else newest)
    return complete


def remove_checkpoints(folder: Path, keep: Container[str], before: Done | None = None) -> None:
    """Remove every checkpoint but those named ``keep``, or only those of before; several machines may at once."""
    for path in folder.glob("epoch-*"):
        found = _GENERATION.fullmatch(path.name)
        if found and path.name not in keep and (before is None or _done(found) < before):
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove the files of one checkpoint, and its folder where nothing of the user's is in it."""
    with contextlib.suppress(OSError):
        for file in () if path.is_symlink() else path.iterdir():
            if _IN_GENERATION.fullmatch(file.name):
                file.unlink(missing_ok=True)
        path.rmdir()
