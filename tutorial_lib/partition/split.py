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

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data.base import Dataset
from tutorial_lib.data.pairs import Pairs
from tutorial_lib.files import output_to, write_json
from tutorial_lib.partition.adjacency import BLOCK, in_edges, offsets
from tutorial_lib.partition.types import taken_apart, type_counts

if TYPE_CHECKING:
    import dgl

NODE_TYPE, EDGE_TYPE = "_N", "_N:_E:_N"  # what DGL calls the one kind of nodes and of edges
PIECE_ROWS = 1 << 18  # rows of features that are read together
MOST_MAPPED = 2**28  # edges; of more, kept as pairs, edge_map.npy is not written: only link prediction needs it


def write_parts(
    graph: dgl.DGLGraph | Pairs,
    part_of: np.ndarray,
    parts: int,
    name: str,
    method: str,
    folder: Path,
    progress: Callable[[str], None] = lambda _text: None,
) -> None:
    """Write what ``partition_graph`` writes, and node_map.npy and edge_map.npy (not of pairs of more than MOST_MAPPED).

    Args:
        graph: homogeneous; its node and edge data go into the parts.
        part_of: int64 (N,), the part of each node, none of them empty.
        folder: exists.
    """
    from dgl.data.utils import save_graphs, save_tensors

    progress("numbering nodes and edges part by part")
    node_map = np.argsort(part_of, kind="stable")
    np.save(folder / "node_map.npy", node_map)
    new_id = np.empty(len(node_map), np.int32)
    new_id[node_map] = np.arange(len(node_map), dtype=np.int32)
    mapped = not isinstance(graph, Pairs) or graph.num_edges() <= MOST_MAPPED
    whole = in_edges(graph, new_id, edge_ids=mapped)  # new edge e is entry e
    indptr, source, edge_map = whole.indptr, whole.indices, np.empty(0, np.int64)
    if mapped:  # in 64 bits, without a copy of it in 64 bits
        edge_map = np.lib.format.open_memmap(folder / "edge_map.npy", "w+", np.int64, whole.data.shape)
        with (folder / "edge_map.npy").open("r+b") as file:  # on a full disk, a write to the mapping ends the process
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        edge_map[:] = whole.data
        edge_map = np.load(folder / "edge_map.npy", mmap_mode="r")  # mapped anew: the pages written are let go
    del whole
    first_node = offsets(np.bincount(part_of, minlength=parts))
    first_edge = indptr[first_node]
    files = {}
    for part in range(parts):
        progress(f"writing part {part} of {parts}")
        (folder / f"part{part}").mkdir()
        kinds = {"node_feats": "node_feat", "edge_feats": "edge_feat", "part_graph": "graph"}
        names = files[f"part-{part}"] = {key: f"part{part}/{kind}.dgl" for key, kind in kinds.items()}
        save_graphs(str(folder / names["part_graph"]), [part_graph(indptr, source, first_node, part)])
        for key, of, data, ids, first in (
            ("node_feats", NODE_TYPE, graph.ndata, node_map, first_node),
            ("edge_feats", EDGE_TYPE, graph.edata, edge_map, first_edge),
        ):
            mine = torch.from_numpy(ids[slice(*first[part : part + 2]) if data else slice(0)].copy())
            rows = {f"{of}/{field}": _rows(value, mine, graph) for field, value in data.items()}
            save_tensors(str(folder / names[key]), rows)
    maps = [np.stack([first[:-1], first[1:]], axis=1).tolist() for first in (first_node, first_edge)]
    description = {
        "graph_name": name,
        "num_nodes": graph.num_nodes(),
        "num_edges": graph.num_edges(),
        "part_method": method,
        "num_parts": parts,
        "halo_hops": 1,
        "node_map": {NODE_TYPE: maps[0]},
        "edge_map": {EDGE_TYPE: maps[1]},
        "ntypes": {NODE_TYPE: 0},
        "etypes": {EDGE_TYPE: 0},
    }
    write_json(folder / f"{name}.json", description | files)
    del indptr, source, edge_map
    if graphbolt_problem() is None:
        from dgl.distributed import dgl_partition_to_graphbolt

        progress("adding GraphBolt's format")
        with output_to(folder / "partition.log"):
            dgl_partition_to_graphbolt(str(folder / f"{name}.json"))


