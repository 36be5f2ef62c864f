"""ogbn-products and ogbn-arxiv from the Open Graph Benchmark's files, without its loader's questions and downloads.

``DglNodePropPredDataset`` of ogb 1.3.6 asks with ``input()`` when a folder has no RELEASE file (on "y" it deletes the
folder) and before a download above 1 GB; it goes online when ``raw/edge.csv.gz`` is missing, and deletes the zip
afterwards. For a batch job that is a hang or a loss. Here its files are read as it would read them, and its cache is
written as it would write it, so both can use one folder.

Sources: ogb/nodeproppred/{dataset_dgl.py,master.csv} of ogb 1.3.6; counts from https://ogb.stanford.edu/docs/nodeprop.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tutorial_lib.data.base import Dataset, node_data
from tutorial_lib.data.download import WAIT_SECONDS, fetch
from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.files import alone_in, new_folder, remove_new_folders

if TYPE_CHECKING:
    import dgl

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
    import dgl

    spec = SPECS[name]
    folder = _find_folder(spec, Path(root).expanduser(), download)

    def expect(what: str, got: object, expected: object) -> None:
        if got != expected:
            text = f"{name}: {folder} has {what} {got}, published: {expected}"
            raise InputError(text, f"Move it away and start anew.\n{_steps(spec, folder.parent)}")

    missing = _missing(spec, folder)
    if missing == [FEATURES]:
        if features:
            raise InputError(f"{name}: has no node features: {folder / FEATURES} is missing", GRAPH_ONLY)
    elif missing:
        text = f"{name}: {folder} is incomplete: {', '.join(missing)} missing"
        raise InputError(text, f"Add them, or move the folder away and start anew.\n{_steps(spec, folder.parent)}")
    split = np.full(spec.nodes, len(PARTS))
    for number, part in enumerate(PARTS):
        path = folder / f"split/{spec.split}/{part}.csv.gz"
        ids = _numbers(spec, path, np.int64, ids=True)[:, 0]
        if (split[ids] < number).any():
            raise InputError(f"{name}: {path} has nodes of another part of the split", "Copy this file again.")
        split[ids] = number
    with alone_in(folder):  # one process makes the cache
        graph, labels = _read_graph(spec, folder)
    expect("nodes:", graph.num_nodes(), spec.nodes)
    expect("edge rows:", graph.num_edges() // (1 + spec.inverse_edges), spec.edge_rows)
    expect("labels:", (str(labels.dtype), labels.numel()), ("torch.int64", spec.nodes))
    feat = graph.ndata.get("feat")
    if features and feat is None:
        remedy = f"Move it away: it is made again, with features if {FEATURES} is there. {GRAPH_ONLY}"
        raise InputError(f"{name}: has no node features: {folder / CACHE} was made without them", remedy)
    ends = graph.edges(order="eid")
    if min(int(end.min()) for end in ends) < 0 or max(int(end.max()) for end in ends) >= spec.nodes:
        raise InputError(f"{name}: {folder} has edges to nodes outside 0 to {spec.nodes - 1}", "Copy it again.")
    rows = dgl.graph(ends, num_nodes=spec.nodes)
    graph = rows if spec.inverse_edges else dgl.to_bidirected(rows)
    expect("directed edges:", graph.num_edges(), spec.directed_edges)
    graph.ndata.update(node_data(feat.float().numpy() if features else None, labels.reshape(-1).numpy(), split))
    info = {"source": spec.url, "licence": spec.licence, "folder": str(folder), "edge_rows": spec.edge_rows}
    info |= {"split": spec.split, "reverse_edges_from": "ogb" if spec.inverse_edges else "tutorial_lib"}
    return Dataset(name, graph, spec.num_classes, info)


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
        made = temporary / archive.stem
        if missing := [name for name in _missing(spec, made) if name != FEATURES]:
            raise InputError(f"{spec.name}: {archive} does not contain {', '.join(missing)}", remedy)
        os.rename(made, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{spec.name}: {archive} is not a zip, or is cut off or damaged: {error}", remedy) from error
    except (OSError, RuntimeError, NotImplementedError) as error:  # no permission, disk full, password, odd compression
        remedy = f"{archive.parent} must be writable and have room for the unpacked files; or pass another root."
        raise InputError(f"{spec.name}: could not unpack {archive}: {error}", remedy) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _missing(spec: OgbSpec, folder: Path) -> list[str]:
    """The files below ``folder`` that are needed and are not there; with a cache the split is enough."""
    needed = [f"split/{spec.split}/{part}.csv.gz" for part in PARTS]
    if not (folder / CACHE).exists():
        needed = [*(f"raw/{stem}.csv.gz" for stem in ("edge", "node-label", *spec.extra_node_files)), FEATURES, *needed]
    return [name for name in needed if not (folder / name).is_file()]


def _numbers(spec: OgbSpec, path: Path, dtype: type, *, ids: bool = False) -> np.ndarray:
    """What a file holds: (rows, columns). ``ids``: they must be those of nodes. An error names the file."""
    import pandas as pd

    try:
        found = pd.read_csv(path, header=None, dtype=dtype).to_numpy()
    except Exception as error:  # pandas, gzip and zlib each have their own for a bad file
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        text = f"{spec.name}: {path} is unreadable, damaged or cut off: {reason}"
        raise InputError(text, "Copy this file again.") from error
    if ids and (found.min() < 0 or found.max() >= spec.nodes):
        raise InputError(f"{spec.name}: {path} has ids outside 0 to {spec.nodes - 1}", "Copy this file again.")
    return found


def _read_graph(spec: OgbSpec, folder: Path) -> tuple[dgl.DGLGraph, torch.Tensor]:
    """Graph, with features where there are some, and labels (N, 1): from the cache, or from raw/ and then cached."""
    import dgl
    from dgl.data import utils

    cache, raw = folder / CACHE, folder / "raw"
    if cache.exists():
        try:
            (graph, *_), about = utils.load_graphs(str(cache))
            return graph, about["labels"]
        except Exception as error:  # DGL and zlib each have their own for a bad file
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            text = f"{spec.name}: could not read {cache}: {reason}"
            raise InputError(text, "Move that file away: it is made again from raw/.") from error
    ends = _numbers(spec, raw / "edge.csv.gz", np.int64, ids=True).T
    if spec.inverse_edges:  # each row is followed by its reverse
        ends = np.stack([ends, ends[::-1]], axis=-1).reshape(2, -1)
    graph = dgl.graph(tuple(torch.from_numpy(np.ascontiguousarray(end)) for end in ends), num_nodes=spec.nodes)
    fields = {"feat": (FEATURES, np.float32)} if (folder / FEATURES).is_file() else {}
    fields |= {stem.removeprefix("node_"): (f"raw/{stem}.csv.gz", np.int64) for stem in spec.extra_node_files}
    labels = torch.from_numpy(_numbers(spec, raw / "node-label.csv.gz", np.int64))
    for field, (name, dtype) in fields.items():
        values = _numbers(spec, folder / name, dtype)
        if len(values) != spec.nodes:
            raise InputError(f"{spec.name}: {folder / name} has {len(values)} rows, published: {spec.nodes}")
        graph.ndata[field] = torch.from_numpy(values)
    temporary = cache.with_name(f".{cache.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        cache.parent.mkdir(exist_ok=True)
        utils.save_graphs(str(temporary), [graph], {"labels": labels})
        temporary.replace(cache)
    except (OSError, dgl.DGLError) as error:  # a full disk, a read-only folder: slower next time, but no reason to stop
        to_stderr(f"{spec.name}: not cached in {cache}: {error}")
    finally:
        temporary.unlink(missing_ok=True)
    return graph, labels
