"""ogbn-products and ogbn-arxiv, read by the ``ogb`` package, without its loader's questions and downloads.

``DglNodePropPredDataset`` of ogb 1.3.6 asks with ``input()`` when a folder has no RELEASE file (on "y" it deletes the
folder) and before a download above 1 GB; it goes online when ``raw/edge.csv.gz`` is missing, and deletes the zip
afterwards. For a batch job that is a hang or a loss. Here only ogb's reader is called, for files that are there:

    load_ogb -> _find_folder -> fetch (only with download=True) -> _unpack (the user's zip stays)
             -> _check_folder (files there, gzip streams whole, cache writable)
             -> _read (raw files -> ogb's cache -> graph and labels; split) -> _to_dataset (counts, labels, masks)

Sources: ogb/nodeproppred/{dataset_dgl.py,master.csv} of ogb 1.3.6; counts from https://ogb.stanford.edu/docs/nodeprop.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import shutil
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tutorial_lib.data.base import MASKS, Dataset
from tutorial_lib.data.download import WAIT_SECONDS, fetch
from tutorial_lib.errors import InputError
from tutorial_lib.files import alone_in, new_folder, remove_new_folders

if TYPE_CHECKING:
    import dgl

    Loaded = tuple[dgl.DGLGraph, torch.Tensor, dict[str, torch.Tensor]]  # graph, labels (N, 1), ids of each split

PARTS = ("train", "valid", "test")
FEATURES = "raw/node-feat.csv.gz"
CACHE = "processed/dgl_data_processed"
GRAPH_ONLY = "If the graph alone is enough: features=False (command line: --graph-only)."
_URL = "http://snap.stanford.edu/ogb/data/nodeproppred/"


@dataclass(frozen=True)
class OgbSpec:
    """What is published about one data set: where it comes from and what must come out."""

    name: str
    folder: str  # what ogb calls it below the root
    url: str
    zip_name: str  # its stem is also the one folder inside the zip
    nodes: int
    edge_rows: int  # rows of raw/edge.csv.gz
    directed_edges: int  # edges of the graph that load_ogb returns
    num_classes: int
    licence: str
    size: str
    split: str  # folder below split/
    inverse_edges: bool  # ogb adds the reverse of each row; where it does not, we do
    extra_node_files: tuple[str, ...] = ()


# fmt: off
PRODUCTS = OgbSpec(
    "ogbn-products", "ogbn_products", _URL + "products.zip", "products.zip",
    nodes=2_449_029, edge_rows=61_859_140, directed_edges=123_718_280, num_classes=47,
    licence="Amazon license, as OGB states it", split="sales_ranking", inverse_edges=True,
    size="about 1.4 GB",  # "1.38GB" in ogb's own question, which counts 2**30 bytes as one
)
ARXIV = OgbSpec(
    "ogbn-arxiv", "ogbn_arxiv", _URL + "arxiv.zip", "arxiv.zip",
    nodes=169_343, edge_rows=1_166_243, num_classes=40,
    directed_edges=2_315_598,  # counted: no self loop, 8,444 pairs of papers cite each other
    licence="ODC-BY", split="time", inverse_edges=False, extra_node_files=("node_year",),
    size="about 80 MB",  # the sum of its files
)
# fmt: on
SPECS = {spec.name: spec for spec in (PRODUCTS, ARXIV)}


def load_ogb(name: str, *, root: Path, features: bool = True, download: bool = False) -> Dataset:
    """Load ``ogbn-products`` or ``ogbn-arxiv`` from ``root``, with OGB's own split.

    Node data: ``feat`` float32 (N, F) unless ``features`` is False, ``label`` int64 (N,), three bool masks (N,).
    ogb adds the reverse edges of products; we add those of arxiv, each edge once, and leave out its years.

    Args:
        name: a key of ``SPECS``.
        root: folder that holds ``ogbn_products/`` or ``products.zip`` (arxiv alike); ogb's cache is made below it.
        features: False accepts a folder without features, and drops features that are there.
        download: fetch the zip into ``root`` when neither the folder nor the zip is there.

    Raises:
        InputError: missing, incomplete, damaged or unexpected data, with the steps to get it.
    """
    spec = SPECS.get(name)
    if spec is None:
        raise InputError(f"unknown OGB data set {name!r}", f"Known: {', '.join(SPECS)}.")
    folder = _find_folder(spec, Path(root).expanduser(), download)
    with alone_in(folder):  # one process makes the cache
        _check_folder(spec, folder, features)
        loaded = _read(spec, folder)
    return _to_dataset(spec, folder, loaded, features)


def is_present(name: str, root: Path) -> bool:
    """Whether ``root`` holds the folder or the zip of an OGB data set, complete or not."""
    spec = SPECS[name]
    return (root / spec.folder).is_dir() or (root / spec.zip_name).is_file()


def _steps(spec: OgbSpec, root: Path) -> str:
    return (
        f"{spec.name} is a download of {spec.size}, licence: {spec.licence}.\n"
        "With a network: allow the download (download=True; command line: --download).\n"
        f"Without: fetch {spec.url} elsewhere, copy it to {root / spec.zip_name} and run the same command again. "
        "It is unpacked beside the zip, and the zip is kept."
    )


def _find_folder(spec: OgbSpec, root: Path, download: bool) -> Path:
    """The data set's folder, unpacked now if only its zip is there."""
    folder, archive = root / spec.folder, root / spec.zip_name
    if folder.is_dir():
        return folder
    if not archive.exists() and not download:
        text = f"{spec.name}: neither the folder {spec.folder} nor {spec.zip_name} is in {root}"
        raise InputError(text, _steps(spec, root))
    with alone_in(root, WAIT_SECONDS) as alone:
        if alone:  # then what is left there is that of a killed process
            remove_new_folders(root, f".{spec.folder}-")
        if not archive.exists():
            fetch(spec.url, archive, _steps(spec, root))
        if not folder.is_dir():  # else another process was quicker
            _unpack(spec, archive, folder)
    return folder


