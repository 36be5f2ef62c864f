"""Data sets by name or path: ``load_dataset("synthetic-products", scale=0.04)``.

==================  ===============================================================
synthetic-products  generated imitation of ogbn-products, the default
synthetic-academic  generated authors, papers and fields, a heterogeneous graph
ogbn-products       co-purchase graph of the Open Graph Benchmark, a download
ogbn-arxiv          citation graph of the Open Graph Benchmark, a download
amazon-computers    Amazon Computers, the file that DGL downloads
amazon-photo        Amazon Photo, the file that DGL downloads
PATH.npz            a file in the layout of Amazon Computers
FOLDER or FILE      a graph of your own, see docs/own-graph.md
==================  ===============================================================
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.data.base import Dataset, check_dataset
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    from tutorial_lib.data.cache import Generated

DEFAULT_SCALE = 0.04
NAMES = ("synthetic-products", "synthetic-academic", "ogbn-products", "ogbn-arxiv", "amazon-computers", "amazon-photo")


def default_root() -> Path:
    """Return the folder ``data/`` of the repository of this package, or else of the working directory."""
    repo = Path(__file__).resolve().parents[2]
    return (repo if (repo / "pyproject.toml").is_file() else Path.cwd()) / "data"


def check_arguments(name: str, scale: float, seed: int) -> None:
    """Raise an InputError for an unknown name, or for a scale or seed out of range. Nothing is loaded."""
    if re.search("[\ud800-\udfff]", name):  # Python's replacement of other bytes
        raise InputError(f"{name!r}: the name is not UTF-8", "Rename the file or the folder.")
    if generated := _generated(name):
        generated.check(scale, seed)
    elif name not in NAMES and not name.endswith(".npz") and not _exists(name):
        meant = "".join(f"Did you mean {near}? " for near in get_close_matches(name, NAMES, 1))
        text = f"{meant}Known: {', '.join(NAMES)}; or the path of a graph of your own: docs/own-graph.md."
        raise InputError(f"unknown data set {name if len(name) < 200 else name[:200] + '...'!r}", text)


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError):  # too long, or the home of an unknown user
        return False


def _generated(name: str) -> Generated | None:
    if name == "synthetic-products":
        from tutorial_lib.data.synthetic import PRODUCTS as found
    elif name == "synthetic-academic":
        from tutorial_lib.data.academic import ACADEMIC as found
    else:
        return None
    return found


def load_dataset(
    name_or_path: str | Path,
    *,
    scale: float = DEFAULT_SCALE,
    seed: int = 0,
    root: str | Path | None = None,
    features: bool = True,
    download: bool = False,
    both_ways: bool = False,
) -> Dataset:
    """Load a data set and check it.

    Args:
        name_or_path: one of ``NAMES``, or the path of a graph of your own.
        scale: size of a generated data set, 0.002 to 1.0. At 1.0 it has the size of ogbn-products or ogbn-mag. The
            largest scale of synthetic-products is 8.0, which is a billion edges.
        seed: seed of the generator, or of the random split of a data set without a split.
        root: folder of downloads and caches, by default ``data/``.
        features: False accepts a data set without features.
        download: allow a download.
        both_ways: add the reverse of each edge of your own graph. The other data sets have both directions.

    Raises:
        InputError: the name is unknown, or the data are missing, damaged or invalid.
    """
    root = Path(root) if root is not None else default_root()
    name = str(name_or_path)
    check_arguments(name, scale, seed)
    if generated := _generated(name):
        dataset = generated.load(scale=scale, seed=seed, root=root)
    elif name.startswith("ogbn-") and name in NAMES:
        from tutorial_lib.data.ogb import load_ogb

        dataset = load_ogb(name, root=root, features=features, download=download)
    elif name.startswith("amazon-") and name in NAMES:
        from tutorial_lib.data.npz import load_amazon

        dataset = load_amazon(name, root=root, seed=seed, download=download)
    elif name.endswith(".npz") and not Path(name).expanduser().is_dir():
        from tutorial_lib.data.npz import load_npz

        dataset = load_npz(Path(name), seed=seed)
    else:
        from tutorial_lib.data.own_graph import load_own

        dataset = load_own(Path(name), seed=seed, both_ways=both_ways)
    return check_dataset(dataset, need_features=features)
