"""Data sets by name or path: ``load_dataset("synthetic-products", scale=0.04)``. The README lists them."""

import os
from difflib import get_close_matches
from pathlib import Path

from tutorial_lib.data.base import Dataset, check_dataset
from tutorial_lib.data.cache import AMAZON_STEMS, find_amazon
from tutorial_lib.data.ogb import OGB_DATASETS, load_ogb
from tutorial_lib.data.synthetic import load_academic, load_products
from tutorial_lib.errors import InputError

DEFAULT_SCALE, SMALLEST_SCALE = 0.04, 0.002
GENERATED = {"synthetic-products": load_products, "synthetic-academic": load_academic}
DATASET_NAMES = (*GENERATED, *OGB_DATASETS, *AMAZON_STEMS)


def default_root() -> Path:
    """Return the folder ``data/`` of the repository of this package, or else of the working directory."""
    repo = Path(__file__).resolve().parents[2]
    return (repo if (repo / "pyproject.toml").is_file() else Path.cwd()) / "data"


def check_dataset_arguments(name: str, scale: float, seed: int) -> None:
    """Raise an InputError for an unknown name, or for a scale or seed out of range. This loads no data."""
    if not 0 <= seed < 2**32:
        raise InputError(f"{name}: seed is {seed}, expected 0 to {2**32 - 1}")
    largest = 8.0 if name == "synthetic-products" else 1.0
    if name in GENERATED and not SMALLEST_SCALE <= scale <= largest:
        remedy = "Scale 1.0 has the size of ogbn-products or ogbn-mag. Scale 0.04 suits a laptop."
        raise InputError(f"{name}: scale {scale} is outside {SMALLEST_SCALE} to {largest}", remedy)
    if name not in DATASET_NAMES and not os.path.exists(os.path.expanduser(name)):
        suggestion = "".join(f"Did you mean {match}? " for match in get_close_matches(name, DATASET_NAMES, 1))
        remedy = f"{suggestion}Use {', '.join(DATASET_NAMES)}, or the path of your graph (docs/own-graph.md)."
        raise InputError(f"unknown data set {name[:200]!r}", remedy)


def load_dataset(
    name_or_path: str | Path,
    *,
    scale: float = DEFAULT_SCALE,
    seed: int = 0,
    root: str | Path | None = None,
    features: bool = True,
    download: bool = False,
    add_reverse_edges: bool = False,
) -> Dataset:
    """Load a data set, check it and return it.

    Args:
        name_or_path: one of ``DATASET_NAMES``, or the path of the user's graph.
        scale: size of a generated data set, 0.002 to 1.0. Scale 1.0 has the size of ogbn-products or ogbn-mag. The
            largest scale of synthetic-products is 8.0, which means a billion edges.
        seed: seed of the generator, or of the random split of a data set without a split.
        root: folder of downloads and caches, by default ``data/``.
        features: False accepts a data set without features.
        download: allow a download.
        add_reverse_edges: add the reverse of each edge of the user's graph. The other data sets have both directions.
    """
    root = Path(root).expanduser() if root is not None else default_root()
    name = str(name_or_path)
    check_dataset_arguments(name, scale, seed)
    if name in GENERATED:
        dataset = GENERATED[name](scale=scale, seed=seed, root=root)
    elif name in OGB_DATASETS:
        dataset = load_ogb(name, root=root, features=features, download=download)
    else:
        from tutorial_lib.data.own_graph import load_user_graph  # only now, because DGL takes 2 s and 80 MB

        path = find_amazon(name, root, download=download) if name in AMAZON_STEMS else Path(name)
        dataset = load_user_graph(path, seed=seed, add_reverse_edges=add_reverse_edges)
        if name in AMAZON_STEMS:
            dataset.name = name
    return check_dataset(dataset, need_features=features)
