"""ogbn-products and ogbn-arxiv, through the loader of the ``ogb`` package but without its questions.

ogb 1.3.6 asks with ``input()`` before it replaces a folder that has no RELEASE file (and deletes that folder on "y"),
and before a large download; it goes online as soon as ``raw/edge.csv.gz`` is missing, and deletes the zip afterwards.
In a batch job or a notebook that is a hang or a loss. So everything ogb looks at is looked at here first:

    load_ogb -> _find_folder -> fetch (only with download=True) -> _unpack (the zip stays)
             -> _check_folder (files there, gzip streams whole, cache writable)
             -> _construct (ogb itself, with input() and its download switched off) -> _to_dataset (counts, masks)

Sources: ogb/nodeproppred/{dataset_dgl.py,master.csv} of ogb 1.3.6; counts from https://ogb.stanford.edu/docs/nodeprop.
"""

from __future__ import annotations

import builtins
import contextlib
import gzip
import os
import shutil
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import torch

from tutorial_lib.datasets.base import MASKS, Dataset
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import dgl

CHUNK = 1 << 20
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


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
    version: int = 1

    def meta(self, folder: Path) -> dict[str, Any]:
        """The row of ogb's master.csv for this data set (all text, as there), with our folder as ``dir_path``."""
        return {
            "dir_path": str(folder),
            "num tasks": "1",
            "num classes": str(self.num_classes),
            "eval metric": "acc",
            "task type": "multiclass classification",
            "download_name": Path(self.zip_name).stem,
            "version": str(self.version),
            "url": self.url,
            "add_inverse_edge": str(self.inverse_edges),
            "has_node_attr": "True",
            "has_edge_attr": "False",
            "split": self.split,
            "additional node files": ",".join(self.extra_node_files) or "None",
            "additional edge files": "None",
            "is hetero": "False",
            "binary": "False",
        }


_URL = "http://snap.stanford.edu/ogb/data/nodeproppred/"
SPECS = {
    "ogbn-products": OgbSpec(
        name="ogbn-products",
        folder="ogbn_products",
        url=_URL + "products.zip",
        zip_name="products.zip",
        nodes=2_449_029,
        edge_rows=61_859_140,
        directed_edges=123_718_280,
        num_classes=47,
        licence="Amazon license, as OGB states it",
        size="about 1.4 GB",  # "1.38GB" in ogb's own prompt, which counts in 2**30 bytes
        split="sales_ranking",
        inverse_edges=True,
    ),
    "ogbn-arxiv": OgbSpec(
        name="ogbn-arxiv",
        folder="ogbn_arxiv",
        url=_URL + "arxiv.zip",
        zip_name="arxiv.zip",
        nodes=169_343,
        edge_rows=1_166_243,
        directed_edges=2_315_598,  # counted: 1,166,243 rows, no self loop, 8,444 pairs cite each other
        num_classes=40,
        licence="ODC-BY",
        size="about 80 MB",  # the sum of its files
        split="time",
        inverse_edges=False,
        extra_node_files=("node_year",),
    ),
}


def load_ogb(name: str, *, root: Path, features: bool = True, download: bool = False) -> Dataset:
    """Load ``ogbn-products`` or ``ogbn-arxiv`` from ``root``, with OGB's own split.

    Node data: ``feat`` float32 (N, F) unless ``features`` is False, ``label`` int64 (N,), three bool masks (N,).
    The graph is symmetric: ogb adds the reverse edges of products, we add those of arxiv (each edge once).
    The papers' years that come with arxiv are left out.

    Args:
        name: a key of ``SPECS``.
        root: folder that holds ``ogbn_products/``, ``products.zip``, ...; ogb writes its cache below it.
        features: False accepts a folder without ``raw/node-feat.csv.gz`` and drops features that are there.
        download: fetch the zip into ``root`` when neither the folder nor the zip is there.

    Raises:
        InputError: missing, incomplete, damaged or unexpected data, with the steps to get it.
    """
    if name not in SPECS:
        raise InputError(f"unknown OGB data set {name!r}", f"Known: {', '.join(SPECS)}.")
    spec, root = SPECS[name], Path(root).expanduser()
    folder = _find_folder(spec, root, download)
    _check_folder(spec, folder, root, features)
    graph, labels, split = _construct(spec, folder)
    return _to_dataset(spec, folder, graph, labels, split, features)


def offline_steps(spec: OgbSpec, root: Path) -> str:
    """How to get the data set onto this machine, with or without a network here."""
    return (
        f"{spec.name} is a download of {spec.size}, licence: {spec.licence}.\n"
        f"With a network: allow the download (download=True; command line: --download).\n"
        f"Without one: fetch {spec.url} on another machine, copy it to {root / spec.zip_name} "
        "and run the same command again. It is unpacked beside the zip, and the zip is kept."
    )


