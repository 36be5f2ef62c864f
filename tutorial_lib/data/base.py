"""The data set type of the course, and the checks that every data set passes."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject

if TYPE_CHECKING:
    import dgl
    import pyarrow as pa
    import torch

MASKS = ("train_mask", "val_mask", "test_mask")
Relation = tuple[str, str, str]
Tensors = dict[str, "torch.Tensor"]
Edges = dict[Relation, tuple[np.ndarray, np.ndarray]]
NODE, EDGE = "_N", ("_N", "_E", "_N")  # DGL's names in a graph with one type of nodes and one of edges
EDGES_PER_READ = 1 << 24  # edges that are read together
LARGE = 1 << 26  # bytes. Smaller arrays stay in memory
MADV_PAGEOUT = 21  # from <linux/mman.h>, because Python does not define this constant


@dataclass
class Dataset:
    """A graph with node features, labels and a split.

    Attributes:
        name: name or path that the user gave.
        structure: the graph, as ``Pairs`` as long as no caller computes with a DGLGraph. The nodes of the type
            ``target`` have ``feat`` float32 (N, F), ``label`` int64 (N,) in [0, num_classes), and the bool masks
            ``train_mask``, ``val_mask`` and ``test_mask`` (N,), all optional. Other types may have ``feat``.
        num_classes: number of classes, including classes without a node. 0 means that the nodes have no labels.
        info: origin of the data (scale, seed, file), JSON types only.
        ids: pyarrow array (N,) with the user's ID of each target node, or None if the IDs are 0 to N - 1.
    """

    name: str
    structure: dgl.DGLGraph | Pairs
    num_classes: int
    info: JsonObject = field(default_factory=dict)
    ids: pa.Array | None = None

    @property
    def graph(self) -> dgl.DGLGraph:
        if isinstance(pairs := self.structure, Pairs):
            src = np.concatenate((pairs.low, pairs.high), dtype=np.int64)
            dst = np.concatenate((pairs.high, pairs.low), dtype=np.int64)
            self.structure = make_graph({EDGE: (src, dst)}, {NODE: pairs.num_nodes()})
            self.structure.ndata.update(pairs.ndata)
        return self.structure

    @property
    def target(self) -> str:
        """The node type with labels, or the first type if no type has labels."""
        ntypes = self.structure.ntypes
        return next((ntype for ntype in ntypes if "label" in self.structure.nodes[ntype].data), ntypes[0])

    @property
    def target_data(self) -> MutableMapping[str, torch.Tensor]:
        return self.structure.nodes[self.target].data

    @property
    def num_features(self) -> int:
        """Width F of ``feat``, or 0 without features."""
        return self.target_data["feat"].shape[1] if "feat" in self.target_data else 0

    def split_counts(self) -> dict[str, int]:
        """Return the number of nodes in each mask. Without masks, the dictionary is empty."""
        return {name: int(self.target_data[name].sum()) for name in MASKS if name in self.target_data}

    def fingerprint(self) -> str:
        """Return the SHA-256 of the content, which is equal on every machine."""
        digest, graph = hashlib.sha256(), self.structure

        def add(key: str, kind: str, rows: int, chunks: Iterable[torch.Tensor]) -> None:
            for index, tensor in enumerate(chunks):
                if index == 0:
                    head = f"{key}{'' if graph.is_homogeneous else f' of {kind}'} {tensor.dtype}"
                    digest.update(f"{head} {(rows, *tensor.shape[1:])}".encode())
                digest.update(tensor.contiguous().numpy().data.cast("B"))

        for relation in graph.canonical_etypes:
            kind = f"{':'.join(relation)}, {graph.num_nodes(relation[0])} nodes"
            for endpoint, key in enumerate(("src", "dst")):
                add(key, kind, graph.num_edges(relation), read_endpoints(graph, relation, endpoint))
        for ntype in graph.ntypes:
            for key, tensor in sorted(graph.nodes[ntype].data.items()):
                add(key, f"{ntype}, {graph.num_nodes(ntype)} nodes", len(tensor), [tensor])
        for relation in graph.canonical_etypes:
            for key, tensor in sorted(graph.edges[relation].data.items()):
                add(f"edge {key}", ":".join(relation), len(tensor), [tensor])
        digest.update(str(self.num_classes).encode())
        if self.ids is not None:
            digest.update("\0".join(map(str, self.ids.to_pylist())).encode())
        release_pages(graph)
        return digest.hexdigest()


class Pairs:
    """An undirected graph as P pairs of nodes in int32 arrays that can stay on disk. The methods imitate ``DGLGraph``.

    Edge e leads from low[e] to high[e], and edge P + e is its reverse. The pairs are sorted, and low < high.
    """

    is_homogeneous, ntypes, canonical_etypes = True, [NODE], [EDGE]

    def __init__(self, low: np.ndarray, high: np.ndarray, ndata: Tensors, feat: np.ndarray | None = None) -> None:
        self.low, self.high, self.ndata, self.feat = low, high, ndata, feat
        self.nodes, self.edges = {NODE: SimpleNamespace(data=ndata)}, {EDGE: SimpleNamespace(data={})}

    def num_nodes(self, _ntype: str = NODE) -> int:
        return len(next(iter(self.ndata.values())))

    def num_edges(self, _etype: Relation = EDGE) -> int:
        return 2 * len(self.low)


def release_pages(graph: dgl.DGLGraph | Pairs) -> None:
    """Release the pages of large mapped files, except changed pages. The next access reads them again."""
    for array in (graph.low, graph.high, graph.feat) if isinstance(graph, Pairs) else ():
        if array is not None and array.nbytes >= LARGE and isinstance(array.base, mmap.mmap):
            with contextlib.suppress(OSError):  # Linux before 5.4 does not know this advice
                array.base.madvise(MADV_PAGEOUT)


def read_endpoints(graph: dgl.DGLGraph | Pairs, relation: Relation, endpoint: int) -> Iterator[torch.Tensor]:
    """Yield the sources (``endpoint`` 0) or destinations (1) of a relation by edge ID, in int64 chunks."""
    import torch

    if not isinstance(graph, Pairs):
        yield from graph.edges(order="eid", etype=relation)[endpoint].split(EDGES_PER_READ)
        return
    for array in (graph.low, graph.high)[:: -1 if endpoint else 1]:
        for start in range(0, len(array), EDGES_PER_READ):
            yield torch.from_numpy(array[start : start + EDGES_PER_READ].astype(np.int64))
        release_pages(graph)


def make_graph(edges: Edges, counts: dict[str, int]) -> dgl.DGLGraph:
    """Return a graph from the int64 sources and destinations of each relation, and the number of nodes of each type."""
    import dgl
    import torch

    return dgl.heterograph({key: tuple(map(torch.from_numpy, pair)) for key, pair in edges.items()}, counts)


def node_data(feat: np.ndarray | None, label: np.ndarray | None, split: np.ndarray | None) -> dict[str, torch.Tensor]:
    """Return ``feat``, ``label`` and masks as tensors. ``split`` has 0 (train), 1 (valid), 2 (test) or 3 (none)."""
    import torch

    data = {} if feat is None else {"feat": torch.from_numpy(np.ascontiguousarray(feat, np.float32))}
    if label is not None:
        data["label"] = torch.from_numpy(label.astype(np.int64))
    if split is not None:
        data |= {name: torch.from_numpy(np.equal(split, number)) for number, name in enumerate(MASKS)}
    return data


def random_split(order: np.ndarray) -> np.ndarray:
    """Return a uint8 array (N,) of 60 % 0 (train), 20 % 1 (valid) and 20 % 2 (test). ``order`` is a permutation."""
    split = np.full(len(order), 2, np.uint8)
    split[order[: round(0.8 * len(order))]] = 1
    split[order[: round(0.6 * len(order))]] = 0
    return split


def check_dataset(dataset: Dataset, *, need_features: bool = True) -> Dataset:
    """Return the data set unchanged, or raise an InputError that names the first problem."""
    # DGL accepts several of these problems. Its servers then exit later, or the job trains on wrong data.
    graph, name = dataset.structure, dataset.name
    sizes: dict[str | Relation, int] = {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes}
    sizes |= {relation: graph.num_edges(relation) for relation in graph.canonical_etypes}
    if empty_types := [ntype for ntype, size in sizes.items() if size == 0]:
        text = f"{name}: the graph has {graph.num_nodes()} nodes and {graph.num_edges()} edges"
        raise InputError(f"{text}, and no node or edge of type {empty_types[0]!r}")
    if need_features and "feat" not in dataset.target_data:
        remedy = "Train with --task embedding, which learns a row for each node. data --graph-only checks the rest."
        raise InputError(f"{name} has no node features ('feat')", remedy)
    for ntype in graph.ntypes:
        feat = graph.nodes[ntype].data.get("feat")
        if feat is None or (ntype == dataset.target and not need_features):
            continue
        where = name if graph.is_homogeneous else f"{name}, nodes of type {ntype}"
        if feat.dim() != 2 or feat.shape[1] == 0:
            raise InputError(f"{where}: feat has shape {tuple(feat.shape)}, expected ({len(feat)}, number of features)")
        low, high = feat.aminmax(dim=1)
        if (invalid := ~(low.isfinite() & high.isfinite())).any():
            text = f"in {int(invalid.sum())} of {len(invalid)} rows, first in row {int(invalid.int().argmax())}"
            remedy = "Fill the gaps, for example with numpy.nan_to_num(feat). The largest float32 is 3.4e38."
            raise InputError(f"{where}: feat has NaN or infinite values {text}", remedy)
    release_pages(graph)
    if empty_masks := [key for key, count in dataset.split_counts().items() if count == 0]:
        raise InputError(f"{name}: {empty_masks[0]} selects no node", "Mark at least one node in each mask.")
    return dataset
