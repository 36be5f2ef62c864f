"""A graph whose every edge is there both ways, kept as pairs of nodes: 8 bytes for two edges, and on the disk at that.

DGL needs 32 bytes for the same two edges, before it does anything with them. A graph that is cut does not have to be
DGL's, so a generated one is kept like this until somebody asks for ``Dataset.graph``. What has only to count nodes and
edges, or to look at the nodes' data, finds them here under the names that a ``DGLGraph`` has for them.
"""

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

NODE, EDGE = "_N", ("_N", "_E", "_N")  # what DGL calls the only type of nodes and of edges
PIECE = 1 << 24  # pairs that are looked at together
MADV_PAGEOUT = 21  # of <linux/mman.h>; Python has no name for it
LARGE = 1 << 26  # bytes; a smaller file stays in memory


class Pairs:
    """N nodes and 2 P directed edges: edge e leads from low[e] to high[e], edge P + e back.

    Attributes:
        low, high: int32 (P,), low < high; sorted by low, then by high, no pair twice. May be maps of files.
        ndata: by name, what the nodes have: tensors of N rows.

    Args:
        feat: what ``ndata["feat"]`` was made of, if that is a map of a file.
    """

    is_homogeneous = True
    ntypes, canonical_etypes = [NODE], [EDGE]

    def __init__(
        self, low: np.ndarray, high: np.ndarray, ndata: dict[str, torch.Tensor], feat: np.ndarray | None = None
    ) -> None:
        self.low, self.high, self.ndata = low, high, ndata
        self._arrays = [array for array in (low, high, feat) if array is not None]
        self.edata: dict[str, torch.Tensor] = {}
        self.nodes = {NODE: SimpleNamespace(data=self.ndata)}
        self.edges = {EDGE: SimpleNamespace(data=self.edata)}
        self._size = len(next(iter(ndata.values())))

    def num_nodes(self, _ntype: str = NODE) -> int:
        """N."""
        return self._size

    def num_edges(self, _etype: tuple[str, str, str] = EDGE) -> int:
        """2 P: each direction is an edge."""
        return 2 * len(self.low)

    def ends(self, of: int) -> Iterator[torch.Tensor]:
        """Where the edges start (0) or lead to (1), in the order of their ids: int64, a piece at a time."""
        import torch

        for one in (self.low, self.high)[:: -1 if of else 1]:
            for at in range(0, len(one), PIECE):
                yield torch.from_numpy(one[at : at + PIECE].astype(np.int64))
            let_go(one)

    def to_dgl(self) -> dgl.DGLGraph:
        """The same graph as DGL's.

        Raises:
            InputError: the memory that is free would not hold it.
        """
        import dgl
        import psutil
        import torch

        if (size := 16 * self.num_edges()) > (free := psutil.virtual_memory().available):
            text = (
                f"{self.num_edges():,} edges as one DGLGraph take {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB is free"
            )
            raise InputError(text, "Train on several machines: each of them holds one part.")
        ends = (np.concatenate(pair, dtype=np.int64) for pair in ((self.low, self.high), (self.high, self.low)))
        graph = dgl.graph(tuple(map(torch.from_numpy, ends)), num_nodes=self._size)
        graph.ndata.update(self.ndata)
        return graph

    def let_go(self) -> None:
        """Give back the memory of what was read from large files; it is read again when somebody looks at it."""
        for array in self._arrays:
            let_go(array)

    def held(self) -> int:
        """Bytes that are no maps of files, as where a cache could not be written: they stay in memory."""
        return sum(array.nbytes for array in self._arrays if _map_of(array) is None)


def let_go(array: np.ndarray) -> None:
    """Give back the pages of an array that is the map of a large file; what was written into it stays."""
    if array.nbytes >= LARGE and (file := _map_of(array)) is not None:
        with contextlib.suppress(OSError):  # Linux before 5.4 does not have it
            file.madvise(MADV_PAGEOUT)


def _map_of(array: np.ndarray) -> mmap.mmap | None:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base if isinstance(array.base, mmap.mmap) else None
