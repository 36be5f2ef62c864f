"""Lesson 15: a graph on disk in pieces, and the part of each edge found with one piece in memory.

The folder is in the *chunked graph format* of DGL's preparation pipeline: ``metadata.json`` names the types, counts and
files; the files hold pairs of ids, or rows of features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dgl
import numpy as np


def write_chunks(graph: dgl.DGLGraph, name: str, folder: Path, chunk: int) -> dict[str, Any]:
    """Write the edges of a graph in files of at most ``chunk`` edges; returns the content of ``metadata.json``."""
    (folder / "edges").mkdir(parents=True)
    keys = {relation: ":".join(relation) for relation in graph.canonical_etypes}
    about: dict[str, Any] = {
        "graph_name": name,
        "node_type": graph.ntypes,
        "num_nodes_per_type": [graph.num_nodes(kind) for kind in graph.ntypes],
        "edge_type": list(keys.values()),
        "num_edges_per_type": [graph.num_edges(relation) for relation in keys],
        "edges": {},
        "node_data": {},
        "edge_data": {},
    }
    for relation, key in keys.items():
        pairs = np.stack([end.numpy() for end in graph.edges(etype=relation, order="eid")], axis=1)
        files = [f"edges/{'-'.join(relation)}-{at // chunk}.csv" for at in range(0, len(pairs), chunk)]
        for number, file in enumerate(files):
            np.savetxt(folder / file, pairs[number * chunk : (number + 1) * chunk], fmt="%d")
        about["edges"][key] = {"format": {"name": "csv", "delimiter": " "}, "data": files}
    (folder / "metadata.json").write_text(json.dumps(about, indent=1))
    return about


def read_chunks(folder: Path, key: str) -> Iterator[np.ndarray]:
    """The edges of one type, a file at a time: int64 (edges of the file, 2)."""
    files = json.loads((folder / "metadata.json").read_text())["edges"][key]
    for file in files["data"]:
        yield np.loadtxt(folder / file, dtype=np.int64, delimiter=files["format"]["delimiter"], ndmin=2)


def dispatch(folder: Path, part_of: dict[str, np.ndarray], parts: int, out: Path) -> tuple[dict[str, list[int]], int]:
    """Append each edge to the file of the part that owns its destination.

    Args:
        part_of: by node type, the part of each node: all that stays in memory.

    Returns:
        By edge type, edges of each part; and the most edges that were in memory at once.
    """
    counts, most = {}, 0
    for key in json.loads((folder / "metadata.json").read_text())["edge_type"]:
        counts[key] = [0] * parts
        for piece in read_chunks(folder, key):
            owner = part_of[key.split(":")[2]][piece[:, 1]]
            most = max(most, len(piece))
            for part in range(parts):
                mine = piece[owner == part]
                counts[key][part] += len(mine)
                target = out / f"part{part}"
                target.mkdir(parents=True, exist_ok=True)
                with (target / f"{key.replace(':', '-')}.int64").open("ab") as file:
                    mine.tofile(file)
    return counts, most
