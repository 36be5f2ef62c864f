"""From the part of each node to the files of each part, with only one part in memory at a time.

``dgl.distributed.partition_graph`` builds all parts before it writes the first: the graph again, in 64-bit ids, with
the maps and the temporary arrays of each step. Here the graph is renumbered once, so that a part is a stretch of
nodes and a stretch of edges, and then cut off stretch by stretch:

    new ids         part 0          part 1          part 2         nodes: by part, then by original id
    edges        |----------------|---------------|-----------|    edges: by destination, so by part too
                  inner edges of 0  ... of 1        ... of 2

A part holds its inner nodes, the edges that end at them, and the nodes of other parts at either end of an edge that is
cut: its halo. It also stores the edges that leave it, though their owner is the other part; DGL does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.files import output_to, write_json
from tutorial_lib.partition.adjacency import BLOCK, in_edges, offsets

if TYPE_CHECKING:
    import dgl

NODE_TYPE, EDGE_TYPE = "_N", "_N:_E:_N"  # what DGL calls the one kind of nodes and of edges


@dataclass(frozen=True)
class Renumbered:
    """The whole graph in its new ids, edges by destination; new edge e is entry e of ``source``.

    Attributes:
        indptr: int64 (N + 1,); the edges that end at node v are ``indptr[v]`` up to ``indptr[v + 1]``.
        source: int32 (E,), the node where an edge starts.
        first_node, first_edge: int64 (parts + 1,), where each part begins.
    """

    indptr: np.ndarray
    source: np.ndarray
    first_node: np.ndarray
    first_edge: np.ndarray


def write_parts(
    graph: dgl.DGLGraph,
    part_of: np.ndarray,
    parts: int,
    name: str,
    method: str,
    folder: Path,
    progress: Callable[[str], None] = lambda _text: None,
) -> None:
    """Write what ``partition_graph`` writes, and node_map.npy and edge_map.npy.

    Args:
        graph: homogeneous; its node and edge data go into the parts.
        part_of: int64 (N,), the part of each node, none of them empty.
        folder: exists.
    """
    progress("numbering nodes and edges part by part")
    node_map = np.argsort(part_of, kind="stable")
    np.save(folder / "node_map.npy", node_map)
    whole = _renumber(graph, part_of, node_map, parts, folder)
    files = {}
    for part in range(parts):
        progress(f"writing part {part} of {parts}")
        files[f"part-{part}"] = _write_part(graph, whole, part, node_map, folder)
    ranges = {"node": whole.first_node, "edge": whole.first_edge}
    maps = {key: np.stack([first[:-1], first[1:]], axis=1).tolist() for key, first in ranges.items()}
    write_json(
        folder / f"{name}.json",
        {
            "graph_name": name,
            "num_nodes": graph.num_nodes(),
            "num_edges": graph.num_edges(),
            "part_method": method,
            "num_parts": parts,
            "halo_hops": 1,
            "node_map": {NODE_TYPE: maps["node"]},
            "edge_map": {EDGE_TYPE: maps["edge"]},
            "ntypes": {NODE_TYPE: 0},
            "etypes": {EDGE_TYPE: 0},
            **files,
        },
    )
    del whole
    if graphbolt_problem() is None:
        from dgl.distributed import dgl_partition_to_graphbolt

        progress("adding GraphBolt's format")
        with output_to(folder / "partition.log"):
            dgl_partition_to_graphbolt(str(folder / f"{name}.json"))


def _renumber(graph: dgl.DGLGraph, part_of: np.ndarray, node_map: np.ndarray, parts: int, folder: Path) -> Renumbered:
    new_id = np.empty(len(node_map), np.int32)
    new_id[node_map] = np.arange(len(node_map), dtype=np.int32)
    indptr, source, edge_map = in_edges(graph, new_id)
    _save_as_int64(folder / "edge_map.npy", edge_map)
    first_node = offsets(np.bincount(part_of, minlength=parts))
    return Renumbered(indptr, source, first_node, indptr[first_node])


def _save_as_int64(path: Path, ids: np.ndarray) -> None:
    """``np.save`` of the ids in 64 bits, without a copy of them in 64 bits."""
    with path.open("wb") as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": ids.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in _pieces(len(ids)):
            ids[piece].astype("<i8").tofile(file)


def _pieces(count: int) -> Iterator[slice]:
    return (slice(at, min(at + 4 * BLOCK, count)) for at in range(0, count, 4 * BLOCK))


def _write_part(
    graph: dgl.DGLGraph, whole: Renumbered, part: int, node_map: np.ndarray, folder: Path
) -> dict[str, str]:
    """Write the three files of one part; their names relative to ``folder``, under DGL's keys."""
    from dgl.data.utils import save_graphs, save_tensors

    (folder / f"part{part}").mkdir()
    names = {
        "node_feats": f"part{part}/node_feat.dgl",
        "edge_feats": f"part{part}/edge_feat.dgl",
        "part_graph": f"part{part}/graph.dgl",
    }
    save_graphs(str(folder / names["part_graph"]), [part_graph(whole, part)])
    mine = torch.from_numpy(node_map[whole.first_node[part] : whole.first_node[part + 1]])
    save_tensors(
        str(folder / names["node_feats"]), {f"{NODE_TYPE}/{key}": value[mine] for key, value in graph.ndata.items()}
    )
    edge_data = {}
    if graph.edata:
        edges = slice(*whole.first_edge[part : part + 2])
        mine = torch.from_numpy(np.load(folder / "edge_map.npy", mmap_mode="r")[edges].copy())
        edge_data = {f"{EDGE_TYPE}/{key}": value[mine] for key, value in graph.edata.items()}
    save_tensors(str(folder / names["edge_feats"]), edge_data)
    return names


