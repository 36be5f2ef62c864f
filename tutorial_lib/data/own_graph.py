"""A graph of your own from a folder or a file. docs/own-graph.md describes the formats."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_lib.data.base import MASKS, Dataset, node_data
from tutorial_lib.data.memory import free_memory, not_enough_memory
from tutorial_lib.data.own_edges import EdgeFile, ids_in, number_edges, read_edges
from tutorial_lib.data.own_nodes import FIELDS, SPLIT, Nodes, read_nodes
from tutorial_lib.data.tables import TABLES, one_of
from tutorial_lib.errors import InputError

Relation = tuple[str, str, str]
Edges = dict[Relation, tuple[np.ndarray, np.ndarray]]
ONE: Relation = ("_N", "_E", "_N")  # DGL's names in a graph with one type of nodes and of edges
NODE_BYTES = 24  # each node needs at least this: label, masks, and whether it has an edge


@dataclass
class GraphFiles:
    """The content of the files of a graph.

    Attributes:
        edge_data: by relation and name, a row for each edge.
        target: type of the nodes with labels. None means the only type that has labels.
    """

    path: Path
    nodes: dict[str, Nodes]
    edges: dict[Relation, list[EdgeFile]]
    edge_data: dict[Relation, dict[str, np.ndarray]] = field(default_factory=dict)
    target: str | None = None


def load_own(path: Path, *, seed: int = 0, both_ways: bool = False) -> Dataset:
    """Read a graph of your own. Labels, masks and features are optional.

    Args:
        path: folder with edges.csv, graph.yaml or metadata.json, or file of ``dgl.save_graphs``.
        seed: seed of the random split.
        both_ways: add the reverse of each edge.

    Raises:
        InputError: names the mistake with its file, and with its line if there are lines.
    """
    from tutorial_lib.data import formats

    path = path.expanduser()
    if not path.is_dir() and not path.is_file():
        raise InputError(f"{path} is neither a folder nor a file", "docs/own-graph.md describes the files.")
    try:
        if path.is_file():
            files = formats.read_dgl_file(path)
        elif (path / "graph.yaml").is_file():
            files = formats.read_yaml(path / "graph.yaml")
        elif (path / "metadata.json").is_file():
            files = formats.read_metadata(path / "metadata.json")
        else:
            files = read_folder(path)
        return make_dataset(files, seed, both_ways)
    except MemoryError:
        raise not_enough_memory(path) from None


def read_folder(folder: Path) -> GraphFiles:
    """Read a folder with one type of nodes."""
    nodes = read_nodes(folder)
    if (edges := one_of(folder, "edges", endings := (*TABLES, ".npy"))) is None:
        names = ", ".join(f"edges{ending}" for ending in endings)
        text = f"{folder} has none of {names}, graph.yaml and metadata.json"
        raise InputError(text, "docs/own-graph.md describes the files.")
    return GraphFiles(folder, {ONE[0]: nodes}, {ONE: [read_edges(edges)]})


def make_dataset(files: GraphFiles, seed: int, both_ways: bool) -> Dataset:
    """Number nodes and edges, and check labels, features and split."""
    import dgl
    import torch

    if len(files.nodes) == len(files.edges) == 1:  # with one type, the names in the files do not matter
        files.nodes = {ONE[0]: next(iter(files.nodes.values()))}
        files.edges = {ONE: next(iter(files.edges.values()))}
        files.edge_data = {ONE: next(iter(files.edge_data.values()), {})}
        files.target = ONE[0] if files.target else None
    else:
        _check_type_names(files)
    columns: dict[str, list[Any]] = {kind: [] for kind in files.nodes}
    for (start, _, end), of in files.edges.items():
        for file in of:
            columns[start].append(file.ends[0][1])
            columns[end].append(file.ends[1][1])
    for kind, nodes in files.nodes.items():
        if nodes.ids is None and not columns[kind]:
            raise InputError(f"{files.path}: nothing says which nodes there are of type {kind}")
        nodes.ids = ids_in(files.path, columns[kind]) if nodes.ids is None else nodes.ids
    del columns
    counts = {kind: len(nodes.ids) for kind, nodes in files.nodes.items()}
    if NODE_BYTES * sum(counts.values()) > free_memory():
        raise not_enough_memory(files.path)
    edges = {key: number_edges(of, files.nodes[key[0]].ids, files.nodes[key[2]].ids) for key, of in files.edges.items()}
    info = {"file": str(files.path), **_oddities(edges, counts), "directed": not both_ways}
    if both_ways:
        files.edge_data, edges = {}, _both_ways(edges, counts)
    tensors = {key: tuple(map(torch.from_numpy, ends)) for key, ends in edges.items()}
    graph = dgl.heterograph(tensors, counts)
    target = _target(files)
    nodes, num_classes = files.nodes[target], 0
    label, split, names = nodes.labels(), nodes.split(seed, info), nodes.class_names
    if label is not None and split is not None:
        num_classes = max(len(names), int(label.max()) + 1, 1)
        split[label < 0] = len(MASKS)
        missing = np.setdiff1d(label[label >= 0], label[split == 0])
        info |= {"unlabelled_nodes": int((label < 0).sum())} | ({"class_names": names} if names else {})
        info["classes_without_a_training_node"] = [names[k] if names else int(k) for k in missing]
        label[label < 0] = 0
    for kind, of in files.nodes.items():
        data = graph.nodes[kind].data
        data.update(node_data(of.features(), *((label, split) if kind == target else (None, None))))
        data.update({name: _tensor(array) for name, array in of.arrays.items() if name not in (*FIELDS, SPLIT)})
    for relation, arrays in files.edge_data.items():
        graph.edges[relation].data.update({name: _tensor(array) for name, array in arrays.items()})
    return Dataset(str(files.path), graph, num_classes, info, None if isinstance(nodes.ids, range) else nodes.ids)


def _check_type_names(files: GraphFiles) -> None:
    """Check that DGL, its files and torch's ModuleDict accept the names of the types."""
    from torch.nn import ModuleDict

    for name in {*files.nodes, *(name for _, name, _ in files.edges)}:
        if not re.fullmatch(r"[\w-]+", name) or hasattr(ModuleDict, name):
            text = f"{files.path}: a type cannot be called {name!r}"
            raise InputError(text, "Use letters, digits, - and _, and no word that torch uses, like items or type.")


