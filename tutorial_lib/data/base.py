"""The one data set type of the course, and the checks that every data set passes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.pairs import PIECE, Pairs
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import dgl
    import torch

FINITE = "Fill the gaps, for example with numpy.nan_to_num(feat), or leave the column out. float32 ends at 3.4e38."
MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass
class Dataset:
    """A graph for node classification.

    Attributes:
        name: how the data set was asked for (``synthetic-products``, a path, ...).
        structure: the graph: homogeneous, N nodes with int64 ids. Node data: ``feat`` float32
            of shape (N, F), ``label`` int64 of shape (N,) with values in [0, num_classes), and the
            bool masks ``train_mask``, ``val_mask``, ``test_mask`` of shape (N,).
            Or a heterogeneous one: then the nodes of one type, ``target``, have all of these.
            For counting and cutting, ``Pairs`` are enough.
        num_classes: number of classes, also those without a node.
        info: where it came from (scale, seed, file, ...); JSON types only.
        ids: pyarrow array (N,) of what the user calls each node that is classified; None: its number.
        wide: by type of nodes, float32 features (N, F) as a ``csr_array``, in place of ``feat``.
    """

    name: str
    structure: dgl.DGLGraph | Pairs
    num_classes: int
    info: dict[str, Any] = field(default_factory=dict)
    ids: Any = None
    wide: dict[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> dgl.DGLGraph:
        """The graph as DGL's; made of the pairs when it is first asked for.

        Raises:
            InputError: the memory that is free would not hold it.
        """
        if isinstance(self.structure, Pairs):
            self.structure = self.structure.to_dgl()
        return self.structure

    @property
    def is_heterogeneous(self) -> bool:
        """Whether the graph has several types of nodes or of edges."""
        return not self.structure.is_homogeneous

    @property
    def target(self) -> str:
        """The type of the nodes that are classified; of a homogeneous graph, its only one.

        Raises:
            InputError: not exactly one type has labels.
        """
        if not self.is_heterogeneous:
            return self.structure.ntypes[0]
        found = [name for name in self.structure.ntypes if "label" in self.structure.nodes[name].data]
        if len(found) != 1:
            raise InputError(f"{self.name}: node types with labels ('label') are {found}, expected exactly one")
        return found[0]

    @property
    def target_data(self) -> Any:
        """Node data of the type that is classified: ``feat``, ``label``, masks."""
        return self.structure.nodes[self.target].data

    @property
    def num_features(self) -> int:
        """Width F of ``feat``; 0 for a data set that was loaded without features."""
        feat = self.wide.get(self.target, self.target_data.get("feat"))
        return 0 if feat is None else feat.shape[1]

    def make_dense(self) -> None:
        """Put wide features into the graph, as a process needs them that trains alone.

        Raises:
            InputError: they do not fit in the memory that is free.
        """
        import psutil
        import torch

        if (size := dense_size(self.wide)) > (free := psutil.virtual_memory().available):
            text = f"{self.name}: wide features take {size / 1e9:.1f} GB when dense, and {free / 1e9:.1f} GB is free"
            raise InputError(text, "Machines of a job hold a part each: --ip_config; or leave rare features out.")
        for kind in [*self.wide]:
            self.graph.nodes[kind].data["feat"] = torch.from_numpy(self.wide.pop(kind).toarray())

    def cost(self) -> str:
        """What the data take in memory."""
        size = 16 * self.structure.num_edges() + data_size(self.structure)
        if not self.wide:
            return f"{size / 1e6:,.1f} MB"
        stored = sum(8 * matrix.nnz + matrix.indptr.nbytes for matrix in self.wide.values())
        dense = f"dense {dense_size(self.wide) / 1e6:,.1f} MB, a part on each machine of a job"
        return f"{(size + stored) / 1e6:,.1f} MB; of that wide features {stored / 1e6:,.1f} MB ({dense})"

    def let_go(self) -> None:
        """Give back the memory of what was read from files, see ``Pairs``; of another structure, nothing."""
        if isinstance(self.structure, Pairs):
            self.structure.let_go()

    def split_counts(self) -> dict[str, int]:
        """Number of nodes in each of the three masks."""
        return {name: int(self.target_data[name].sum()) for name in MASKS}

    def fingerprint(self) -> str:
        """SHA-256 over edges, node and edge data: equal content gives an equal string on every machine."""
        digest = hashlib.sha256()
        for key, rows, pieces in self._content():
            for number, tensor in enumerate(pieces):
                if number == 0:
                    digest.update(f"{key} {tensor.dtype} {(rows, *tensor.shape[1:])}".encode())
                digest.update(tensor.contiguous().numpy().data.cast("B"))
                self.let_go()
        digest.update(str(self.num_classes).encode())
        for kind, matrix in sorted(self.wide.items()):
            digest.update(f"{kind} {matrix.shape}".encode())
            for array in (matrix.indptr, matrix.indices, matrix.data):
                digest.update(array)
        if self.ids is not None:
            digest.update("\0".join(map(str, self.ids.to_pylist())).encode())
        return digest.hexdigest()

    def _content(self) -> Iterator[tuple[str, int, Iterable[torch.Tensor]]]:
        """Everything that the graph has: a name, how long it is, its pieces; in an order that is always the same."""
        graph, hetero = self.structure, self.is_heterogeneous
        for relation in graph.canonical_etypes:
            of = f" of {':'.join(relation)}, {graph.num_nodes(relation[0])} nodes" if hetero else ""
            for end, name in enumerate(("src", "dst")):
                yield f"{name}{of}", graph.num_edges(relation), ends(graph, relation, end)
        for name in graph.ntypes:
            of = f" of {name}, {graph.num_nodes(name)} nodes" if hetero else ""
            for key, tensor in sorted(graph.nodes[name].data.items()):
                yield f"{key}{of}", len(tensor), tensor.split(PIECE // 16)
        for relation in graph.canonical_etypes:
            of = f" of {':'.join(relation)}" if hetero else ""
            for key, tensor in sorted(graph.edges[relation].data.items()):
                yield f"edge {key}{of}", len(tensor), [tensor]


def ends(graph: dgl.DGLGraph | Pairs, relation: tuple[str, str, str], of: int) -> Iterator[torch.Tensor]:
    """Where the edges of a type start (0) or lead to (1), in the order of their ids: int64, a piece at a time."""
    if isinstance(graph, Pairs):
        yield from graph.ends(of)
    else:
        yield from graph.edges(order="eid", etype=relation)[of].split(PIECE)


def data_size(graph: dgl.DGLGraph | Pairs) -> int:
    """Bytes of what the nodes and the edges of a graph have."""
    of = [*(graph.nodes[kind] for kind in graph.ntypes), *(graph.edges[key] for key in graph.canonical_etypes)]
    return sum(tensor.nbytes for frame in of for _, tensor in frame.data.items())  # ``values`` has no tensors


def dense_size(wide: Mapping[str, Any]) -> int:
    """Bytes of wide features once they are dense."""
    return sum(4 * matrix.shape[0] * matrix.shape[1] for matrix in wide.values())


def node_data(feat: np.ndarray | None, label: np.ndarray, split: np.ndarray) -> dict[str, torch.Tensor]:
    """What the nodes that are classified have: ``feat`` unless None, ``label`` and the three masks.

    Args:
        feat: float32 (N, F).
        label: integers (N,).
        split: 0 (train), 1 (valid) or 2 (test) for each node; other numbers are in none.
    """
    import torch

    data = {} if feat is None else {"feat": torch.from_numpy(feat)}
    masks = {name: torch.from_numpy(np.equal(split, number)) for number, name in enumerate(MASKS)}
    return data | {"label": torch.from_numpy(label.astype(np.int64))} | masks


def random_split(order: np.ndarray) -> np.ndarray:
    """0 (train: 60 %), 1 (valid: 20 %) or 2 (test) for each node, from all of them in random order: uint8 (N,)."""
    split = np.full(len(order), 2, np.uint8)
    split[order[: round(0.8 * len(order))]] = 1
    split[order[: round(0.6 * len(order))]] = 0
    return split


def check_dataset(dataset: Dataset, *, need_features: bool = True) -> Dataset:
    """Return the data set unchanged, or raise an InputError that names the first thing wrong with it.

    Checked here, before a process starts: dtypes, shapes, label range, NaN or infinite features,
    empty or overlapping splits. DGL's servers would take several of these and die, or train on them.
    """
    import torch

    graph, name = dataset.structure, dataset.name
    if graph.num_nodes() == 0 or graph.num_edges() == 0:
        raise InputError(f"{name}: the graph has {graph.num_nodes()} nodes and {graph.num_edges()} edges")
    for kind in graph.ntypes:
        data = graph.nodes[kind].data
        if graph.num_nodes(kind) == 0:
            raise InputError(f"{name}: there is no node of type {kind!r}")
        if kind != dataset.target and "feat" in data:
            check_features(f"{name}, nodes of type {kind}", data["feat"], graph.num_nodes(kind))
    for relation in graph.canonical_etypes:
        if graph.num_edges(relation) == 0:
            raise InputError(f"{name}: there is no edge of type {relation}")
    n, data = graph.num_nodes(dataset.target), dataset.target_data
    for kind, matrix in dataset.wide.items():
        if not np.isfinite(matrix.data).all():
            row = np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], side="right") - 1
            text = f"{name}: feat has NaN or infinite values, first in row {row} of nodes of type {kind!r}"
            raise InputError(text, FINITE)
    if need_features and dataset.target not in dataset.wide:
        check_features(name, data.get("feat"), n)
    check_labels(name, data.get("label"), n, dataset.num_classes)
    covered = np.zeros(n, np.int8)
    for key in MASKS:
        mask = data.get(key)
        if mask is None:
            raise InputError(f"{name}: has no {key}")
        if mask.dtype != torch.bool or mask.shape != (n,):
            found = f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise InputError(f"{name}: {key} is {found}, expected torch.bool of shape ({n},)")
        if not mask.any():
            raise InputError(f"{name}: {key} selects no node")
        covered += mask.numpy()
    if (covered > 1).any():
        raise InputError(f"{name}: {int((covered > 1).sum())} nodes are in more than one split")
    dataset.let_go()
    return dataset


def check_features(name: str, feat: torch.Tensor | None, n: int) -> None:
    """Raise an InputError unless these are features of n nodes: float32 (n, F), all of them finite."""
    import torch

    if feat is None:
        remedy = "Train with --task embedding, which learns a row for each node. data --graph-only checks the rest."
        raise InputError(f"{name}: has no node features ('feat')", remedy)
    if feat.dim() != 2 or feat.shape[0] != n or feat.shape[1] == 0:
        raise InputError(f"{name}: feat has shape {tuple(feat.shape)}, expected ({n}, number of features)")
    if feat.dtype != torch.float32:
        remedy = "Convert with feat.float(). DGL 2.1.0 partitions bfloat16 without a word; then its server dies."
        raise InputError(f"{name}: feat is {feat.dtype}, expected torch.float32", remedy)
    bad = torch.cat([~torch.isfinite(rows).all(dim=1) for rows in feat.split(PIECE // 16)])
    if bad.any():
        found = f"in {int(bad.sum())} of {n} rows, first in row {int(bad.int().argmax())}"
        raise InputError(f"{name}: feat has NaN or infinite values {found}", FINITE)


def check_labels(name: str, label: torch.Tensor | None, n: int, num_classes: int | None = None) -> None:
    """Raise an InputError unless these are labels of n nodes; without ``num_classes``, of any number of classes."""
    import torch

    if label is None:
        raise InputError(f"{name}: has no labels ('label')")
    if label.shape != (n,) or label.dtype != torch.int64:
        found = f"{label.dtype} of shape {tuple(label.shape)}"
        raise InputError(f"{name}: label is {found}, expected torch.int64 of shape ({n},)")
    low, high = int(label.min()), int(label.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        expected = "0 and up" if num_classes is None else f"0 to {num_classes - 1}"
        raise InputError(f"{name}: labels run from {low} to {high}, expected {expected}")
