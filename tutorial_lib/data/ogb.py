"""ogbn-products and ogbn-arxiv, read with the package ogb.

``DglNodePropPredDataset`` calls ``input()`` if a folder has no RELEASE file, and goes online if a raw file is missing.
A batch job would hang, so ``load_ogb`` checks these files first.
"""

from __future__ import annotations

import contextlib
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from tutorial_lib.data.base import MASKS, Dataset
from tutorial_lib.data.cache import temporary_beside
from tutorial_lib.data.download import download_zip
from tutorial_lib.errors import InputError
from tutorial_lib.files import alone_in

PARTS = ("train", "valid", "test")
FEATURES = "raw/node-feat.csv.gz"
CACHE = "processed/dgl_data_processed"


@dataclass(frozen=True)
class OgbSpec:
    """Published facts about one data set."""

    name: str
    stem: str  # name of the zip file and of the folder in it
    nodes: int
    edge_rows: int  # rows of raw/edge.csv.gz
    directed_edges: int  # edges of the graph that load_ogb returns
    num_classes: int
    licence: str
    size: str
    split: str  # folder below split/
    reversed_by_ogb: bool  # ogb adds the reverse of each edge of products; load_ogb adds those of arxiv
    more_files: tuple[str, ...] = ()


# fmt: off
PRODUCTS = OgbSpec(
    "ogbn-products", "products", nodes=2_449_029, edge_rows=61_859_140, directed_edges=123_718_280, num_classes=47,
    licence="Amazon license, as OGB states it", size="about 1.4 GB", split="sales_ranking", reversed_by_ogb=True,
)
ARXIV = OgbSpec(
    "ogbn-arxiv", "arxiv", nodes=169_343, edge_rows=1_166_243, num_classes=40,
    directed_edges=2_315_598,  # counted: no self loop, and 8,444 pairs of papers cite each other
    licence="ODC-BY", size="about 80 MB", split="time", reversed_by_ogb=False, more_files=("raw/node_year.csv.gz",),
)
# fmt: on
SPECS = {spec.name: spec for spec in (PRODUCTS, ARXIV)}


def load_ogb(name: str, *, root: Path, features: bool = True, download: bool = False) -> Dataset:
    """Load ``ogbn-products`` or ``ogbn-arxiv`` from ``root``, with OGB's split and both directions of each edge.

    Args:
        name: a key of ``SPECS``.
        root: folder with ``ogbn_products/`` or ``products.zip`` (arxiv likewise). ogb writes its cache below it.
        features: False accepts a folder without features, and drops existing features.
        download: download the zip file if neither the folder nor the zip file exists.

    Raises:
        InputError: the data are missing, incomplete, damaged or not the published data.
    """
    import dgl
    import pandas as pd
    from ogb.nodeproppred import DglNodePropPredDataset

    spec, root = SPECS[name], Path(root).expanduser()
    folder, steps = root / name.replace("-", "_"), _steps(SPECS[name], root)
    if not folder.is_dir():
        _unpack(spec, folder, download)
    if missing := [file for file in _needed(spec, folder) if not (folder / file).is_file()]:
        text = f"{name}: {folder} is incomplete: {', '.join(missing)} missing"
        raise InputError(text, f"Add them, or move the folder away and start anew.\n{steps}")
    graph_only = "If the graph alone is enough: features=False (command line: --graph-only)."
    if features and not any((folder / file).is_file() for file in (FEATURES, CACHE)):
        raise InputError(f"{name}: has no node features: {folder / FEATURES} is missing", graph_only)
    cache = folder / CACHE
    file, had_cache = cache if cache.exists() else folder / "raw", cache.exists()
    try:
        with alone_in(folder), contextlib.redirect_stdout(sys.stderr):
            graph, labels = DglNodePropPredDataset(name, root=str(root))[0]
        if min(int(end.min()) for end in graph.edges()) < 0:  # DGL checks only the highest ID
            raise ValueError("an edge has a negative node ID")
        masks = {mask: torch.zeros(spec.nodes, dtype=torch.bool) for mask in MASKS}
        for mask, part in zip(masks.values(), PARTS, strict=True):
            file = folder / f"split/{spec.split}/{part}.csv.gz"  # ogb itself would unpickle split_dict.pt
            mask[torch.from_numpy(pd.read_csv(file, header=None).to_numpy()[:, 0])] = True
    except Exception as error:  # ogb, pandas, DGL and zlib each have their own errors
        if not had_cache:
            cache.unlink(missing_ok=True)
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        text = f"{name}: {file} is damaged, or {folder} is read-only or full: {reason}"
        raise InputError(text, f"Move {file} away, copy it again, or start anew.\n{steps}") from error
    feat, graph = graph.ndata.get("feat"), dgl.graph(graph.edges(order="eid"), num_nodes=graph.num_nodes())
    graph = graph if spec.reversed_by_ogb else dgl.to_bidirected(graph)
    found = (graph.num_nodes(), graph.num_edges(), str(labels.dtype), labels.numel())
    if found != (expected := (spec.nodes, spec.directed_edges, "torch.int64", spec.nodes)):
        text = f"{name}: {folder} has (nodes, directed edges, labels) {found}, published: {expected}"
        raise InputError(text, f"Move it away and start anew.\n{steps}")
    if features and feat is None:
        remedy = f"Remove it to read {FEATURES} again. {graph_only}"
        raise InputError(f"{name}: has no node features: {cache} was made without them", remedy)
    data = {"feat": feat.float()} if features else {}
    graph.ndata.update({**data, "label": labels.reshape(-1), **masks})
    info = {"source": _url(spec), "licence": spec.licence, "folder": str(folder), "edge_rows": spec.edge_rows}
    info |= {"split": spec.split, "reverse_edges_from": "ogb" if spec.reversed_by_ogb else "tutorial_lib"}
    return Dataset(name, graph, spec.num_classes, info)


