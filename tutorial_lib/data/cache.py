"""Caches of generated data sets and downloaded zip files below ``data/``."""

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tutorial_lib.errors import InputError, print_to_stderr
from tutorial_lib.files import sibling_folder

Arrays = dict[str, np.ndarray]
NamedArrays = Iterator[tuple[str, np.ndarray]]
QUIET_SCALE = 0.05  # up to this scale, generating takes at most two seconds, so no message is printed
AMAZON_STEMS = {"amazon-computers": "amazon_co_buy_computer", "amazon-photo": "amazon_co_buy_photo"}  # DGL's file names


def fetch_zip(name: str, url: str, archive: Path, facts: str, *, download: bool) -> None:
    """Download ``archive`` unless it exists. A failed download leaves no file. ``facts`` are size and license."""
    if archive.exists():
        return
    steps = f"""{name} is a download of {facts}.
With a network: allow the download (download=True; command line: --download).
Without a network: download {url} elsewhere, copy it to {archive} and run the same command again."""
    if not download:
        raise InputError(f"{name} is not in {archive.parent}", steps)
    try:
        from torch.hub import download_url_to_file  # prints its progress bar to stderr

        with sibling_folder(archive) as folder:
            download_url_to_file(url, str(folder / archive.name))
            zipfile.ZipFile(folder / archive.name).close()  # raises if the download was cut off
            (folder / archive.name).rename(archive)
    except Exception as error:  # urllib, http and torch raise different types of errors
        raise InputError(f"download of {url} failed: {' '.join(str(error).split())}", steps) from error


def find_amazon(name: str, root: Path, *, download: bool) -> Path:
    """Return the path of ``STEM.npz`` in ``root`` or in its folder ``STEM_...``, or else of DGL's ``STEM.zip``."""
    stem = AMAZON_STEMS[name]
    for file in (*root.glob(f"{stem}.npz"), *root.glob(f"{stem}_*/{stem}.npz")):
        return file
    url = os.environ.get("DGL_REPO", "https://data.dgl.ai").rstrip("/") + f"/dataset/{stem}.zip"
    facts = "about 3 MB, license: MIT (github.com/shchur/gnn-benchmark)"
    fetch_zip(name, url, root / f"{stem}.zip", facts, download=download)
    return root / f"{stem}.zip"


def load_generated(root: Path, name: str, version: int, scale: float, seed: int, generated: NamedArrays) -> Arrays:
    """Return the memory-mapped arrays of a data set from a cache, or generate and store them one by one."""
    scale_name = f"{scale:g}" if float(f"{scale:g}") == scale else repr(float(scale))
    folder = root / "cache" / f"{name}-{scale_name}-seed{seed}-v{version}"
    if (cached := read_cache(folder)) is not None:
        return cached
    if scale > QUIET_SCALE:
        print_to_stderr(f"generating {name} at scale {scale:g}")
    arrays = Arrays()
    try:
        with sibling_folder(folder) as temporary:
            if (cached := read_cache(folder)) is not None:  # another process was faster
                return cached
            if folder.exists():
                print_to_stderr(f"the cache {folder} is damaged and is generated again")
                shutil.rmtree(folder, ignore_errors=True)
            for key, array in generated:
                arrays[key] = array  # kept if np.save fails
                np.save(temporary / f"{key}.npy", array)
                arrays[key] = np.load(temporary / f"{key}.npy", mmap_mode="c")
                del array  # the next array needs this memory
            (temporary / "meta.json").write_text(json.dumps({"arrays": [*arrays]}) + "\n")
            temporary.rename(folder)
    except OSError as error:  # with a full disk or a read-only folder, the next start generates the arrays again
        print_to_stderr(f"not cached in {folder}: {error}")
        arrays.update(generated)
    return arrays


def read_cache(folder: Path) -> Arrays | None:
    try:
        names = json.loads((folder / "meta.json").read_text())["arrays"]
        return {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in names}
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
