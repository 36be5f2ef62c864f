"""A graph of one's own: what each kind of folder or file gives is put together here, and looked over.

    a folder with edges.csv | .csv.gz | .parquet | .npy    one type of nodes; ``nodes`` says what else there may be
    a folder with graph.yaml, or DGL's metadata.json       several types, see ``described``
    a file of dgl.save_graphs                              one graph, with node and edge data

docs/own-graph.md says which nodes there are, which split they get, and what ``both_ways`` does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from tutorial_lib.data.base import MASKS, Dataset, node_data
from tutorial_lib.data.ends import Ends, Names, read_ends
from tutorial_lib.data.nodes import OWN, Nodes, names_in, nodes_at
from tutorial_lib.data.tables import TABLES, free_memory, no_memory, one_of
from tutorial_lib.errors import InputError

Relation = tuple[str, str, str]
ONE = ("_N", "_E", "_N")  # what DGL calls the types of a graph that has one of each
NODE_BYTES = 24  # of each node at least: its label, masks, place in the split and whether it has an edge
MAGIC = bytes.fromhex("3fa1b446f04f2edd")  # what a file of dgl.save_graphs begins with


@dataclass
class Parts:
    """What was read, before it is a graph.

    Attributes:
        edges: read with the names of ``nodes``.
        edge_data: by relation and name, a row for each edge.
        target: the type that is classified; None: the one with labels.
    """

    path: Path
    nodes: dict[str, Nodes]
    edges: dict[Relation, Ends]
    edge_data: dict[Relation, dict[str, np.ndarray]] = field(default_factory=dict)
    target: str | None = None


def load_own(path: Path, *, seed: int = 0, both_ways: bool = False) -> Dataset:
    """Read a folder or a file; see the module's docstring.

    The nodes of one type have ``feat`` float32 (N, F) if there is any (or the data set ``wide`` features), ``label``
    int64 (N,), three bool masks (N,). ``ids`` of the data set has the name of each of them, ``info["class_names"]``
    that of each class where labels are texts.

    Raises:
        InputError: what is wrong, in which file, and in which line where there are lines.
    """
    from tutorial_lib.data.described import read_metadata, read_yaml

    path = path.expanduser()
    if not path.is_dir() and not path.is_file():
        raise InputError(f"{path} is neither a folder nor a file", "docs/own-graph.md says what a graph needs.")
    try:
        if path.is_file():
            parts = read_saved(path)
        elif (path / "graph.yaml").is_file():
            parts = read_yaml(path / "graph.yaml")
        elif (path / "metadata.json").is_file():
            parts = read_metadata(path / "metadata.json")
        else:
            parts = read_tables(path)
        return _together(parts, seed, both_ways)
    except MemoryError:
        raise no_memory(path) from None


def read_tables(folder: Path) -> Parts:
    """A folder whose nodes are of one type."""
    edges = one_of(folder, "edges", (*TABLES, ".npy"))
    if edges is None:
        wanted = ", ".join(f"edges{ending}" for ending in (*TABLES, ".npy"))
        text = f"{folder} has none of {wanted}, graph.yaml and metadata.json; it has: {names_in(folder)}"
        raise InputError(text, "docs/own-graph.md says what a graph needs.")
    nodes = nodes_at(folder)
    return Parts(folder, {ONE[0]: nodes}, {ONE: read_ends([edges], nodes.names, nodes.names)})


def read_saved(path: Path) -> Parts:
    """A file of ``dgl.save_graphs``: the graph with its node and edge data.

    Raises:
        InputError: another or a damaged file, or not one graph.
    """
    import dgl

    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            remedy = "Tables belong into a folder, as edges.csv and nodes.csv: docs/own-graph.md says how."
            raise InputError(f"{path} is not a file of dgl.save_graphs", remedy)
    _load_in_child(path)
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
        nodes[kind] = Nodes(path, Names(range(graph.num_nodes(kind))), _data_of(graph.nodes[kind].data))
    edges, edge_data = {}, {}
    for relation in graph.canonical_etypes:
        src, dst = graph.edges(order="eid", etype=relation)
        edges[relation] = ([src.numpy()], [dst.numpy()])
        edge_data[relation] = _data_of(graph.edges[relation].data)
    return Parts(path, nodes, edges, edge_data)


def _load_in_child(path: Path) -> None:
    """Raise an InputError where DGL would end this process: C++ code aborts at some damaged files."""
    import dgl

    def load() -> None:
        with contextlib.suppress(BaseException):
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            dgl.load_graphs(str(path))

    if (child := os.fork()) == 0:
        try:
            thread = threading.Thread(target=load)  # OpenMP hangs in the forked thread
            thread.start()
            thread.join()
        finally:
            os._exit(0)
    if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        raise InputError(f"{path}: damaged, or too large for the memory", "Save it again.")


def _data_of(data: Any) -> dict[str, np.ndarray]:
    import torch

    return {name: (value.float() if value.dtype == torch.bfloat16 else value).numpy() for name, value in data.items()}


def _together(parts: Parts, seed: int, both_ways: bool) -> Dataset:
    import dgl
    import torch

    for nodes in parts.nodes.values():
        nodes.names.settle()
    several = len(parts.nodes) > 1 or len(parts.edges) > 1
    if several:
        _check_names(parts)
    counts = {kind: len(nodes.names) for kind, nodes in parts.nodes.items()}
    if NODE_BYTES * sum(counts.values()) > free_memory():
        raise no_memory(parts.path)
    edges = {}
    for relation in [*parts.edges]:  # one after the other: an edge is not in memory twice for long
        ends = parts.edges.pop(relation)
        edges[relation] = tuple(np.concatenate([*end] or [np.empty(0, np.int64)]) for end in ends)
        for end in ends:
            end.clear()
    facts: dict[str, Any] = {"file": str(parts.path), **_oddities(edges, counts, several), "directed": not both_ways}
    if both_ways:
        parts.edge_data.clear()
        edges = _both_ways(edges, counts, several)
    target = _target(parts)
    nodes = parts.nodes[target]
    label, classes, unlabelled = nodes.labels()
    split = nodes.split(seed, facts)
    split[unlabelled] = len(MASKS)
    facts |= {"unlabelled_nodes": int(unlabelled.sum())} | ({"class_names": classes} if classes else {})
    tensors = {relation: tuple(map(torch.from_numpy, ends)) for relation, ends in edges.items()}
    graph = dgl.heterograph(tensors, counts) if several else dgl.graph(tensors.popitem()[1], num_nodes=counts[target])
    wide = {}
    for kind, of in parts.nodes.items():
        if isinstance(feat := of.features(), sparse.csr_array):
            wide[kind if several else ONE[0]], feat = feat, None
        own = node_data(feat, label, split) if kind == target else {} if feat is None else {"feat": _tensor(feat)}
        others = {name: _tensor(array) for name, array in of.arrays.items() if name not in OWN}
        (graph.nodes[kind].data if several else graph.ndata).update(own | others)
    for relation, arrays in parts.edge_data.items():
        data = graph.edges[relation].data if several else graph.edata
        data.update({name: _tensor(array) for name, array in arrays.items()})
    without = np.setdiff1d(label[~unlabelled], label[split == 0])
    facts["classes_without_a_training_node"] = [classes[k] if classes else int(k) for k in without]
    ids = None if isinstance(nodes.names.ids, range) else nodes.names.ids
    dataset = Dataset(str(parts.path), graph, max(len(classes), int(label.max()) + 1), facts, ids=ids, wide=wide)
    facts["memory"] = dataset.cost()
    return dataset


def _check_names(parts: Parts) -> None:
    """See that DGL, its files, and torch's ModuleDict can bear the names of the types."""
    from torch.nn import ModuleDict

    for name in {*parts.nodes, *(name for _, name, _ in parts.edges)}:
        if not re.fullmatch(r"[\w-]+", name) or hasattr(ModuleDict, name):
            text = f"{parts.path}: a type cannot be called {name!r}"
            raise InputError(text, "Take letters, digits, - and _, and no word that torch uses, like items or type.")


