"""Generated data sets and their cache on disk."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.files import alone_in, new_folder, remove_new_folders

Arrays = dict[str, np.ndarray]
SMALLEST = 0.002  # the smallest scale of a generated data set
QUIET_SCALE = 0.05  # up to this scale, generating takes a second or two, and nothing is printed
WAIT_SECONDS = 7200.0  # for another process that writes the same files, for example a download of 1.4 GB at 2 Mbit/s


@contextlib.contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target``, and remove the folder afterwards. Other processes wait meanwhile."""
    prefix = f".{target.name}.tmp-"
    with alone_in(target.parent, WAIT_SECONDS) as alone:
        if alone:  # no other process writes here, so a killed process left these folders
            remove_new_folders(target.parent, prefix)
        folder = new_folder(target.parent, prefix)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def cached(folder: Path, generate: Callable[[], Iterable[Arrays]], say: Callable[[str], None]) -> Arrays:
    """Return the arrays of a cache, or generate and cache them.

    Every array is a memory-mapped file. Writing into an array does not change its file. ``generate`` yields the arrays
    in groups, and each group is written before the next one is generated.

    Args:
        folder: folder of this cache. Its name must contain everything that decides the content.
        say: receives a line about a damaged cache, or about a cache that cannot be written.
    """
    arrays, _ = read_cache(folder)
    if arrays is not None:
        return arrays
    arrays, group, groups = {}, {}, iter(generate())
    try:
        with temporary_beside(folder) as temporary:
            found, damage = read_cache(folder)
            if found is not None:  # another process was faster
                return found
            if damage:
                say(f"the cache {folder} is damaged ({damage}); generating it again")
                shutil.rmtree(folder, ignore_errors=True)
            for group in groups:
                while group:
                    name, arrays[name] = group.popitem()
                    np.save(temporary / f"{name}.npy", arrays[name])
                    arrays[name] = np.load(temporary / f"{name}.npy", mmap_mode="c")
            (temporary / "meta.json").write_text(json.dumps({"arrays": [*arrays]}) + "\n")
            temporary.rename(folder)
    except OSError as error:  # with a full disk or a read-only folder, the next start generates the arrays again
        say(f"not cached in {folder}: {error}")
        for left in (group, *groups):
            arrays |= left
    return arrays


def read_cache(folder: Path) -> tuple[Arrays | None, str]:
    """Return the arrays of a cache, or None and the damage. The damage is empty if there is no cache."""
    if not folder.is_dir():
        return None, ""
    try:
        names = json.loads((folder / "meta.json").read_text())["arrays"]
        return {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in names}, ""
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        return None, " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True)
class Generated:
    """A data set that this package generates in any size.

    Attributes:
        version: part of the name of the cache. Increase it with every change of the generated data.
        full_size: size at scale 1.0, for messages.
        draw: function of scale and seed that yields groups of arrays. Equal seeds give equal bytes.
        build: function of arrays, scale and seed that returns the data set.
        largest: largest scale.
    """

    name: str
    version: int
    full_size: str
    draw: Callable[[float, int], Iterable[Arrays]]
    build: Callable[[Arrays, float, int], Dataset]
    largest: float = 1.0

    def load(self, *, scale: float, seed: int = 0, root: Path) -> Dataset:
        """Load the data set from ``root/cache``, or generate and cache it.

        Raises:
            InputError: the scale or the seed is out of range.
        """
        self.check(scale, seed)

        def say(line: str) -> None:
            to_stderr(f"{self.name}: {line}")

        def generate() -> Iterable[Arrays]:
            if scale > QUIET_SCALE:
                say(f"generating it at scale {scale:g}")
            yield from self.draw(scale, seed)

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
        """Return the name of the cache folder. Different scales have different names."""
        short = f"{scale:g}"
        return f"{self.name}-{short if float(short) == scale else repr(float(scale))}-seed{seed}-v{self.version}"
