"""The files of one part, as DGL's servers load them. For chunks_dispatch.py (lesson 15)."""

import dgl
import numpy as np
import torch


def read(path):
    """A chunk: an array, or text with a space between two numbers."""
    return np.load(path) if path.suffix == ".npy" else np.loadtxt(path, np.int64, ndmin=2)


def part_graph(files, ranges, part, first_edge):
    """The structure of a part, and the range of edge ids of each relation.

    Args:
        files: of each relation, the edges of this part in new ids: pairs of int64.
        ranges: by type, the first and the last + 1 new id in each part.
        first_edge: id of the first edge of this part.
    """
    edges = [np.fromfile(file, np.int64).reshape(-1, 2) for file in files]
    counts = torch.tensor([len(pairs) for pairs in edges])
    src, dst = torch.from_numpy(np.concatenate(edges).T.copy())
    first, end = min(own[part][0] for own in ranges.values()), max(own[part][1] for own in ranges.values())
    away = (src < first) | (src >= end)
    halo, place = src[away].unique(return_inverse=True)  # nodes of other parts, where edges of this part begin
    src -= first
    src[away] = end - first + place  # in a part, own nodes come first, then halo nodes
    graph = dgl.graph((src, dst - first), num_nodes=end - first + len(halo))
    nodes = torch.cat([torch.arange(first, end), halo])
    ends = torch.tensor([own[k][1] for k in range(len(next(iter(ranges.values())))) for own in ranges.values()])
    graph.ndata[dgl.NID] = nodes
    graph.ndata[dgl.NTYPE] = (torch.searchsorted(ends, nodes, right=True) % len(ranges)).int()
    graph.ndata["inner_node"] = ((nodes >= first) & (nodes < end)).to(torch.uint8)
    graph.edata[dgl.EID] = torch.arange(first_edge, first_edge + len(src))
    graph.edata[dgl.ETYPE] = torch.repeat_interleave(torch.arange(len(counts)), counts).int()
    graph.edata["inner_edge"] = torch.ones(len(src), dtype=torch.uint8)
    last = first_edge + counts.cumsum(0)
    return graph, torch.stack([last - counts, last], dim=1).tolist()


def node_rows(chunks, about, part_of, part):
    """Node data of a part, chunk by chunk: the rows of its nodes, which keep their order."""
    rows = {}
    for name, fields in about["node_data"].items():
        for field, files in fields.items():
            found, at = [], 0
            for chunk in (read(chunks / file) for file in files["data"]):
                found.append(chunk[part_of[name][at : at + len(chunk)] == part])
                at += len(chunk)
            rows[f"{name}/{field}"] = torch.from_numpy(np.concatenate(found))
    return rows