def _rows(value: torch.Tensor, ids: torch.Tensor, graph: dgl.DGLGraph | Pairs) -> torch.Tensor:
    """``value[ids]``; of pairs a piece at a time, as rows of one part lie on most pages of the file with all."""
    if not isinstance(graph, Pairs):
        return value[ids]
    found = torch.empty((len(ids), *value.shape[1:]), dtype=value.dtype)
    for at in range(0, len(ids), PIECE_ROWS):
        found[at : at + PIECE_ROWS] = value[ids[at : at + PIECE_ROWS]]
        graph.let_go()
    return found


def part_graph(indptr: np.ndarray, source: np.ndarray, first_node: np.ndarray, part: int) -> dgl.DGLGraph:
    """One part as DGL stores it: inner nodes first, then the halo; inner edges first, then those that leave.

    Node data: ``_ID`` (new id), ``inner_node``, ``part_id``. Edge data: ``_ID`` (new id), ``inner_edge``.

    Args:
        indptr, source: the graph in its new ids; the edges that end at node v start at
            ``source[indptr[v] : indptr[v + 1]]``, and an edge's new id is its place there.
        first_node: int64 (parts + 1,), where each part begins.
    """
    import dgl

    n, (begin, end) = len(indptr) - 1, first_node[part : part + 2].tolist()
    first, last = int(indptr[begin]), int(indptr[end])
    found = []
    for at in range(0, len(source), 4 * BLOCK):
        piece = source[at : at + 4 * BLOCK]
        ids = np.flatnonzero((piece >= begin) & (piece < end)) + at
        found.append(ids[(ids < first) | (ids >= last)])
    leaving, inner = np.concatenate(found), last - first
    destination = np.searchsorted(indptr, leaving, side="right") - 1  # of an edge that leaves
    halo = np.zeros(n, dtype=bool)
    halo[source[first:last]] = halo[destination] = True
    halo[begin:end] = False
    nodes = np.concatenate([np.arange(begin, end), np.flatnonzero(halo)])
    local = np.full(n, -1, np.int32)
    local[nodes] = np.arange(len(nodes))
    degree = np.diff(indptr[begin : end + 1])
    ids = np.concatenate([np.arange(first, last), leaving])
    src, dst = np.empty_like(ids), np.empty_like(ids)
    src[:inner], src[inner:] = local[source[first:last]], local[source[leaving]]
    dst[:inner], dst[inner:] = np.repeat(np.arange(end - begin, dtype=np.int32), degree), local[destination]
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=len(nodes))
    graph.ndata[dgl.NID] = torch.from_numpy(nodes)
    graph.ndata["inner_node"] = (torch.arange(len(nodes)) < end - begin).to(torch.uint8)
    graph.ndata["part_id"] = torch.from_numpy(np.searchsorted(first_node, nodes, side="right") - 1)
    graph.edata[dgl.EID] = torch.from_numpy(ids)
    graph.edata["inner_edge"] = torch.from_numpy(np.repeat(np.array([1, 0], np.uint8), [inner, len(leaving)]))
    return graph


def add_wide(dataset: Dataset, folder: Path, name: str) -> None:
    """Put wide features into the files of the nodes' features, as ``feat`` of their type: dense, a part at a time."""
    from dgl.data.utils import load_tensors, save_tensors

    description = json.loads((folder / f"{name}.json").read_text())
    maps = taken_apart(np.load(folder / "node_map.npy"), type_counts(dataset.structure)["nodes"])
    for part in range(description["num_parts"]):
        file = str(folder / description[f"part-{part}"]["node_feats"])
        tensors = load_tensors(file)
        for kind, matrix in dataset.wide.items():
            sizes = np.diff(description["node_map"][kind]).flatten()  # new ids of a type are stretches, part by part
            first = int(sizes[:part].sum())
            tensors[f"{kind}/feat"] = torch.from_numpy(matrix[maps[kind][first : first + sizes[part]]].toarray())
        save_tensors(file, tensors)
