"""A file of ``dgl.save_graphs`` that holds one graph; ``feat``, ``label`` and masks are in its node data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tutorial_lib.data.ends import Names
from tutorial_lib.data.nodes import Nodes
from tutorial_lib.data.own import Parts
from tutorial_lib.errors import InputError

MAGIC = bytes.fromhex("3fa1b446f04f2edd")  # what DGL writes first


def read_saved(path: Path) -> Parts:
    """The graph with its node and edge data.

    Raises:
        InputError: another or a damaged file, or not one graph.
    """
    import dgl

    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            remedy = "Tables belong into a folder, as edges.csv and nodes.csv: docs/own-graph.md says how."
            raise InputError(f"{path} is not a file of dgl.save_graphs", remedy)
    try:
        graphs, _ = dgl.load_graphs(str(path))
    except dgl.DGLError as error:
        raise InputError(f"{path}: damaged: {str(error).splitlines()[0]}", "Save it again.") from None
    if len(graphs) != 1:
        text = f"{path} holds {len(graphs)} graphs"
        raise InputError(text, f"Save one of them: dgl.save_graphs({path.name!r}, [graphs[0]])")
    graph = graphs[0].long()
    nodes = {}
    for kind in graph.ntypes:
        nodes[kind] = Nodes(path, Names(range(graph.num_nodes(kind))), _arrays(graph.nodes[kind].data))
    edges, edge_data = {}, {}
    for relation in graph.canonical_etypes:
        src, dst = graph.edges(order="eid", etype=relation)
        edges[relation] = ([src.numpy()], [dst.numpy()])
        edge_data[relation] = _arrays(graph.edges[relation].data)
    return Parts(path, nodes, edges, edge_data)


def _arrays(data: Any) -> dict[str, np.ndarray]:
    import torch

    return {name: (value.float() if value.dtype == torch.bfloat16 else value).numpy() for name, value in data.items()}