def fetch(url: str, target: Path, steps: str) -> Path:
    """Download ``url`` to ``target`` without a question; ``target`` appears only when it is complete.

    Raises:
        InputError: with ``steps`` as the remedy; no part of the file is left behind.
    """
    from tqdm import tqdm

    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=60) as response, open(part, "wb") as out:
            expected = int(response.headers.get("Content-Length") or 0)
            with tqdm(total=expected or None, unit="B", unit_scale=True, desc=target.name) as bar:
                while chunk := response.read(CHUNK):
                    out.write(chunk)
                    bar.update(len(chunk))
        if expected and part.stat().st_size != expected:
            raise OSError(f"the connection ended after {part.stat().st_size} of {expected} bytes")
        os.replace(part, target)
    except (OSError, ValueError) as error:
        raise InputError(f"download of {url} failed: {error}", steps) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return target


def _find_folder(spec: OgbSpec, root: Path, download: bool) -> Path:
    """The data set's folder, unpacked now if only its zip is there."""
    old_name = root / f"{spec.folder}_dgl"  # ogb before 1.2 wrote this, and ogb still prefers it
    folder = old_name if old_name.exists() else root / spec.folder
    if folder.is_dir():
        return folder
    archive = root / spec.zip_name
    if not archive.exists():
        if not download:
            by_hand = root / archive.stem
            hint = f"\n{by_hand} is there: if you unpacked it yourself, rename it to {folder}." * by_hand.is_dir()
            message = f"{spec.name}: not on this machine: no folder {spec.folder} and no {spec.zip_name} in {root}"
            raise InputError(message, offline_steps(spec, root) + hint)
        fetch(spec.url, archive, offline_steps(spec, root))
    _unpack(spec, archive, folder)
    return folder


def _unpack(spec: OgbSpec, archive: Path, folder: Path) -> None:
    """Extract beside ``folder``, check, then rename: a half-written ``folder`` cannot exist."""
    remedy = f"Copy {archive.name} again ({spec.size} from {spec.url}) and run the same command."
    temporary = None
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = [info for info in zipped.infolist() if _inside(spec, archive, info.filename)]
            need, free = sum(info.file_size for info in members), shutil.disk_usage(archive.parent).free
            if need > free:
                text = f"{spec.name}: unpacking {archive} needs {need / 1e9:.2f} GB, {free / 1e9:.2f} GB are free"
                raise InputError(text, f"Make room below {archive.parent}, or use another root.")
            temporary = Path(tempfile.mkdtemp(prefix=f".{spec.folder}-", dir=archive.parent))
            zipped.extractall(temporary, members)
        extracted = temporary / archive.stem
        if missing := _missing(spec, extracted, features=False):
            raise InputError(f"{spec.name}: {archive} does not contain {', '.join(missing)}", remedy)
        os.rename(extracted, folder)
    except zipfile.BadZipFile as error:
        raise InputError(f"{spec.name}: {archive} is not a zip, or is cut off or damaged: {error}", remedy) from error
    except BROKEN as error:
        raise InputError(f"{spec.name}: could not unpack {archive}: {error}", remedy) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _inside(spec: OgbSpec, archive: Path, member: str) -> bool:
    """True for a member of the one folder we want; an InputError for a name that leaves the target folder."""
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise InputError(f"{spec.name}: {archive} holds the unsafe path {member!r}; nothing was unpacked")
    return path.parts[0] == archive.stem


def _cache(folder: Path) -> Path:
    return folder / "processed" / "dgl_data_processed"


def _raw_files(spec: OgbSpec) -> list[str]:
    stems = ["edge", "num-node-list", "num-edge-list", "node-label", *spec.extra_node_files]
    return [f"raw/{stem}.csv.gz" for stem in stems]


def _split_files(spec: OgbSpec) -> list[str]:
    return [f"split/{spec.split}/{part}.csv.gz" for part in ("train", "valid", "test")]


def _missing(spec: OgbSpec, folder: Path, features: bool) -> list[str]:
    """Names, below ``folder``, of the files that ogb will want and not find."""
    needed = [f"RELEASE_v{spec.version}.txt", *_split_files(spec)]
    if not _cache(folder).exists():
        needed += _raw_files(spec) + ["raw/node-feat.csv.gz"] * features
    return [name for name in needed if not (folder / name).is_file()]


def _check_folder(spec: OgbSpec, folder: Path, root: Path, features: bool) -> None:
    """Raise unless ogb can load ``folder`` without a question, a download or a file cut short."""
    missing = _missing(spec, folder, features)
    if missing == ["raw/node-feat.csv.gz"]:
        raise _no_features(spec, folder)
    if missing:
        message = f"{spec.name}: {folder} is incomplete: {', '.join(missing)} missing"
        raise InputError(message, f"Put them there, or move the folder away. {offline_steps(spec, root)}")
    names = _split_files(spec)
    if not _cache(folder).exists():
        optional = "raw/node-feat.csv.gz"
        names += _raw_files(spec) + [optional] * (folder / optional).exists()
    for name in names:
        _check_gzip(spec, folder / name)
    pickled = folder / "split" / spec.split / "split_dict.pt"
    if pickled.exists():  # ogb would unpickle it in place of the three files checked above
        raise InputError(f"{spec.name}: {pickled} is not part of OGB's download", "Move it away and run again.")
    if not _cache(folder).exists() and not os.access(folder, os.W_OK | os.X_OK):
        message = f"{spec.name}: {folder} is read-only and holds no processed cache, which ogb must write there"
        raise InputError(message, "Copy the folder to a place you can write to and pass that place's parent as root.")


