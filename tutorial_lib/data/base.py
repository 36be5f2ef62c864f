"""The data set type of the course, and the checks that every data set passes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.pairs import PIECE, Pairs
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import dgl
    import torch

MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass
class Dataset:
    """A graph with node features, labels and a split.

    Attributes:
        name: name or path that the user gave.
        structure: the graph. The nodes of one type, ``target``, have ``feat`` float32 of shape (N, F), ``label`` int64
            of shape (N,) with values in [0, num_classes), and the bool masks ``train_mask``, ``val_mask`` and
            ``test_mask`` of shape (N,). All of these are optional in a graph of your own. Other types may have
            ``feat``. ``Pairs`` replace a DGLGraph where nobody computes with it.
        num_classes: number of classes, including classes without a node. 0 means that there are no labels.
        info: origin of the data (scale, seed, file), JSON types only.
        ids: pyarrow array (N,) with the user's ID of each target node. None means the node's number.
    """

    name: str
    structure: dgl.DGLGraph | Pairs
    num_classes: int
    info: dict[str, Any] = field(default_factory=dict)
    ids: Any = None

    @property
    def graph(self) -> dgl.DGLGraph:
        """The graph as a DGLGraph.

        Raises:
            InputError: the graph does not fit in memory.
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
        """The node type with labels, or the first type if there are no labels.

        Raises:
            InputError: several types have labels.
        """
        kinds = self.structure.ntypes
        labeled = [kind for kind in kinds if "label" in self.structure.nodes[kind].data]
        if len(labeled) > 1:
            raise InputError(f"{self.name}: node types with labels ('label') are {labeled}, expected exactly one")
        return (labeled or kinds)[0]

    @property
    def target_data(self) -> Any:
        """Node data of the target type."""
        return self.structure.nodes[self.target].data

    @property
    def num_features(self) -> int:
        """Width F of ``feat``, or 0 if there are no features."""
        feat = self.target_data.get("feat")
        return 0 if feat is None else feat.shape[1]

    def split_counts(self) -> dict[str, int]:
        """Return the number of nodes in each mask. Without masks, the dictionary is empty."""
        return {name: int(self.target_data[name].sum()) for name in MASKS if name in self.target_data}

    def fingerprint(self) -> str:
        """Return the SHA-256 of the content, which is equal on every machine."""
        digest, graph = hashlib.sha256(), self.structure

        def add(key: str, kind: str, rows: int, pieces: Iterable[torch.Tensor]) -> None:
            for number, tensor in enumerate(pieces):
                if number == 0:
                    head = f"{key}{kind if self.is_heterogeneous else ''} {tensor.dtype} {(rows, *tensor.shape[1:])}"
                    digest.update(head.encode())
                digest.update(tensor.contiguous().numpy().data.cast("B"))

        for relation in graph.canonical_etypes:
            kind = f" of {':'.join(relation)}, {graph.num_nodes(relation[0])} nodes"
            for number, key in enumerate(("src", "dst")):
                add(key, kind, graph.num_edges(relation), ends(graph, relation, number))
        for ntype in graph.ntypes:
            for key, tensor in sorted(graph.nodes[ntype].data.items()):
                add(key, f" of {ntype}, {graph.num_nodes(ntype)} nodes", len(tensor), [tensor])
        for relation in graph.canonical_etypes:
            for key, tensor in sorted(graph.edges[relation].data.items()):
                add(f"edge {key}", f" of {':'.join(relation)}", len(tensor), [tensor])
        digest.update(str(self.num_classes).encode())
        if self.ids is not None:
            digest.update("\0".join(map(str, self.ids.to_pylist())).encode())
        if isinstance(graph, Pairs):
            graph.let_go()
        return digest.hexdigest()


def ends(graph: dgl.DGLGraph | Pairs, relation: tuple[str, str, str], of: int) -> Iterator[torch.Tensor]:
    """Yield the sources (0) or destinations (1) of a relation in the order of the edge IDs: int64, in pieces."""
    if isinstance(graph, Pairs):
        yield from graph.ends(of)
    else:
        yield from graph.edges(order="eid", etype=relation)[of].split(PIECE)


def node_data(feat: np.ndarray | None, label: np.ndarray | None, split: np.ndarray | None) -> dict[str, torch.Tensor]:
    """Return ``feat``, ``label`` and the three masks as tensors, without those that are None.

    Args:
        feat: float32 array of shape (N, F).
        label: array of integers of shape (N,).
        split: 0 (train), 1 (valid) or 2 (test) for each node. Other numbers mean no mask.
    """
    import torch

    data = {} if feat is None else {"feat": torch.from_numpy(feat)}
    if label is not None:
        data["label"] = torch.from_numpy(label.astype(np.int64))
    if split is not None:
        data |= {name: torch.from_numpy(np.equal(split, number)) for number, name in enumerate(MASKS)}
    return data