def _oddities(edges: dict[Relation, Any], counts: dict[str, int], several: bool) -> dict[str, Any]:
    """What the file may have and who made it may not know: numbers, or by type and relation where there are several."""
    found: dict[str, dict[str, int]] = {"edges_in_the_file": {}, "duplicate_edges": {}, "self_loops": {}}
    touched = {kind: np.zeros(n, bool) for kind, n in counts.items()}
    for (start, name, end), (src, dst) in edges.items():
        keys = src * counts[end]
        keys += dst
        keys.sort()
        loops = int((src == dst).sum()) if start == end else 0
        numbers = len(src), int((keys[1:] == keys[:-1]).sum()), loops
        for of, number in zip(found.values(), numbers, strict=True):
            of[f"{start}:{name}:{end}"] = number
        touched[start][src] = touched[end][dst] = True
    found["isolated_nodes"] = {kind: int(len(seen) - seen.sum()) for kind, seen in touched.items()}
    return {key: of if several else next(iter(of.values())) for key, of in found.items()}


def _both_ways(edges: dict[Relation, Any], counts: dict[str, int], several: bool) -> dict[Relation, Any]:
    if several:
        back = {(end, f"rev-{name}", start): (dst, src) for (start, name, end), (src, dst) in edges.items()}
        return edges | back
    ((relation, (src, dst)),) = edges.items()
    n = counts[relation[0]]
    keys = np.unique(np.concatenate([src * n + dst, dst * n + src]))
    return {relation: (keys // n, keys % n)}


def _target(parts: Parts) -> str:
    found = [parts.target] if parts.target else [kind for kind, nodes in parts.nodes.items() if nodes.has_labels]
    if not {*found} <= {*parts.nodes}:
        text = f"{parts.path}: target is {found[0]!r}, and the types of nodes are {', '.join(parts.nodes)}"
        raise InputError(text, "Name one of them.")
    if len(found) > 1:
        text = f"{parts.path}: nodes of several types have labels: {', '.join(found)}"
        raise InputError(text, f"Say which are to be classified: target: {found[0]} in graph.yaml or metadata.json.")
    return found[0] if found else next(iter(parts.nodes))  # whose ``labels`` says that there are none


def _tensor(array: np.ndarray) -> Any:
    """Data that come along: as they are, but of the whole numbers that torch does not know."""
    import torch

    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind == "u" else np.ascontiguousarray(array))
