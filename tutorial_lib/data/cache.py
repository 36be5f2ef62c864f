"""Generated arrays on disk: there whole or not at all, checked when read, made again when damaged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tutorial_lib.files import alone_in, new_folder, remove_new_folders

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ArrayCache:
    """The cache of one generated data set: a file per array and ``meta.json``.

    It is written beside its place and renamed into it, so it is whole also when two processes write it at once. Arrays
    that were read are mapped from the files, private to the process: writing into one does not change its file.

    Attributes:
        folder: of this cache; its name must hold everything that decides the content.
        names: of the arrays.
        version: of the generator.
        say: takes a line about damage, or about a cache that could not be written.
    """

    folder: Path
    names: Sequence[str]
    version: int
    say: Callable[[str], None]

    def load(self, generate: Callable[[], Arrays]) -> Arrays:
        """The arrays from the cache; else from ``generate``, and then cached."""
        arrays, _ = self.read()
        return arrays if arrays is not None else self._generate(generate)

    def _generate(self, generate: Callable[[], Arrays]) -> Arrays:
        """Generate and cache, one process at a time; who had to wait reads what the other one wrote."""
        folder = self.folder
        with alone_in(folder.parent) as alone:
            if alone:  # nobody else is writing, so temporary folders are those of a killed process
                remove_new_folders(folder.parent, f".{folder.name}.tmp-")
            arrays, damage = self.read()
            if arrays is not None:
                return arrays
            if damage:
                self.say(f"the cache {folder} is damaged ({damage}); generating it again")
            arrays = generate()
            try:
                self._write(arrays)
            except OSError as error:  # a full disk or a read-only folder: slower next time, but no reason to stop
                self.say(f"not cached in {folder}: {error}")
            return arrays

    def read(self) -> tuple[Arrays | None, str]:
        """(arrays, "") from a sound cache, (None, "") if there is none, (None, what is wrong) if it is damaged."""
        if not os.path.lexists(self.folder):
            return None, ""
        try:
            meta = json.loads((self.folder / "meta.json").read_text())
            files = {name: self.folder / f"{name}.npy" for name in self.names}
            arrays = {name: np.load(file, mmap_mode="c", allow_pickle=False) for name, file in files.items()}
            for name, array in arrays.items():
                if meta["arrays"][name] != describe(array):
                    return None, f"{name}.npy is not what was written"
        except FileNotFoundError as error:
            return None, f"{Path(error.filename).name} is missing"
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            return None, " ".join(f"{type(error).__name__}: {error}".split())
        return arrays, ""

    def _write(self, arrays: Arrays) -> None:
        temporary = new_folder(self.folder.parent, f".{self.folder.name}.tmp-")
        try:
            for name in self.names:
                np.save(temporary / f"{name}.npy", arrays[name])
            meta = {"version": self.version, "arrays": {name: describe(arrays[name]) for name in self.names}}
            (temporary / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
            self._move_into_place(temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _move_into_place(self, temporary: Path) -> None:
        """Rename ``temporary`` unless a sound cache came there meanwhile; a damaged one makes way."""
        try:
            os.rename(temporary, self.folder)
        except OSError:
            if not os.path.lexists(self.folder):
                raise
            if self.read()[0] is None:
                aside = temporary.with_name(f"{temporary.name}-damaged")
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.folder, aside)
                os.rename(temporary, self.folder)
                shutil.rmtree(aside, ignore_errors=True)


def describe(array: np.ndarray) -> dict[str, object]:
    """Type, shape and CRC-32 of an array; JSON types."""
    return {"dtype": str(array.dtype), "shape": list(array.shape), "crc32": zlib.crc32(memoryview(array).cast("B"))}


def name_with_scale(name: str, scale: float, seed: int, version: int) -> str:
    """Name of a cache folder; two different scales never share one."""
    short = f"{scale:g}"
    return f"{name}-{short if float(short) == scale else repr(float(scale))}-seed{seed}-v{version}"