def random_split(order: np.ndarray) -> np.ndarray:
    """Return 0 (train: 60 %), 1 (valid: 20 %) or 2 (test) for each node, from all nodes in random order: uint8 (N,)."""
    split = np.full(len(order), 2, np.uint8)
    split[order[: round(0.8 * len(order))]] = 1
    split[order[: round(0.6 * len(order))]] = 0
    return split


def check_dataset(dataset: Dataset, *, need_features: bool = True) -> Dataset:
    """Return the data set unchanged, or raise an InputError that names the first problem.

    DGL's servers would accept several of these problems and exit later, or train on them.
    """
    graph, name = dataset.structure, dataset.name
    if graph.num_nodes() == 0 or graph.num_edges() == 0:
        raise InputError(f"{name}: the graph has {graph.num_nodes()} nodes and {graph.num_edges()} edges")
    sizes: dict[Any, int] = {kind: graph.num_nodes(kind) for kind in graph.ntypes}
    sizes |= {relation: graph.num_edges(relation) for relation in graph.canonical_etypes}
    if empty := [kind for kind, size in sizes.items() if size == 0]:
        raise InputError(f"{name}: there is no node or edge of type {empty[0]!r}")
    target, data = dataset.target, dataset.target_data
    if need_features and "feat" not in data:
        remedy = "Train with --task embedding, which learns a row for each node. data --graph-only checks the rest."
        raise InputError(f"{name}: has no node features ('feat')", remedy)
    for kind in graph.ntypes:
        if (feat := graph.nodes[kind].data.get("feat")) is not None and (need_features or kind != target):
            where = name if graph.is_homogeneous else f"{name}, nodes of type {kind}"
            check_features(where, feat, graph.num_nodes(kind))
    check_labels(dataset)
    check_masks(dataset)
    if isinstance(graph, Pairs):
        graph.let_go()
    return dataset


def check_features(name: str, feat: torch.Tensor, n: int) -> None:
    """Raise an InputError unless ``feat`` is float32 of shape (n, F) and finite."""
    import torch

    if feat.dim() != 2 or feat.shape[0] != n or feat.shape[1] == 0:
        raise InputError(f"{name}: feat has shape {tuple(feat.shape)}, expected ({n}, number of features)")
    if feat.dtype != torch.float32:
        remedy = "Convert it with feat.float(). DGL 2.1.0 partitions bfloat16, but its server exits."
        raise InputError(f"{name}: feat is {feat.dtype}, expected torch.float32", remedy)
    bad = torch.cat([~torch.isfinite(rows).all(dim=1) for rows in feat.split(PIECE // 16)])
    if bad.any():
        text = f"in {int(bad.sum())} of {n} rows, first in row {int(bad.int().argmax())}"
        remedy = "Fill the gaps, for example with numpy.nan_to_num(feat). float32 ends at 3.4e38."
        raise InputError(f"{name}: feat has NaN or infinite values {text}", remedy)


def check_labels(dataset: Dataset) -> None:
    """Raise an InputError unless the labels are int64 in [0, num_classes), or missing and ``num_classes`` is 0."""
    import torch

    n, label = dataset.structure.num_nodes(dataset.target), dataset.target_data.get("label")
    if (label is None) != (dataset.num_classes == 0):
        found = "no labels ('label')" if label is None else "labels"
        raise InputError(f"{dataset.name}: has {found} and {dataset.num_classes} classes")
    if label is None:
        return
    if label.shape != (n,) or label.dtype != torch.int64:
        found = f"{label.dtype} of shape {tuple(label.shape)}"
        raise InputError(f"{dataset.name}: label is {found}, expected torch.int64 of shape ({n},)")
    low, high = int(label.min()), int(label.max())
    if low < 0 or high >= dataset.num_classes:
        text = f"{dataset.name}: labels run from {low} to {high}, expected 0 to {dataset.num_classes - 1}"
        raise InputError(text)


def check_masks(dataset: Dataset) -> None:
    """Raise an InputError unless the masks select disjoint, nonempty sets. Without labels they are optional."""
    import torch

    name, data, n = dataset.name, dataset.target_data, dataset.structure.num_nodes(dataset.target)
    if dataset.num_classes == 0 and not any(key in data for key in MASKS):
        return
    covered = np.zeros(n, np.int8)
    for key in MASKS:
        if (mask := data.get(key)) is None:
            raise InputError(f"{name}: has no {key}")
        if mask.dtype != torch.bool or mask.shape != (n,):
            found = f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise InputError(f"{name}: {key} is {found}, expected torch.bool of shape ({n},)")
        if not mask.any():
            raise InputError(f"{name}: {key} selects no node")
        covered += mask.numpy()
    if (covered > 1).any():
        raise InputError(f"{name}: {int((covered > 1).sum())} nodes are in more than one split")
