"""Write the files of each part with only one part in memory at a time.

``dgl.distributed.partition_graph`` builds all parts before it writes the first, and fails if a part has no node of
some type. This writer renumbers the graph once, so that a part is a range of nodes and a range of edges:

    new node IDs    part by part, in a part type by type, then by original ID
    new edge IDs    by the part of the destination, in a part relation by relation, then by destination

A part stores its inner nodes, the edges that end at them, and the edges that leave it, although the part of the
destination owns these. The nodes of other parts at these edges are its halo. DGL stores the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data.base import Dataset, Pairs, ends
from tutorial_lib.files import write_json
from tutorial_lib.partition.assign import BLOCK, offsets

if TYPE_CHECKING:
    import dgl

NODE_TYPE, EDGE_TYPE = "_N", "_N:_E:_N"  # DGL's names in a graph with one type of nodes and of edges
FEATURE_ROWS = 1 << 18  # rows of features that are read together
MOST_MAPPED = 2**28  # edges; edge_map.npy of a generated graph with more is not written


class Writer:
    """The renumbered graph, and where each part of it begins.

    Args:
        dataset: its graph, node data and edge data go into the parts.
        part_of: int64 array of shape (N,), the part of each node, with the types one after the other. No part is empty.
        folder: existing folder for the files.
    """

    def __init__(self, dataset: Dataset, part_of: np.ndarray, parts: int, folder: Path) -> None:
        self.dataset, self.parts, self.folder = dataset, parts, folder
        graph = self.graph = dataset.structure
        self.typed = not graph.is_homogeneous
        self.node_types = graph.ntypes if self.typed else [NODE_TYPE]
        self.edge_types = [":".join(one) for one in graph.canonical_etypes] if self.typed else [EDGE_TYPE]
        types, first = len(graph.ntypes), offsets([graph.num_nodes(kind) for kind in graph.ntypes])
        by_part = np.argsort(part_of, kind="stable")
        type_of = np.searchsorted(first, by_part, side="right") - 1 if types > 1 else np.zeros(len(by_part), np.int64)
        self.type_of = type_of.astype(np.int16)
        # node_range[part * types + type] is where the nodes of this part and type begin
        self.node_range = offsets(np.bincount(part_of[by_part] * types + type_of, minlength=parts * types))
        self.first_node = self.node_range[::types]
        new_id = np.empty(len(by_part), np.int32)
        new_id[by_part] = np.arange(len(by_part), dtype=np.int32)
        self.node_map = [
            np.concatenate([by_part[slice(*self._nodes(part, kind))] for part in range(parts)]) - first[kind]
            for kind in range(types)
        ]
        np.save(folder / "node_map.npy", np.concatenate(self.node_map))
        self._group_edges(new_id, dict(zip(graph.ntypes, first, strict=False)))

    def _nodes(self, part: int, kind: int) -> tuple[int, int]:
        at = part * len(self.node_types) + kind
        return int(self.node_range[at]), int(self.node_range[at + 1])

    def _group_edges(self, new_id: np.ndarray, first: dict[str, int]) -> None:
        graph, count = self.graph, self.graph.num_edges()
        mapped = not isinstance(graph, Pairs) or count <= MOST_MAPPED
        grouped = []
        self.edge_ids: list[np.ndarray] = []
        with (self.folder / "edge_map.npy").open("wb") as file:
            about = {"descr": "<i8", "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(file, about)
            for relation in graph.canonical_etypes:
                start = (new_id[first[relation[0]] :], new_id[first[relation[2]] :])
                indptr, source, ids = group_by_destination(graph, relation, *start, len(new_id), mapped)
                grouped.append((indptr, source))
                for at in range(0, len(ids), BLOCK):
                    ids[at : at + BLOCK].astype(np.int64).tofile(file)
                self.edge_ids.append(ids if graph.edges[relation].data else ids[:0].copy())
        if not mapped:
            (self.folder / "edge_map.npy").unlink()
        self.grouped = grouped
        per_part = np.array([np.diff(indptr[self.first_node]) for indptr, _ in grouped])  # (relations, parts)
        self.edge_range = offsets(per_part.T.flatten())

    def write(self, name: str, method: str, log: Callable[[str], None]) -> None:
        """Write the files of all parts and ``NAME.json``, which describes them as DGL expects it."""
        from dgl.data.utils import save_tensors

        with_graphbolt = graphbolt_problem() is None
        files: dict[str, dict[str, str]] = {}
        for part in range(self.parts):
            log(f"writing part {part} of {self.parts}")
            (self.folder / f"part{part}").mkdir()
            kinds = {"node_feats": "node_feat.dgl", "edge_feats": "edge_feat.dgl", "part_graph": "graph.dgl"}
            if with_graphbolt:
                kinds["part_graph_graphbolt"] = "fused_csc_sampling_graph.pt"
            names = files[f"part-{part}"] = {key: f"part{part}/{file}" for key, file in kinds.items()}
            self._write_structure(part, {key: str(self.folder / file) for key, file in names.items()})
            save_tensors(str(self.folder / names["node_feats"]), self._node_rows(part))
            save_tensors(str(self.folder / names["edge_feats"]), self._edge_rows(part))
        description: dict[str, Any] = {
            "graph_name": name,
            "num_nodes": self.graph.num_nodes(),
            "num_edges": self.graph.num_edges(),
            "part_method": method,
            "num_parts": self.parts,
            "halo_hops": 1,
            "node_map": _ranges(self.node_range, self.node_types),
            "edge_map": _ranges(self.edge_range, self.edge_types),
            "ntypes": {kind: number for number, kind in enumerate(self.node_types)},
            "etypes": {kind: number for number, kind in enumerate(self.edge_types)},
        }
        if with_graphbolt:
            description |= {"node_map_dtype": "int64", "edge_map_dtype": "int64"}
        write_json(self.folder / f"{name}.json", description | files)

    def _write_structure(self, part: int, files: dict[str, str]) -> None:
        """Write one part in both of DGL's formats: inner nodes before halo nodes, inner edges before leaving edges."""
        import dgl
        from dgl.data.utils import save_graphs

        begin, end = self.first_node[part : part + 2].tolist()
        halo = np.zeros(len(self.type_of), bool)
        leaving = []
        for number, (indptr, source) in enumerate(self.grouped):
            places = _leaving(indptr, source, begin, end)
            destination = np.searchsorted(indptr, places, side="right") - 1
            halo[source[indptr[begin] : indptr[end]]] = halo[destination] = True
            owner = np.searchsorted(self.first_node, destination, side="right") - 1
            first = self.edge_range[owner * len(self.grouped) + number]
            leaving.append((source[places], destination, first + places - indptr[self.first_node[owner]]))
        halo[begin:end] = False
        nodes = np.concatenate([np.arange(begin, end), np.flatnonzero(halo)])
        local = np.full(len(halo), -1, np.int32)
        local[nodes] = np.arange(len(nodes))
        del halo
        inner_nodes = np.arange(end - begin, dtype=np.int32)
        inner = [(indptr[begin : end + 1], source[indptr[begin] : indptr[end]]) for indptr, source in self.grouped]
        src = np.concatenate([*(local[source] for _, source in inner), *(local[one] for one, _, _ in leaving)])
        dst = np.concatenate(
            [*(np.repeat(inner_nodes, np.diff(at)) for at, _ in inner), *(local[one] for _, one, _ in leaving)]
        )
        counts = [*(len(source) for _, source in inner), *(len(one) for one, _, _ in leaving)]
        kinds = np.repeat(np.tile(np.arange(len(inner), dtype=np.int32), 2), counts) if self.typed else None
        if "part_graph_graphbolt" in files:
            self._write_graphbolt(src, dst, kinds, nodes, files["part_graph_graphbolt"])
        src, dst = torch.from_numpy(src).long(), torch.from_numpy(dst)
        dst = dst.long()  # one after the other, to hold only one array in both types
        graph = dgl.graph((src, dst), num_nodes=len(nodes))
        first, last = self.edge_range[[part * len(inner), (part + 1) * len(inner)]].tolist()
        graph.edata[dgl.EID] = torch.empty(len(src), dtype=torch.int64)
        torch.arange(first, last, out=graph.edata[dgl.EID][: last - first])
        graph.edata[dgl.EID][last - first :] = torch.cat([torch.from_numpy(one[2]) for one in leaving])
        graph.edata["inner_edge"] = torch.zeros(len(src), dtype=torch.uint8)
        graph.edata["inner_edge"][: last - first] = 1
        del src, dst, leaving
        graph.ndata[dgl.NID] = torch.from_numpy(nodes)
        graph.ndata["inner_node"] = (torch.arange(len(nodes)) < end - begin).to(torch.uint8)
        graph.ndata["part_id"] = torch.from_numpy(np.searchsorted(self.first_node, nodes, side="right") - 1)
        if self.typed:
            graph.ndata[dgl.NTYPE] = torch.from_numpy(self.type_of[nodes])
            graph.edata[dgl.ETYPE] = torch.from_numpy(kinds)
        save_graphs(files["part_graph"], [graph])

    def _write_graphbolt(
        self, src: np.ndarray, dst: np.ndarray, kinds: np.ndarray | None, nodes: np.ndarray, file: str
    ) -> None:
        """Write what ``dgl_partition_to_graphbolt`` makes of a part, which needs 72 bytes per edge for it."""
        import dgl
        from dgl import graphbolt as gb

        if kinds is not None:  # with one relation, the edges are in the order of their destinations already
            order = np.argsort(dst, kind="stable")
            src, kinds = src[order], kinds[order].astype(np.int8)
        indptr = offsets(np.bincount(dst, minlength=len(nodes)))
        numbers = [{kind: number for number, kind in enumerate(of)} for of in (self.node_types, self.edge_types)]
        graph = gb.fused_csc_sampling_graph(
            torch.from_numpy(indptr if len(src) >= 2**31 - 1 else indptr.astype(np.int32)),
            torch.from_numpy(src),
            node_type_offset=None,
            type_per_edge=None if kinds is None else torch.from_numpy(kinds),
            node_attributes={dgl.NID: torch.from_numpy(nodes)},
            edge_attributes={},
            node_type_to_id=numbers[0] if self.typed else None,
            edge_type_to_id=numbers[1] if self.typed else None,
        )
        torch.save(graph, file)

    def _node_rows(self, part: int) -> dict[str, torch.Tensor]:
        rows = {}
        for number, (kind, name) in enumerate(zip(self.graph.ntypes, self.node_types, strict=True)):
            before = sum(end - first for first, end in (self._nodes(k, number) for k in range(part)))
            first, end = self._nodes(part, number)
            ids = torch.from_numpy(self.node_map[number][before : before + end - first])
            for field, value in self.graph.nodes[kind].data.items():
                rows[f"{name}/{field}"] = _take_rows(value, ids, self.graph)
        return rows

    def _edge_rows(self, part: int) -> dict[str, torch.Tensor]:
        rows = {}
        for number, (relation, name) in enumerate(zip(self.graph.canonical_etypes, self.edge_types, strict=True)):
            first, end = self.grouped[number][0][self.first_node[part : part + 2]]
            for field, value in self.graph.edges[relation].data.items():
                rows[f"{name}/{field}"] = value[torch.from_numpy(self.edge_ids[number][first:end]).long()]
        return rows


