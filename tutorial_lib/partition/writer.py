"""Write the files of each part with only one part in memory at a time.

``dgl.distributed.partition_graph`` builds all parts first, and fails if a part has no node of some type. This writer
renumbers the graph once, so that a part is a range of nodes and a range of edges:

    new node IDs    part by part, in a part type by type, then by original ID
    new edge IDs    by the part of the destination, in a part relation by relation, then by destination

A part stores its inner nodes and all edges at them. It owns the edges that end at them. An edge that leaves the part
belongs to the part of its destination. The nodes of other parts at all these edges are the halo. DGL stores the same.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import scipy.sparse as sp
import torch
from dgl.data.utils import save_graphs, save_tensors

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data.base import EDGE, NODE, Dataset, Pairs, read_endpoints, release_pages
from tutorial_lib.files import JsonObject, write_json
from tutorial_lib.partition.assign import BLOCK, offsets, type_offsets

FEATURE_ROWS = 1 << 18  # rows that are read together
MOST_MAPPED = 1 << 28  # edges. A larger generated graph gets no edge_map.npy, which would have more than 2 GB


class Writer:
    """Renumbers a graph and writes its parts. ``source`` has the source of each edge, by relation and destination."""

    def __init__(self, dataset: Dataset, part_of: np.ndarray, parts: int, folder: Path) -> None:
        graph = self.graph = dataset.structure
        self.parts = parts
        self.folder = folder
        self.typed = not graph.is_homogeneous
        ntypes, etypes = [NODE], [":".join(EDGE)]
        if self.typed:
            ntypes, etypes = graph.ntypes, list(map(":".join, graph.canonical_etypes))
        self.ntypes = {name: number for number, name in enumerate(ntypes)}
        self.etypes = {name: number for number, name in enumerate(etypes)}
        by_part = np.argsort(part_of, kind="stable")
        type_starts = type_offsets(dataset)
        num_types, starts = len(self.ntypes), np.array([*type_starts.values()])
        self.type_of = (np.searchsorted(starts, by_part, side="right") - 1).astype(np.int16)
        self.first_node = offsets(np.bincount(part_of, minlength=parts))
        self.node_range = offsets(np.bincount(part_of[by_part] * num_types + self.type_of, minlength=parts * num_types))
        original = by_part - starts[self.type_of]
        self.node_ids = np.split(original, self.node_range[1:-1])
        np.save(folder / "node_map.npy", original[np.argsort(self.type_of, kind="stable")])
        new_id = np.empty(len(by_part), np.int32)
        new_id[by_part] = np.arange(len(by_part), dtype=np.int32)
        self._group_edges({ntype: new_id[start:] for ntype, start in type_starts.items()})
        # bounds[relation, part] and edge_range[part * relations + relation]: first edge in ``source`` and first new ID
        self.bounds = self.indptr[np.arange(len(self.etypes))[:, None] * len(new_id) + self.first_node]
        self.edge_range = offsets(np.diff(self.bounds).T.ravel())

    def _group_edges(self, new_ids: dict[str, np.ndarray]) -> None:
        graph = self.graph
        n, count = graph.num_nodes(), graph.num_edges()
        degrees = np.zeros((len(self.etypes), n), np.int64)
        for degree, relation in zip(degrees, graph.canonical_etypes, strict=True):
            for dst in read_endpoints(graph, relation, 1):
                degree += np.bincount(new_ids[relation[2]][dst.numpy()], minlength=n)
        self.indptr = offsets(degrees.ravel())  # row relation * N + node: edges of the relation that end at the node
        self.source = np.empty(count, np.int32)
        keep_ids = not isinstance(graph, Pairs) or count <= MOST_MAPPED
        ids = np.empty(count if keep_ids else 0, np.int32 if count < 2**31 else np.int64)
        for next_position, relation in zip(self.indptr[:-1].reshape(-1, n), graph.canonical_etypes, strict=True):
            num_read = 0
            new_src, new_dst = new_ids[relation[0]], new_ids[relation[2]]
            for src, dst in zip(*(read_endpoints(graph, relation, endpoint) for endpoint in (0, 1)), strict=True):
                edge_numbers = np.arange(num_read, num_read + len(src), dtype=ids.dtype)
                block = sp.coo_array((edge_numbers, (new_dst[dst.numpy()], new_src[src.numpy()])), shape=(n, n))
                block.has_canonical_format = True  # otherwise scipy adds up parallel edges
                block = block.tocsr()
                positions = np.repeat(next_position - block.indptr[:-1], size := np.diff(block.indptr))
                positions += np.arange(len(positions), dtype=np.int32)
                self.source[positions] = block.indices
                if keep_ids:
                    ids[positions] = block.data
                next_position, num_read = next_position + size, num_read + len(src)
                del src, dst, edge_numbers, block, positions  # the next edges need this memory
        if keep_ids:
            with (self.folder / "edge_map.npy").open("wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (count,)})
                for start in range(0, count, BLOCK):
                    ids[start : start + BLOCK].astype(np.int64).tofile(file)
        self.edge_ids = ids if any(graph.edges[etype].data for etype in graph.canonical_etypes) else ids[:0].copy()

    def write(self, name: str, method: str, log: Callable[[str], None]) -> JsonObject:
        """Write the files. Return ``nodes``, ``edges``, ``halo_nodes`` and ``edge_cut`` of a ``PartitionReport``."""
        graph, num_types = self.graph, len(self.ntypes)
        counts = []
        file_names = {"node_feats": "node_feat.dgl", "edge_feats": "edge_feat.dgl", "part_graph": "graph.dgl"}
        description: JsonObject = {"graph_name": name, "num_nodes": graph.num_nodes()}
        description |= {"num_edges": graph.num_edges(), "part_method": method, "num_parts": self.parts, "halo_hops": 1}
        node_ranges, edge_ranges = (np.stack([b[:-1], b[1:]], axis=1) for b in (self.node_range, self.edge_range))
        description["node_map"] = {key: node_ranges[k::num_types].tolist() for key, k in self.ntypes.items()}
        description["edge_map"] = {key: edge_ranges[k :: len(self.etypes)].tolist() for key, k in self.etypes.items()}
        description |= {"ntypes": self.ntypes, "etypes": self.etypes}
        if graphbolt_problem() is None:
            file_names["part_graph_graphbolt"] = "fused_csc_sampling_graph.pt"
            description |= {"node_map_dtype": "int64", "edge_map_dtype": "int64"}
        for part in range(self.parts):
            log(f"writing part {part} of {self.parts}")
            (self.folder / f"part{part}").mkdir()
            paths = description[f"part-{part}"] = {key: f"part{part}/{file}" for key, file in file_names.items()}
            files = {key: str(self.folder / file) for key, file in paths.items()}
            counts.append(self._write_structure(part, files))
            nodes = self.node_ids[part * num_types : (part + 1) * num_types]
            edges = [self.edge_ids[begin:end] for begin, end in self.bounds[:, part : part + 2]]
            save_tensors(files["node_feats"], self._rows(graph.nodes, graph.ntypes, self.ntypes, nodes))
            save_tensors(files["edge_feats"], self._rows(graph.edges, graph.canonical_etypes, self.etypes, edges))
        write_json(self.folder / f"{name}.json", description)
        halo_nodes, leaving = map(list, zip(*counts, strict=True))
        nodes, edges = np.diff(self.first_node), np.diff(self.bounds).sum(axis=0)
        return {"nodes": nodes.tolist(), "edges": edges.tolist(), "halo_nodes": halo_nodes, "edge_cut": sum(leaving)}

    def _write_structure(self, part: int, files: dict[str, str]) -> tuple[int, int]:
        """Write one part, with inner nodes and edges first. Return the numbers of halo nodes and leaving edges."""
        n = len(self.type_of)
        begin, end = self.first_node[part : part + 2].tolist()
        inner = self.bounds[:, part : part + 2]  # where the inner edges of each relation begin and end in ``source``
        halo = np.zeros(n, bool)
        for first, last in inner:
            halo[self.source[first:last]] = True
        halo[begin:end] = False
        halo_nodes = int(halo.sum())
        leaving_chunks = [np.empty(0, np.int64)]
        for first, last in np.reshape([0, *inner.flat, len(self.source)], (-1, 2)):  # outside of the inner edges
            for start in range(first, last, BLOCK):
                block = self.source[start : min(start + BLOCK, last)]
                leaving_chunks.append(np.flatnonzero((block >= begin) & (block < end)) + start)
        leaving = np.concatenate(leaving_chunks)
        leaving_rows = np.searchsorted(self.indptr, leaving, side="right") - 1
        relation, destination = np.divmod(leaving_rows, n)
        halo[destination] = True
        nodes = np.concatenate([np.arange(begin, end), np.flatnonzero(halo)])
        local_id = np.full(n, -1, np.int32)
        local_id[nodes] = np.arange(len(nodes))
        rows = (np.arange(len(inner))[:, None] * n + np.arange(begin, end)).ravel()  # relation * N + node, as in indptr
        num_edges = self.indptr[rows + 1] - self.indptr[rows]
        rows = np.concatenate([np.repeat(rows.astype(np.int32), num_edges), leaving_rows.astype(np.int32)])
        src = local_id[np.concatenate([*(self.source[first:last] for first, last in inner), self.source[leaving]])]
        dst = local_id[rows % n]
        etypes = rows // n if self.typed else None
        del rows, num_edges, leaving_rows, halo, local_id
        if "part_graph_graphbolt" in files:
            self._write_graphbolt(src, dst, etypes, nodes, files["part_graph_graphbolt"])
        src = torch.from_numpy(src).long()  # one after the other, to hold only one array in both types
        dst = torch.from_numpy(dst).long()
        graph = dgl.graph((src, dst), num_nodes=len(nodes))
        owner = np.searchsorted(self.first_node, destination, side="right") - 1
        first, last = self.edge_range[[part * len(inner), (part + 1) * len(inner)]].tolist()
        ids = torch.arange(first, first + len(src))
        leaving += self.edge_range[owner * len(inner) + relation] - self.bounds[relation, owner]  # now edge IDs
        ids[last - first :] = torch.from_numpy(leaving)
        graph.edata[dgl.EID] = ids
        graph.edata["inner_edge"] = ((ids >= first) & (ids < last)).to(torch.uint8)
        graph.ndata[dgl.NID] = torch.from_numpy(nodes)
        graph.ndata["inner_node"] = (torch.arange(len(nodes)) < end - begin).to(torch.uint8)
        graph.ndata["part_id"] = torch.from_numpy(np.searchsorted(self.first_node, nodes, side="right") - 1)
        if self.typed:
            graph.ndata[dgl.NTYPE] = torch.from_numpy(self.type_of[nodes])
            graph.edata[dgl.ETYPE] = torch.from_numpy(etypes)
        save_graphs(files["part_graph"], [graph])
        return halo_nodes, len(leaving)

    def _write_graphbolt(self, src: np.ndarray, dst: np.ndarray, etypes: Any, nodes: np.ndarray, file: str) -> None:
        """Write the same file as ``dgl_partition_to_graphbolt``, which needs 72 bytes per edge."""
        options: JsonObject = {"node_attributes": {dgl.NID: torch.from_numpy(nodes)}, "edge_attributes": {}}
        indptr = offsets(np.bincount(dst, minlength=len(nodes)))
        if len(src) < 2**31 - 1:
            indptr = indptr.astype(np.int32)
        if self.typed:  # with one relation, the edges are in the order of their destinations already
            order = np.argsort(dst, kind="stable")
            src = src[order]
            options["type_per_edge"] = torch.from_numpy(etypes[order].astype(np.int8))
            options |= {"node_type_to_id": self.ntypes, "edge_type_to_id": self.etypes}
        graph = dgl.graphbolt.fused_csc_sampling_graph(torch.from_numpy(indptr), torch.from_numpy(src), **options)
        torch.save(graph, file)

    def _rows(self, frames: Any, keys: Any, names: Iterable[str], ids: list[np.ndarray]) -> dict[str, torch.Tensor]:
        tensors = {}
        for key, name, row_ids in zip(keys, names, ids, strict=True):
            for field, value in frames[key].data.items():
                rows = tensors[f"{name}/{field}"] = torch.empty((len(row_ids), *value.shape[1:]), dtype=value.dtype)
                for start in range(0, len(row_ids), FEATURE_ROWS):
                    rows[start : start + FEATURE_ROWS] = value[row_ids[start : start + FEATURE_ROWS]]
                    release_pages(self.graph)  # the features may be in a mapped file
        return tensors