def _no_features(spec: OgbSpec, folder: Path) -> InputError:
    return InputError(
        f"{spec.name}: no node features: {folder / 'raw' / 'node-feat.csv.gz'} is missing",
        "Add that file, or load with features=False (command line: --graph-only) if the graph alone is enough.",
    )


def _check_gzip(spec: OgbSpec, path: Path) -> None:
    """Read ``path`` to its end: seconds, where ogb would find a cut file after minutes and not name it."""
    try:
        with gzip.open(path) as stream:
            total = 0
            while block := stream.read(CHUNK):
                total += len(block)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{spec.name}: {path} is damaged or cut off: {error}", "Copy this file again.") from error
    if total == 0:
        raise InputError(f"{spec.name}: {path} is empty", "Copy this file again.")


@contextlib.contextmanager
def _quiet_ogb() -> Iterator[Any]:
    """ogb's dataset module, with input() and its download replaced by an InputError and prints sent to stderr."""

    def refuse(*args: object) -> None:
        raise InputError(f"ogb wanted to ask or to download: {' '.join(map(str, args)).strip()}")

    # ogb/__init__.py asks a web service for its newest version in a thread that a dead network delays, also at exit.
    # It skips that when the package `outdated` cannot be imported.
    absent = object()
    outdated = sys.modules.get("outdated", absent)
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        from ogb.nodeproppred import dataset_dgl
    except ImportError as error:
        raise InputError(f"the package ogb cannot be imported: {error}", "pip install ogb==1.3.6") from error
    finally:
        sys.modules.pop("outdated") if outdated is absent else sys.modules.update(outdated=outdated)
    kept = builtins.input, dataset_dgl.decide_download
    builtins.input = dataset_dgl.decide_download = refuse  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield dataset_dgl
    finally:
        builtins.input, dataset_dgl.decide_download = kept


def _construct(spec: OgbSpec, folder: Path) -> tuple[dgl.DGLGraph, torch.Tensor, dict[str, torch.Tensor]]:
    """Graph, labels and split from ogb; a cache that ogb could not finish writing is taken away again."""
    cache = _cache(folder)
    cached = cache.exists()
    finished = False
    try:
        with _quiet_ogb() as module:
            data = module.DglNodePropPredDataset(spec.name, meta_dict=spec.meta(folder))
            graph, labels = data[0]
            split = data.get_idx_split()
        finished = True
    except InputError:
        raise
    except Exception as error:  # pandas, numpy, DGL and zlib each have their own for a bad file
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if cached:
            text = f"{spec.name}: ogb could not read its processed cache {cache}: {reason}"
            raise InputError(text, "Move that file away: ogb makes it again from the files in raw/.") from error
        raise InputError(f"{spec.name}: ogb could not read {folder}: {reason}", "Copy the folder again.") from error
    finally:
        if not (cached or finished):
            cache.unlink(missing_ok=True)
    return graph, labels, split


def _to_dataset(
    spec: OgbSpec, folder: Path, graph: dgl.DGLGraph, labels: torch.Tensor, split: dict, features: bool
) -> Dataset:
    """Check the counts against the published ones and keep exactly the node data of a ``Dataset``."""
    import dgl

    _check_counts(spec, folder, graph)
    feat = graph.ndata.get("feat")
    if features and feat is None:
        _explain_cache_without_features(spec, folder)
    source, target = graph.edges(order="eid")
    graph = dgl.graph((source, target), num_nodes=spec.nodes)
    if not spec.inverse_edges:
        graph = dgl.to_bidirected(graph)
    if graph.num_edges() != spec.directed_edges:
        raise _unexpected(spec, folder, "directed edges", graph.num_edges(), spec.directed_edges)
    graph.ndata["label"] = _labels(spec, folder, labels)
    if features:
        graph.ndata["feat"] = feat.float()
    for mask, part in zip(MASKS, ("train", "valid", "test"), strict=True):
        graph.ndata[mask] = _mask(spec, folder, part, split[part])
    info = {
        "source": spec.url,
        "licence": spec.licence,
        "folder": str(folder),
        "split": spec.split,
        "edge_rows": spec.edge_rows,
        "reverse_edges_added_by": "ogb" if spec.inverse_edges else "tutorial_lib",
    }
    return Dataset(spec.name, graph, spec.num_classes, info)
