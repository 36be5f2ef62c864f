"""Create the files of one part for DGL's servers. Used by chunks_dispatch.py (lesson 15)."""

import dgl
import numpy as np
import torch


def read(path):
    """Return a chunk, read from an array file or from text with space-separated integers."""
    return np.load(path) if path.suffix == ".npy" else np.loadtxt(path, np.int64, ndmin=2)


def part_graph(files, ranges, part, first_edge):
    """Return the structure of a part, and the range of edge IDs of each relation.

    Args:
        files: for each relation, a file with the edges of this part as int64 pairs of new IDs.
        ranges: for each type, the first new ID and the last new ID + 1 in each part.
        first_edge: ID of the first edge of this part.
    """
    edges = [np.fromfile(file, np.int64).reshape(-1, 2) for file in files]
    counts = torch.tensor([len(pairs) for pairs in edges])
    src, dst = torch.from_numpy(np.concatenate(edges).T.copy())
    first, end = min(own[part][0] for own in ranges.values()), max(own[part][1] for own in ranges.values())
    away = (src < first) | (src >= end)
    halo, place = src[away].unique(return_inverse=True)  # source nodes in other parts
    src -= first
    src[away] = end - first + place  # a part stores inner nodes first and then halo nodes
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
    """Return the node data of a part. The function reads chunk by chunk and keeps the order of the nodes."""
    rows = {}
    for name, fields in about["node_data"].items():
        for field, files in fields.items():
            found, at = [], 0
            for chunk in (read(chunks / file) for file in files["data"]):
                found.append(chunk[part_of[name][at : at + len(chunk)] == part])
                at += len(chunk)
            rows[f"{name}/{field}"] = torch.from_numpy(np.concatenate(found))
    return rows