def group_by_destination(
    graph: dgl.DGLGraph | Pairs, relation: tuple[str, str, str], new_src: Any, new_dst: Any, n: int, edge_ids: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort the edges of a relation by their new destination. Edges with the same destination keep their order.

    Args:
        new_src, new_dst: int32 arrays with the new ID of each source and destination node.
        n: number of new IDs.
        edge_ids: False skips the third array.

    Returns:
        int64 ``indptr`` of shape (n + 1,), int32 new source of each edge, and original ID of each edge.
    """
    counts = np.zeros(n, np.int64)
    for dst in ends(graph, relation, 1):
        counts += np.bincount(new_dst[dst.numpy()], minlength=n)
    indptr, place = offsets(counts), offsets(counts)[:-1]
    total = int(indptr[-1])
    source, ids = np.empty(total, np.int32), np.empty(total if edge_ids else 0, np.int32 if total < 2**31 else np.int64)
    first = 0
    for src, dst in zip(*(ends(graph, relation, of) for of in (0, 1)), strict=True):
        number = np.arange(first, first + len(src), dtype=ids.dtype)
        piece = sp.coo_array((number, (new_dst[dst.numpy()], new_src[src.numpy()])), shape=(n, n))
        piece.has_canonical_format = True  # otherwise scipy adds up parallel edges
        piece = piece.tocsr()
        where = np.arange(len(src)) + np.repeat(place - piece.indptr[:-1], size := np.diff(piece.indptr))
        source[where] = piece.indices
        if edge_ids:
            ids[where] = piece.data
        place, first = place + size, first + len(src)
    return indptr, source, ids


def _leaving(indptr: np.ndarray, source: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return the places of the edges that start at nodes ``begin`` to ``end`` and lead elsewhere."""
    found = []
    for at in range(0, len(source), BLOCK):
        piece = source[at : at + BLOCK]
        places = np.flatnonzero((piece >= begin) & (piece < end)) + at
        found.append(places[(places < indptr[begin]) | (places >= indptr[end])])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _take_rows(value: torch.Tensor, ids: torch.Tensor, graph: dgl.DGLGraph | Pairs) -> torch.Tensor:
    """Return ``value[ids]``. Features in a mapped file are read in blocks, and their pages are given back."""
    if not isinstance(graph, Pairs):
        return value[ids]
    rows = torch.empty((len(ids), *value.shape[1:]), dtype=value.dtype)
    for at in range(0, len(ids), FEATURE_ROWS):
        rows[at : at + FEATURE_ROWS] = value[ids[at : at + FEATURE_ROWS]]
        graph.let_go()
    return rows


def _ranges(first: np.ndarray, names: list[str]) -> dict[str, list[list[int]]]:
    """Return the ID range of each type in each part, as DGL's part config lists them."""
    pairs = np.stack([first[:-1], first[1:]], axis=1)
    return {name: pairs[number :: len(names)].tolist() for number, name in enumerate(names)}
