"""How much memory each method needs, and which one to take when memory is limited.

The estimates are for the whole process at its peak: Python and the libraries, the data set (in DGL's 64-bit ids, or as
pairs on the disk), the method, and writing the largest part. They were measured on synthetic-products with
``benchmarks/partition_full.py`` and grow with the number of edges. ``auto`` takes the first method of ``PREFERENCE``
that fits. ``streaming`` is not one of them: it needs no less memory than ``multilevel``. A graph with several types
takes METIS, or ``random``: both are DGL's, our own methods know one type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from tutorial_lib.data.base import data_size, dense_size
from tutorial_lib.data.pairs import Pairs
from tutorial_lib.data.tables import free_memory
from tutorial_lib.errors import InputError
from tutorial_lib.partition.adjacency import is_symmetric
from tutorial_lib.partition.split import MOST_MAPPED

if TYPE_CHECKING:
    import dgl


AUTO = "auto"
PREFERENCE = ("metis", "multilevel")
# Each method, and who writes its parts, in the order in which they are tried: True for DGL, which also takes graphs
# with several types; False for this package.
WRITERS = {"metis": (True,), "multilevel": (False,), "streaming": (False,), "random": (True, False)}
METHODS = tuple(WRITERS)
SHARE_OF_FREE = 0.8  # of the memory that is free, when the user names no limit

LIBRARIES = 0.6e9  # bytes: Python, torch, DGL
INPUT = 16  # bytes per edge: two 64-bit ids
DGL_SPLIT = 180  # bytes per edge, all parts at once; METIS itself stays below that
RENUMBER = 20  # bytes per edge: the 32-bit arrays while they are sorted
CLUSTERS = 16  # bytes per edge: clustering of a graph that has every edge both ways
CLUSTERS_ONE_WAY = 56  # bytes per edge: of another graph, which gets the other directions and weights first
RENUMBER_PAIRS = (9, 16)  # bytes per edge of a graph kept as pairs: without and with the edges' old ids
WRITTEN = 30  # bytes per edge of the part that is written of such a graph, before GraphBolt's conversion
NODE = 100  # bytes per node, and one more per part: maps, and what each method remembers of a node
PART = 72  # bytes per edge of the part that is written, in GraphBolt's conversion
CUT = {"multilevel": 0.2, "streaming": 0.4}  # a cautious guess: edges that leave a part are stored there too

NONE: Mapping[str, Any] = {}
UNITS = ("", "K", "M", "G", "T")


@dataclass(frozen=True)
class Choice:
    """The method that was chosen, whether DGL's own ``partition_graph`` does the work, and why, in one sentence."""

    method: str
    by_dgl: bool
    reason: str


def parse_memory(value: int | str | None) -> int | None:
    """Bytes of ``12GB``, ``1.5 GiB``, ``800M``, ``12000000000`` or a number; None stays None (no limit named).

    Raises:
        InputError: not an amount of memory, or not a positive one.
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", str(value), re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise InputError(f"{value!r} is not an amount of memory", "Write it like 12GB, 1.5GiB or 800MB.")
    parsed = math.floor(min(float(found[1]), 1e18) * (1024 if found[3] else 1000) ** UNITS.index(found[2].upper()))
    if parsed <= 0:
        raise InputError(f"{value!r} leaves no memory at all", "Write it like 12GB, 1.5GiB or 800MB.")
    return parsed


def memory_for_us() -> int:
    """Bytes this process may reach: what it has, and a share of what is free, on the machine or in its container."""
    return psutil.Process().memory_info().rss + int(SHARE_OF_FREE * free_memory())


def estimate_peak(
    graph: dgl.DGLGraph | Pairs, parts: int, method: str, *, by_dgl: bool, wide: Mapping[str, Any] = NONE
) -> int:
    """Bytes that the process will have used at its peak.

    Args:
        by_dgl: ``partition_graph`` does the work; False: this package does.
        wide: of a data set; a part of them is made dense at a time, once the graph is cut.
    """
    edges, n = graph.num_edges(), graph.num_nodes()
    data = data_size(graph)
    dense = 1.1 * dense_size(wide) / parts  # parts are not of one size
    data += sum(8 * matrix.nnz for matrix in wide.values())
    if by_dgl:
        return int(LIBRARIES + 2 * data + max(DGL_SPLIT * edges, INPUT * edges + dense))
    cut = CUT.get(method, 1) * (1 - 1 / parts)
    part = (edges * (1 + cut) * PART + data) / parts
    if isinstance(graph, Pairs):  # stays on the disk, as what its nodes have
        renumber = RENUMBER_PAIRS[edges <= MOST_MAPPED] * edges
        work = max(renumber, 4 * edges + part * WRITTEN / PART, part)
        return int(LIBRARIES + graph.held() + (NODE + parts) * n + work)
    cutting = edges * (CLUSTERS if is_symmetric(graph) else CLUSTERS_ONE_WAY) if method in CUT else 0
    return int(LIBRARIES + INPUT * edges + data + (NODE + parts) * n + max(cutting, RENUMBER * edges, part, dense))


def choose_method(
    graph: dgl.DGLGraph | Pairs,
    parts: int,
    method: str = AUTO,
    max_memory: int | str | None = None,
    wide: Mapping[str, Any] = NONE,
) -> Choice:
    """The method to use, before anything is started.

    Args:
        method: ``auto``, or a name of ``METHODS``, which then has to fit.
        max_memory: bytes, or a text such as ``12GB``; None: what this process has and 80 % of what is free.
        wide: of the data set.

    Raises:
        InputError: unknown method, not an amount of memory, or it does not fit (with what would).
    """
    if method not in (AUTO, *METHODS):
        raise InputError(f"unknown partition method {method!r}", f"Known: {AUTO}, {', '.join(METHODS)}.")
    limit = parse_memory(max_memory) or memory_for_us()
    asked = PREFERENCE if method == AUTO else (method,)
    ways = [(name, by_dgl) for name in asked for by_dgl in WRITERS[name] if by_dgl or graph.is_homogeneous]
    if not ways:
        text = f"method {method} cuts graphs with one type of nodes only, this one has several"
        raise InputError(text, "Choose --method metis or random, which DGL does, or leave it at auto.")
    too_large: dict[str, str] = {}
    for name, by_dgl in ways:
        peak = estimate_peak(graph, parts, name, by_dgl=by_dgl, wide=wide)
        if peak <= limit:
            instead = ", ".join(text for other, text in too_large.items() if other != name)
            instead = f"; {instead} would be needed" if instead else ""
            dense = f", with wide features of {_gb(dense_size(wide) / parts)} per part" if wide else ""
            return Choice(name, by_dgl, f"method {name}: about {_gb(peak)} of {_gb(limit)} memory{dense}{instead}")
        too_large[name] = f"{name} about {_gb(peak)}"
    remedy = "Raise --max-memory, use more parts, or a computer with more memory."
    if method != AUTO and graph.is_homogeneous:  # with several types, both methods need the same
        for other, (*_, by_dgl) in WRITERS.items():
            if estimate_peak(graph, parts, other, by_dgl=by_dgl, wide=wide) <= limit:
                remedy = f"Choose --method {other}, or raise --max-memory."
                break
    text = f"partitioning into {parts} part(s) does not fit in {_gb(limit)} of memory"
    raise InputError(f"{text}: {', '.join(too_large.values())} needed", remedy)


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