def part_graph(whole: Renumbered, part: int) -> dgl.DGLGraph:
    """One part as DGL stores it: inner nodes first, then the halo; inner edges first, then those that leave.

    Node data: ``_ID`` (new id), ``inner_node``, ``part_id``. Edge data: ``_ID`` (new id), ``inner_edge``.
    """
    import dgl

    begin, end = whole.first_node[part : part + 2].tolist()
    inner = slice(*whole.first_edge[part : part + 2].tolist())
    source = whole.source[inner]
    leaving = _leaving(whole, begin, end, inner)
    destination = np.searchsorted(whole.indptr, leaving, side="right") - 1  # of an edge that leaves
    halo = _halo(source, destination, begin, end, len(whole.indptr) - 1)
    nodes = torch.cat([torch.arange(begin, end), torch.from_numpy(halo)])
    local = np.full(len(whole.indptr) - 1, -1, np.int32)
    local[nodes.numpy()] = np.arange(len(nodes), dtype=np.int32)
    degree = np.diff(whole.indptr[begin : end + 1])

    src, dst, ids = (torch.empty(len(source) + len(leaving), dtype=torch.int64) for _ in range(3))
    for to, inside, outside in (
        (src, local[source], local[whole.source[leaving]]),
        (dst, np.repeat(np.arange(end - begin), degree), local[destination]),
        (ids, np.arange(inner.start, inner.stop), leaving),
    ):
        to[: len(source)] = torch.from_numpy(inside)
        to[len(source) :] = torch.from_numpy(outside)
    graph = dgl.graph((src, dst), num_nodes=len(nodes))
    graph.ndata[dgl.NID] = nodes
    graph.ndata["inner_node"] = (torch.arange(len(nodes)) < end - begin).to(torch.uint8)
    owner = np.searchsorted(whole.first_node, nodes.numpy(), side="right") - 1
    graph.ndata["part_id"] = torch.from_numpy(owner)
    graph.edata[dgl.EID] = ids
    graph.edata["inner_edge"] = torch.zeros(len(ids), dtype=torch.uint8)
    graph.edata["inner_edge"][: len(source)] = 1
    return graph


def _leaving(whole: Renumbered, begin: int, end: int, inner: slice) -> np.ndarray:
    """New ids of the edges that start in a part and end in another: int64, ascending."""
    found = []
    for piece in _pieces(len(whole.source)):
        source = whole.source[piece]
        ids = np.flatnonzero((source >= begin) & (source < end)) + piece.start
        found.append(ids[(ids < inner.start) | (ids >= inner.stop)])
    return np.concatenate(found)


def _halo(source: np.ndarray, destination: np.ndarray, begin: int, end: int, n: int) -> np.ndarray:
    """Nodes of other parts at one end of the edges of a part: int64, ascending."""
    touched = np.zeros(n, dtype=bool)
    touched[source] = True
    touched[destination] = True
    touched[begin:end] = False
    return np.flatnonzero(touched)
