"""Write the files of one part for DGL's servers (lesson 17)."""

import dgl
import torch
from dgl.data.utils import save_tensors


def write_part(folder, edges, first, end, first_edge, rows):
    """Write the part with the nodes ``first`` to ``end - 1``: its edges (E, 2), and its rows of node data."""
    src, dst = torch.from_numpy(edges).T.clone()
    away = (src < first) | (src >= end)
    halo, position = src[away].unique(return_inverse=True)  # sources in other parts
    src -= first
    src[away] = end - first + position  # halo nodes follow the inner nodes
    graph = dgl.graph((src, dst - first), num_nodes=end - first + len(halo))
    graph.ndata[dgl.NID] = nodes = torch.cat([torch.arange(first, end), halo])
    graph.ndata[dgl.NTYPE] = torch.zeros_like(nodes, dtype=torch.int32)
    graph.ndata["inner_node"] = ((nodes >= first) & (nodes < end)).to(torch.uint8)
    graph.edata[dgl.EID] = torch.arange(first_edge, first_edge + len(src))
    graph.edata[dgl.ETYPE] = torch.zeros_like(src, dtype=torch.int32)
    graph.edata["inner_edge"] = torch.ones_like(src, dtype=torch.uint8)
    dgl.save_graphs(str(folder / "graph.dgl"), [graph])
    save_tensors(str(folder / "node_feat.dgl"), {f"_N/{name}": values for name, values in rows.items()})
    save_tensors(str(folder / "edge_feat.dgl"), {})