def _unpack(spec: OgbSpec, archive: Path, folder: Path) -> None:
    """Extract into a temporary sibling of ``folder``, check, rename: ``folder`` is whole or absent."""
    remedy = f"Copy it there again ({spec.size}, from {spec.url}) and run the same command."
    temporary = None
    try:
        with zipfile.ZipFile(archive) as zipped:
            if unsafe := [name for name in zipped.namelist() if name.startswith("/") or ".." in Path(name).parts]:
                raise InputError(f"{spec.name}: {archive} holds the unsafe path {unsafe[0]!r}: not unpacked", remedy)
            temporary = new_folder(archive.parent, f".{spec.folder}-")
            zipped.extractall(temporary)
        if missing := _missing(spec, temporary / archive.stem, features=False):
            raise InputError(f"{spec.name}: {archive} does not contain {', '.join(missing)}", remedy)
        os.rename(temporary / archive.stem, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{spec.name}: {archive} is not a zip, or is cut off or damaged: {error}", remedy) from error
    except (OSError, RuntimeError, NotImplementedError) as error:  # no permission, disk full, password, odd compression
        remedy = f"{archive.parent} must be writable and have room for the unpacked files; or pass another root."
        raise InputError(f"{spec.name}: could not unpack {archive}: {error}", remedy) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _files(spec: OgbSpec, folder: Path) -> list[str]:
    """The gzip files below ``folder`` that are needed: with a cache the split alone."""
    raw = ["edge", "num-node-list", "num-edge-list", "node-label", *spec.extra_node_files]
    split = [f"split/{spec.split}/{part}.csv.gz" for part in PARTS]
    return split if (folder / CACHE).exists() else [*(f"raw/{stem}.csv.gz" for stem in raw), *split]


def _missing(spec: OgbSpec, folder: Path, features: bool) -> list[str]:
    needed = [*_files(spec, folder), *[FEATURES] * (features and not (folder / CACHE).exists())]
    return [name for name in needed if not (folder / name).is_file()]


def _check_folder(spec: OgbSpec, folder: Path, features: bool) -> None:
    """Raise unless ``folder`` has all that is needed, and no file that is cut off."""
    missing, cached = _missing(spec, folder, features), (folder / CACHE).exists()
    if missing == [FEATURES]:
        raise InputError(f"{spec.name}: has no node features: {folder / FEATURES} is missing", GRAPH_ONLY)
    if missing:
        message = f"{spec.name}: {folder} is incomplete: {', '.join(missing)} missing"
        raise InputError(message, f"Add them, or move the folder away and start anew.\n{_steps(spec, folder.parent)}")
    for name in [*_files(spec, folder), *[FEATURES] * (not cached and (folder / FEATURES).exists())]:
        _check_gzip(spec, folder / name)
    target = (folder / CACHE).parent if (folder / CACHE).parent.is_dir() else folder
    if not cached and not os.access(target, os.W_OK | os.X_OK):
        text = f"{spec.name}: {target} is read-only and has no processed cache, which must be written there"
        raise InputError(text, f"Copy {folder.name} into a folder that you can write to and pass that as root.")


def _check_gzip(spec: OgbSpec, path: Path) -> None:
    """Read ``path`` to its end: that takes seconds; ogb fails on a cut file after minutes and does not name it."""
    try:
        with gzip.open(path) as stream:
            if not stream.read(1 << 20):
                raise EOFError("it is empty")
            while stream.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{spec.name}: {path} is unreadable, damaged or cut off: {error}", "Copy this file again."
        ) from error


