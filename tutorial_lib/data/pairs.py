"""An undirected graph as pairs of nodes, which takes a quarter of the memory of a DGLGraph and can stay on disk."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import dgl
    import torch

NODE, EDGE = "_N", ("_N", "_E", "_N")  # DGL's names of the only type of nodes and of edges
PIECE = 1 << 24  # pairs that are read together
MADV_PAGEOUT = 21  # of <linux/mman.h>; Python has no name for it
LARGE = 1 << 26  # bytes; smaller arrays stay in memory


class Pairs:
    """N nodes and 2 P directed edges. Edge e leads from low[e] to high[e], and edge P + e leads back.

    Counts, node data and edge data have the names of ``DGLGraph``.

    Attributes:
        low, high: int32 arrays of shape (P,), memory-mapped or not. low < high. Sorted by low, then by high.
        ndata: tensors with N rows, by name.

    Args:
        feat: array of ``ndata["feat"]`` if it is memory-mapped.
    """

    is_homogeneous = True
    ntypes, canonical_etypes = [NODE], [EDGE]

    def __init__(
        self, low: np.ndarray, high: np.ndarray, ndata: dict[str, torch.Tensor], feat: np.ndarray | None = None
    ) -> None:
        self.low, self.high, self.ndata, self._feat = low, high, ndata, feat
        self.edata: dict[str, torch.Tensor] = {}
        self.nodes = {NODE: SimpleNamespace(data=self.ndata)}
        self.edges = {EDGE: SimpleNamespace(data=self.edata)}

    def num_nodes(self, _ntype: str = NODE) -> int:
        """Return N."""
        return len(next(iter(self.ndata.values())))

    def num_edges(self, _etype: tuple[str, str, str] = EDGE) -> int:
        """Return 2 P."""
        return 2 * len(self.low)

    def ends(self, of: int) -> Iterator[torch.Tensor]:
        """Yield the sources (0) or destinations (1) of the edges in the order of their IDs: int64, in pieces."""
        import torch

        for one in (self.low, self.high)[:: -1 if of else 1]:
            for at in range(0, len(one), PIECE):
                yield torch.from_numpy(one[at : at + PIECE].astype(np.int64))
            let_go(one)

    def to_dgl(self) -> dgl.DGLGraph:
        """Return the same graph as a DGLGraph.

        Raises:
            InputError: the graph does not fit in memory.
        """
        import dgl
        import psutil
        import torch

        if (size := 16 * self.num_edges()) > (free := psutil.virtual_memory().available):
            text = (
                f"{self.num_edges():,} edges as one DGLGraph take {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB is free"
            )
            raise InputError(text, "Train on several machines: each of them holds one part.")
        pairs = ((self.low, self.high), (self.high, self.low))
        src, dst = (torch.from_numpy(np.concatenate(pair, dtype=np.int64)) for pair in pairs)
        graph = dgl.graph((src, dst), num_nodes=self.num_nodes())
        graph.ndata.update(self.ndata)
        return graph

    def let_go(self) -> None:
        """Release the pages of large mapped files. The kernel reads them again on the next access."""
        for array in (self.low, self.high, self._feat):
            if array is not None:
                let_go(array)


def let_go(array: np.ndarray) -> None:
    """Release the pages of an array that maps a large file. Changed pages keep their content."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if array.nbytes >= LARGE and isinstance(owner.base, mmap.mmap):
        with contextlib.suppress(OSError):  # Linux before 5.4 does not know this advice
            owner.base.madvise(MADV_PAGEOUT)
