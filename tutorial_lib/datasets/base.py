"""The one data set type of the course, and the checks that every data set passes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import dgl
    import torch

MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass
class Dataset:
    """A graph for node classification.

    Attributes:
        name: how the data set was asked for (``synthetic-products``, a path, ...).
        graph: homogeneous ``DGLGraph`` of N nodes with int64 ids. Node data: ``feat`` float32
            of shape (N, F), ``label`` int64 of shape (N,) with values in [0, num_classes), and the
            bool masks ``train_mask``, ``val_mask``, ``test_mask`` of shape (N,).
        num_classes: number of classes, also those without a node.
        info: where it came from (scale, seed, file, ...); JSON types only.
    """

    name: str
    graph: dgl.DGLGraph
    num_classes: int
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def num_features(self) -> int:
        """Width F of ``feat``; 0 for a data set that was loaded without features."""
        return self.graph.ndata["feat"].shape[1] if "feat" in self.graph.ndata else 0

    def split_counts(self) -> dict[str, int]:
        """Number of nodes in each of the three masks."""
        return {name: int(self.graph.ndata[name].sum()) for name in MASKS}

    def fingerprint(self) -> str:
        """SHA-256 over edges, node and edge data: equal content gives an equal string on every machine."""
        digest = hashlib.sha256()
        src, dst = self.graph.edges(order="eid")
        edge_data = [(f"edge {key}", tensor) for key, tensor in sorted(self.graph.edata.items())]
        for key, tensor in [("src", src), ("dst", dst), *sorted(self.graph.ndata.items()), *edge_data]:
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(memoryview(tensor.contiguous().numpy()).cast("B"))
        digest.update(str(self.num_classes).encode())
        return digest.hexdigest()


def check_dataset(dataset: Dataset, *, need_features: bool = True) -> Dataset:
    """Return the data set unchanged, or raise an InputError that names the first thing wrong with it.

    Checked here, before a process starts: dtypes, shapes, label range, NaN or infinite features,
    empty or overlapping splits. DGL's servers would take several of these and die, or train on them.
    """
    graph, name = dataset.graph, dataset.name
    n = graph.num_nodes()
    if n == 0 or graph.num_edges() == 0:
        raise InputError(f"{name}: the graph has {n} nodes and {graph.num_edges()} edges")
    if need_features:
        _check_features(name, graph.ndata.get("feat"), n)
    _check_labels(name, graph.ndata.get("label"), n, dataset.num_classes)
    _check_masks(name, [graph.ndata.get(key) for key in MASKS], n)
    return dataset


def _check_features(name: str, feat: torch.Tensor | None, n: int) -> None:
    import torch

    if feat is None:
        raise InputError(
            f"{name}: has no node features ('feat')",
            "Load it with features=False (command line: --graph-only) if the graph alone is enough.",
        )
    if feat.dim() != 2 or feat.shape[0] != n or feat.shape[1] == 0:
        raise InputError(f"{name}: feat has shape {tuple(feat.shape)}, expected ({n}, number of features)")
    if feat.dtype != torch.float32:
        raise InputError(
            f"{name}: feat is {feat.dtype}, expected torch.float32",
            "Convert with feat.float(). DGL 2.1.0 partitions bfloat16 features without a word; then its server dies.",
        )
    bad = ~torch.isfinite(feat).all(dim=1)
    if bad.any():
        rows = bad.nonzero().flatten()
        raise InputError(
            f"{name}: feat has NaN or infinite values in {len(rows)} of {n} rows, first in row {int(rows[0])}"
        )


def _check_labels(name: str, label: torch.Tensor | None, n: int, num_classes: int) -> None:
    import torch

    if label is None:
        raise InputError(f"{name}: has no labels ('label')")
    if label.shape != (n,) or label.dtype != torch.int64:
        raise InputError(
            f"{name}: label is {label.dtype} of shape {tuple(label.shape)}, expected torch.int64 of shape ({n},)"
        )
    low, high = int(label.min()), int(label.max())
    if low < 0 or high >= num_classes:
        raise InputError(f"{name}: labels run from {low} to {high}, expected 0 to {num_classes - 1}")


def _check_masks(name: str, masks: list[torch.Tensor | None], n: int) -> None:
    import torch

    covered = torch.zeros(n, dtype=torch.int8)
    for key, mask in zip(MASKS, masks, strict=True):
        if mask is None:
            raise InputError(f"{name}: has no {key}")
        if mask.dtype != torch.bool or mask.shape != (n,):
            raise InputError(
                f"{name}: {key} is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool of shape ({n},)"
            )
        if not mask.any():
            raise InputError(f"{name}: {key} selects no node")
        covered += mask
    if (covered > 1).any():
        raise InputError(f"{name}: {int((covered > 1).sum())} nodes are in more than one split")