def _read(spec: OgbSpec, folder: Path) -> Loaded:
    """Graph and labels from the cache, which is made first where there is none, and the split."""
    import pandas as pd
    from dgl.data.utils import load_graphs

    cache = folder / CACHE
    stage = cache if cache.exists() else folder / "raw"
    try:
        if stage != cache:
            _make_cache(spec, folder / "raw", cache)
        (graph, *_), about = load_graphs(str(cache))
        stage = folder / "split" / spec.split
        ids = [pd.read_csv(stage / f"{part}.csv.gz", header=None).to_numpy()[:, 0] for part in PARTS]
        return graph, about["labels"], dict(zip(PARTS, map(torch.from_numpy, ids), strict=True))
    except Exception as error:  # pandas, numpy, zlib and DGL each have their own for a bad file
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        remedy = "Move that file away: it is made again from raw/." if stage == cache else "Copy that folder again."
        raise InputError(f"{spec.name}: could not read {stage}: {reason}", remedy) from error


def _make_cache(spec: OgbSpec, raw: Path, cache: Path) -> None:
    """What ogb's own loader would write there, whole or not at all."""
    import pandas as pd
    from dgl.data import utils
    from ogb.io.read_graph_dgl import read_graph_dgl

    with contextlib.redirect_stdout(sys.stderr):
        graphs = read_graph_dgl(str(raw), spec.inverse_edges, list(spec.extra_node_files), [])
    labels = torch.from_numpy(pd.read_csv(raw / "node-label.csv.gz", header=None).to_numpy())
    cache.parent.mkdir(exist_ok=True)
    temporary = cache.with_name(f".{cache.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        utils.save_graphs(str(temporary), graphs, {"labels": labels if labels.isnan().any() else labels.long()})
        temporary.replace(cache)
    finally:
        temporary.unlink(missing_ok=True)


def _expect(spec: OgbSpec, folder: Path, what: str, got: object, expected: object) -> None:
    if got != expected:
        message = f"{spec.name}: {folder} has {what} {got}, published: {expected}"
        raise InputError(message, f"Move it away and start anew.\n{_steps(spec, folder.parent)}")


def _to_dataset(spec: OgbSpec, folder: Path, loaded: Loaded, features: bool) -> Dataset:
    """Compare with what is published, and keep exactly the edges and node data of a ``Dataset``."""
    import dgl

    graph, labels, split = loaded
    n, feat = spec.nodes, graph.ndata.get("feat")
    _expect(spec, folder, "nodes:", graph.num_nodes(), n)
    _expect(spec, folder, "edge rows:", graph.num_edges() // (1 + spec.inverse_edges), spec.edge_rows)
    _expect(spec, folder, "labels:", (str(labels.dtype), labels.numel()), ("torch.int64", n))
    if features and feat is None:
        remedy = f"Move it away: it is made again, with features if {FEATURES} is there. {GRAPH_ONLY}"
        raise InputError(f"{spec.name}: has no node features: {folder / CACHE} was made without them", remedy)
    ends = graph.edges(order="eid")
    if min(int(end.min()) for end in ends) < 0 or max(int(end.max()) for end in ends) >= n:
        raise InputError(f"{spec.name}: {folder} has edges to nodes outside 0 to {n - 1}", "Copy it again.")
    rows = dgl.graph(ends, num_nodes=n)
    graph = rows if spec.inverse_edges else dgl.to_bidirected(rows)
    _expect(spec, folder, "directed edges:", graph.num_edges(), spec.directed_edges)
    graph.ndata["label"] = labels.reshape(n)
    if features:
        graph.ndata["feat"] = feat.float()
    for mask, part in zip(MASKS, PARTS, strict=True):
        ids = split[part]
        if ids.dtype != torch.int64 or int(ids.min()) < 0 or int(ids.max()) >= n:
            raise InputError(f"{spec.name}: {folder}/split/{spec.split}/{part}.csv.gz has ids outside 0 to {n - 1}")
        graph.ndata[mask] = torch.zeros(n, dtype=torch.bool).index_fill_(0, ids, True)
    info = {"source": spec.url, "licence": spec.licence, "folder": str(folder), "edge_rows": spec.edge_rows}
    info |= {"split": spec.split, "reverse_edges_from": "ogb" if spec.inverse_edges else "tutorial_lib"}
    return Dataset(spec.name, graph, spec.num_classes, info)