def _oddities(edges: Edges, counts: dict[str, int]) -> dict[str, Any]:
    """Count duplicate edges, self loops and isolated nodes, by type and relation if there are several."""
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
    return found if [*edges] != [ONE] else {key: next(iter(of.values())) for key, of in found.items()}


def _both_ways(edges: Edges, counts: dict[str, int]) -> Edges:
    if [*edges] != [ONE]:
        return edges | {(end, f"rev-{name}", start): (dst, src) for (start, name, end), (src, dst) in edges.items()}
    (src, dst), n = edges[ONE], counts[ONE[0]]
    keys = np.unique(np.concatenate([src * n + dst, dst * n + src]))
    return {ONE: (keys // n, keys % n)}


def _target(files: GraphFiles) -> str:
    """Return the type of the nodes with labels, or the first type if there are no labels."""
    found = [kind for kind, nodes in files.nodes.items() if "label" in nodes.arrays]
    if files.target is None and len(found) > 1:
        text = f"{files.path}: nodes of several types have labels: {', '.join(found)}"
        raise InputError(text, f"Name the type to classify: target: {found[0]} in graph.yaml or metadata.json.")
    if files.target is None:
        return found[0] if found else next(iter(files.nodes))
    if files.target not in files.nodes:
        text = f"{files.path}: target is {files.target!r}, and the types of nodes are {', '.join(files.nodes)}"
        raise InputError(text, "Name one of them.")
    if files.target not in found:
        raise InputError(f"{files.nodes[files.target].where}: there are no labels", "The key target names their type.")
    return files.target


def _tensor(array: np.ndarray) -> Any:
    """Return other node and edge data as they are, but unsigned numbers, which torch does not know, as int64."""
    import torch

    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind == "u" else np.ascontiguousarray(array))
