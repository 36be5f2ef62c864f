"""Generated data sets and their arrays on disk: there whole or not at all, checked when read, made anew if damaged."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tutorial_lib.data.base import Dataset
from tutorial_lib.data.pairs import let_go
from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.files import alone_in, new_folder, remove_new_folders

Arrays = dict[str, np.ndarray]
SMALLEST = 0.002  # the smallest scale of a generated data set
QUIET_SCALE = 0.05  # up to here generating takes a second or two, and nothing is printed


def cached(folder: Path, generate: Callable[[], Iterable[Arrays]], say: Callable[[str], None]) -> Arrays:
    """The arrays from their cache; else from ``generate``, and then cached: a file for each, and ``meta.json``.

    Each group that ``generate`` yields is written, and mapped from its files, before the next is drawn.

    The cache is written beside its place and renamed into it, one process at a time; who had to wait reads what the
    other one wrote. Arrays that were read are mapped from the files, private to the process: writing into one does not
    change its file.

    Args:
        folder: of this cache; its name must hold everything that decides the content.
        say: takes a line about damage, or about a cache that could not be written.
    """
    arrays, _ = read_cache(folder)
    if arrays is not None:
        return arrays
    with alone_in(folder.parent) as alone:
        if alone:  # nobody else is writing, so temporary folders are those of a killed process
            remove_new_folders(folder.parent, f".{folder.name}.tmp-")
        arrays, damage = read_cache(folder)
        if arrays is not None:
            return arrays
        if damage:
            say(f"the cache {folder} is damaged ({damage}); generating it again")
            shutil.rmtree(folder, ignore_errors=True)
        arrays, drawn, temporary, pieces = {}, {}, None, iter(generate())
        try:
            temporary = new_folder(folder.parent, f".{folder.name}.tmp-")
            for drawn in pieces:
                while drawn:
                    name, arrays[name] = drawn.popitem()
                    file = temporary / f"{name}.npy"
                    np.save(file, arrays[name])
                    arrays[name] = np.load(file, mmap_mode="c")
            meta = {"arrays": {name: describe(array) for name, array in arrays.items()}}
            (temporary / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
            os.rename(temporary, folder)
        except OSError as error:  # a full disk or a read-only folder: slower next time, but no reason to stop
            say(f"not cached in {folder}: {error}")
            for left in (drawn, *pieces):
                arrays |= left
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        return arrays


def read_cache(folder: Path) -> tuple[Arrays | None, str]:
    """(arrays, "") from a sound cache, (None, "") if there is none, (None, what is wrong) if it is damaged."""
    if not os.path.lexists(folder):
        return None, ""
    try:
        written = json.loads((folder / "meta.json").read_text())["arrays"]
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in written}
        for name, array in arrays.items():
            if written[name] != describe(array):
                return None, f"{name}.npy is not what was written"
    except FileNotFoundError as error:
        return None, f"{Path(error.filename).name} is missing"
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        return None, " ".join(f"{type(error).__name__}: {error}".split())
    return arrays, ""


def describe(array: np.ndarray) -> dict[str, object]:
    """Type, shape and CRC-32 of an array; JSON types."""
    found = {"dtype": str(array.dtype), "shape": list(array.shape), "crc32": zlib.crc32(array.data.cast("B"))}
    let_go(array)
    return found


@dataclass(frozen=True)
class Generated:
    """A data set that is made here, in any size.

    Attributes:
        version: part of the cache's name: raise it with every change of what is generated.
        full_size: what scale 1.0 has, for messages.
        draw: (scale, seed) -> arrays, some at a time. One generator in a fixed order: equal seeds give equal bytes.
        build: (arrays, scale, seed) -> data set.
        largest: the largest scale.
    """

    name: str
    version: int
    full_size: str
    draw: Callable[[float, int], Iterable[Arrays]]
    build: Callable[[Arrays, float, int], Dataset]
    largest: float = 1.0

    def load(self, *, scale: float, seed: int = 0, root: Path) -> Dataset:
        """The data set from ``root/cache/<name>-<scale>-seed<seed>-v<version>``, or generated and then cached.

        Raises:
            InputError: scale or seed out of range.
        """
        self.check(scale, seed)

        def say(line: str) -> None:
            to_stderr(f"{self.name}: {line}")

        def generate() -> Iterable[Arrays]:
            if scale > QUIET_SCALE:
                say(f"generating it at scale {scale:g}")
            return self.draw(scale, seed)

        folder = Path(root).expanduser() / "cache" / self.cache_name(scale, seed)
        return self.build(cached(folder, generate, say), scale, seed)

    def check(self, scale: float, seed: int) -> None:
        """Raise an InputError if the scale or the seed is out of range."""
        if not SMALLEST <= scale <= self.largest:
            text = f"{self.name}: scale {scale} is outside {SMALLEST} to {self.largest}"
            raise InputError(text, f"1.0 has the size of {self.full_size}; 0.04 is made for a laptop.")
        if seed < 0:
            raise InputError(f"{self.name}: seed {seed} is negative", "Give a whole number from 0 up.")

    def cache_name(self, scale: float, seed: int) -> str:
        """Name of the cache folder; two different scales never share one."""
        short = f"{scale:g}"
        return f"{self.name}-{short if float(short) == scale else repr(float(scale))}-seed{seed}-v{self.version}"
