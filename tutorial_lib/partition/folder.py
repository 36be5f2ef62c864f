"""The partition folder: opening and checking one.

Another process, or another machine with a copy, opens it with ``load_partition_folder``, which compares every file
with the manifest, so that a damaged or half-copied part is named here and not by a server that dies.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_lib.errors import InputError
from tutorial_lib.files import check_file, lock_now, new_folder, sha256_of
from tutorial_lib.partition.report import PartitionReport, TypedReport

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Partition:
    """A partition folder that has been written or checked."""

    folder: Path
    manifest: dict[str, Any]
    reused: bool = False

    @property
    def graph_name(self) -> str:
        """Name under which servers and trainers know the graph."""
        return self.manifest["graph_name"]

    @property
    def config(self) -> Path:
        """DGL's ``part_config`` file."""
        return self.folder / f"{self.graph_name}.json"

    def check_edge_map(self) -> None:
        """Raise an InputError if the edges' original numbers are not there, see ``writer.MOST_MAPPED``."""
        if not (file := self.folder / "edge_map.npy").exists():
            text = f"{file} is not there: of a generated graph of this size it is not written"
            raise InputError(text, "Link prediction needs it: use a smaller --scale.")

    @property
    def types(self) -> dict[str, dict[str, int]] | None:
        """Nodes and edges of each type, see ``report.type_counts``; None for a graph with one type."""
        return self.manifest.get("types")

    @property
    def report(self) -> PartitionReport:
        """Counts and cut; a ``TypedReport`` for a graph with several types."""
        return (TypedReport if self.types else PartitionReport)(**self.manifest["report"])

    @property
    def has_graphbolt(self) -> bool:
        """Whether every part is there in GraphBolt's format too."""
        parts = range(self.manifest["report"]["parts"])
        return all(f"part{k}/fused_csc_sampling_graph.pt" in self.manifest["files"] for k in parts)

    @cached_property
    def node_map(self) -> Any:
        """int64 (N,): original id of each new node id. With several types: such an array for each, type-wise ids."""
        return self._map("node")

    @cached_property
    def node_map_inverse(self) -> Any:
        """int64 (N,): new id of each original node id; or by type."""
        found = self.node_map
        return {kind: np.argsort(of) for kind, of in found.items()} if self.types else np.argsort(found)

    @cached_property
    def edge_map(self) -> Any:
        """int64 (E,): original id of each new edge id; or by type, under keys like ``paper:cites:paper``."""
        return self._map("edge")

    def _map(self, of: str) -> Any:
        if of == "edge":
            self.check_edge_map()
        found = np.load(self.folder / f"{of}_map.npy")
        if not self.types:
            return found
        counts = self.types[f"{of}s"]
        return dict(zip(counts, np.split(found, np.cumsum(list(counts.values()))[:-1]), strict=True))


@contextlib.contextmanager
def unfinished_folder(out: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """Yield a hidden folder beside ``out``, which is renamed to ``out`` when it is complete, or else removed.

    The folder is locked as long as its process lives. Folders without a lock are left from a process that was killed,
    and are removed first. On a file system without locks they stay, because their process may be alive.

    Raises:
        InputError: nothing can be written there, or no longer, because the disk is full.
    """
    parent, prefix = out.parent, f".{out.name}-"
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for left in sorted(parent.iterdir()):
                if re.fullmatch(re.escape(prefix) + r"\d+-[0-9a-f]{8}", left.name) and _remove_unlocked(left):
                    progress(f"removed {left}, which a killed process had left")
            while True:
                folder = new_folder(parent, prefix)
                handle = os.open(folder, FOLDER)
                stack.callback(os.close, handle)
                if lock_now(handle) is not False and folder.exists():
                    break  # else another process removed it before it was locked
        except OSError as error:
            raise _cannot_write(out, error) from None
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            yield folder
        except Exception as cause:
            # numpy, DGL and torch report a full disk in different ways, or as a failed check. The disk itself knows.
            known = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
            if folder.exists() and (problem := cause if known else _disk_problem(folder)):
                raise _cannot_write(out, problem) from cause
            raise


def _remove_unlocked(folder: Path) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, FOLDER)
        except OSError:  # a file, a link, another user's, or gone
            return False
        stack.callback(os.close, handle)
        if not lock_now(handle):
            return False
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _disk_problem(folder: Path) -> OSError | None:
    try:
        with (folder / "disk").open("wb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


def _cannot_write(out: Path, error: Any) -> InputError:
    remedy = "Choose another folder: --out for partition, --root for train."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"Free space there. {remedy}"
    return InputError(f"cannot write the partition {out}: {error.strerror}", remedy)


def checksums_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file in a folder, by its path relative to it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in files}


def load_partition_folder(folder: str | Path, *, checksums: bool = True, part: int | None = None) -> Partition:
    """Open a partition folder and check every file of it against the manifest.

    Args:
        checksums: also compare contents, not only sizes.
        part: on a machine that has a copy of its own part only: the parts of the others may be missing.

    Raises:
        InputError: no manifest, a file is missing, has another size or other content; the file is named.
    """
    folder = Path(folder).absolute()
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        files = manifest["files"]
    except FileNotFoundError:
        raise InputError(f"{folder} is not a partition folder: it has no manifest.json") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder}/manifest.json is damaged", f"Remove {folder} and partition again.") from None
    others = () if part is None else tuple(f"part{k}/" for k in range(manifest["report"]["parts"]) if k != part)
    for name, expected in files.items():
        if name.startswith(others):
            continue
        path, digest = folder / name, expected["sha256"] if checksums else None
        if problem := check_file(path, expected["bytes"], digest):
            raise InputError(f"damaged partition: {path} {problem}", f"Remove {folder} and partition again.")
    return Partition(folder, manifest)