def is_present(name: str, root: Path) -> bool:
    """Return whether ``root`` has the folder or the zip file of a data set, complete or not."""
    return (root / name.replace("-", "_")).is_dir() or (root / f"{SPECS[name].stem}.zip").is_file()


def _needed(spec: OgbSpec, folder: Path) -> list[str]:
    """Return the files that ogb and the split need. With ogb's cache, the raw files are not needed."""
    needed = ["RELEASE_v1.txt", *(f"split/{spec.split}/{part}.csv.gz" for part in PARTS)]
    if not (folder / CACHE).exists():
        raw = ("edge", "node-label", "num-node-list", "num-edge-list")
        needed += [*(f"raw/{stem}.csv.gz" for stem in raw), *spec.more_files]
    return needed


def _url(spec: OgbSpec) -> str:
    return f"http://snap.stanford.edu/ogb/data/nodeproppred/{spec.stem}.zip"


def _steps(spec: OgbSpec, root: Path) -> str:
    return (
        f"{spec.name} is a download of {spec.size}, licence: {spec.licence}.\n"
        "With a network: allow the download (download=True; command line: --download).\n"
        f"Without: download {_url(spec)} elsewhere, copy it to {root / spec.stem}.zip and run the same command again."
    )


def _unpack(spec: OgbSpec, folder: Path, download: bool) -> None:
    """Unpack the zip file, and keep it. The folder appears when it is complete."""
    archive, steps = folder.parent / f"{spec.stem}.zip", _steps(spec, folder.parent)
    if not archive.exists():
        if not download:
            text = f"{spec.name}: neither the folder {folder.name} nor {archive.name} is in {folder.parent}"
            raise InputError(text, steps)
        download_zip(_url(spec), archive, steps)
    try:
        with temporary_beside(folder) as temporary, zipfile.ZipFile(archive) as zipped:
            if folder.is_dir():  # another process was faster
                return
            zipped.extractall(temporary)
            (temporary / spec.stem).rename(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        text = f"{spec.name}: {archive} cannot be unpacked: it is damaged, or the disk is full or read-only: {error}"
        raise InputError(text, steps) from error
