"""Generated data sets and their arrays on disk: there whole or not at all, checked when read, made anew if damaged."""

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

from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.files import alone_in, new_folder, remove_new_folders

Arrays = dict[str, np.ndarray]
Progress = Callable[[str], None]
SMALLEST, LARGEST = 0.002, 1.0  # scales of a generated data set


def _say_nothing(_line: str) -> None:
    """Progress that nobody wants to see."""


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


@dataclass(frozen=True)
class Generated:
    """A data set that is made here, in any size.

    Attributes:
        version: part of the cache's name: raise it with every change of what is generated.
        arrays: names of what is cached.
        full_size: what scale 1.0 has, for messages.
        draw: (scale, seed, progress) -> arrays. One generator in a fixed order: equal seeds give equal bytes.
        build: (arrays, scale, seed) -> data set.
        quiet_scale: up to here generating takes a second or two and nothing is printed.
    """

    name: str
    version: int
    arrays: Sequence[str]
    full_size: str
    draw: Callable[[float, int, Progress], Arrays]
    build: Callable[[Arrays, float, int], Dataset]
    quiet_scale: float = LARGEST

    def load(self, *, scale: float, seed: int = 0, root: Path) -> Dataset:
        """The data set from ``root/cache/<name>-<scale>-seed<seed>-v<version>``, or generated and then cached.

        A damaged cache is replaced. Arrays of a cached data set are mapped from the files: writing into ``feat`` does
        not change the file.

        Raises:
            InputError: scale or seed out of range.
        """
        self.check(scale, seed)
        cache = ArrayCache(
            Path(root).expanduser() / "cache" / self.cache_name(scale, seed), self.arrays, self.version, self._say
        )
        say = self._say if scale > self.quiet_scale else _say_nothing
        return self.build(cache.load(lambda: self.draw(scale, seed, say)), scale, seed)

    def generate(self, scale: float, seed: int = 0) -> Dataset:
        """Generate the data set; no file is read or written.

        Args:
            scale: 0.002 to 1.0, the share of the nodes and edges of the full size.
            seed: equal seeds give equal bytes.

        Raises:
            InputError: scale or seed out of range.
        """
        self.check(scale, seed)
        return self.build(self.draw(scale, seed, _say_nothing), scale, seed)

    def check(self, scale: float, seed: int) -> None:
        """Raise an InputError if the scale or the seed is out of range."""
        if not SMALLEST <= scale <= LARGEST:
            raise InputError(
                f"{self.name}: scale {scale} is outside {SMALLEST} to {LARGEST}",
                f"1.0 has the size of {self.full_size}; 0.04 is made for a laptop.",
            )
        if seed < 0:
            raise InputError(f"{self.name}: seed {seed} is negative", "Give a whole number from 0 up.")

    def cache_name(self, scale: float, seed: int) -> str:
        """Name of the cache folder; two different scales never share one."""
        short = f"{scale:g}"
        return f"{self.name}-{short if float(short) == scale else repr(float(scale))}-seed{seed}-v{self.version}"

    def _say(self, line: str) -> None:
        to_stderr(f"{self.name}: {line}")
