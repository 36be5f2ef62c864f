"""Load the user's graph from a folder or a file. ``docs/own-graph.md`` describes the formats."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutorial_lib.data.base import EDGE, MASKS, NODE, Dataset, Edges, make_graph, node_data
from tutorial_lib.data.formats import GraphFiles, read_dgl_file, read_folder
from tutorial_lib.data.memory import not_enough_memory
from tutorial_lib.data.own_nodes import FIELDS, SPLIT
from tutorial_lib.errors import InputError


def load_own(path: Path, *, seed: int = 0, both_ways: bool = False) -> Dataset:
    """Read the user's graph. ``both_ways`` adds the reverse of each edge, and ``seed`` is for a random split."""
    path = path.expanduser()
    if not path.is_dir() and not path.is_file():
        raise InputError(f"{path} is neither a folder nor a file", "docs/own-graph.md describes the files.")
    try:
        files = read_folder(path) if path.is_dir() else read_dgl_file(path)
        _check_types(path, files)
        counts = {kind: len(nodes.ids) for kind, nodes in files.nodes.items()}
        info = {"file": str(path), **_oddities(files.edges, counts), "directed": not both_ways}
        if both_ways:
            files.edge_data, files.edges = {}, _add_reverse_edges(files.edges, counts)
        graph, target = make_graph(files.edges, counts), _target(path, files)
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
            data = node_data(of.arrays.get("feat"), *((label, split) if kind == target else (None, None)))
            others = {key: torch.from_numpy(array) for key, array in of.arrays.items() if key not in (*FIELDS, SPLIT)}
            graph.nodes[kind].data.update(data | others)
        for relation, arrays in files.edge_data.items():
            graph.edges[relation].data.update({name: torch.from_numpy(array) for name, array in arrays.items()})
        return Dataset(str(path), graph, num_classes, info, None if isinstance(nodes.ids, range) else nodes.ids)
    except MemoryError:
        raise not_enough_memory(path) from None


def _check_types(path: Path, files: GraphFiles) -> None:
    """Check that DGL, its files and torch's ModuleDict accept the names of the types. A single type gets DGL's name."""
    if len(files.nodes) == len(files.edges) == 1:
        (nodes,), (edges,) = files.nodes.values(), files.edges.values()
        files.nodes, files.edges = {NODE: nodes}, {EDGE: edges}
        files.edge_data = {EDGE: next(iter(files.edge_data.values()), {})}
        files.target = NODE if files.target else None
    for name in {*files.nodes, *(name for _, name, _ in files.edges)}:
        if not re.fullmatch(r"[\w-]+", name) or hasattr(torch.nn.ModuleDict, name):
            text = f"{path}: a type cannot be called {name!r}"
            raise InputError(text, "Use letters, digits, - and _, and no word that torch uses, like items or type.")


def _oddities(edges: Edges, counts: dict[str, int]) -> dict[str, Any]:
    found: dict[str, dict[str, int]] = {"edges_in_the_file": {}, "duplicate_edges": {}, "self_loops": {}}
    touched = {kind: np.zeros(n, bool) for kind, n in counts.items()}
    for (start, name, end), (src, dst) in edges.items():
        keys = src * counts[end]
        keys += dst
        keys.sort()
        key = f"{start}:{name}:{end}"
        found["edges_in_the_file"][key] = len(src)
        found["duplicate_edges"][key] = int((keys[1:] == keys[:-1]).sum())
        found["self_loops"][key] = int((src == dst).sum()) if start == end else 0
        touched[start][src] = touched[end][dst] = True
    found["isolated_nodes"] = {kind: int(len(seen) - seen.sum()) for kind, seen in touched.items()}
    return found if [*edges] != [EDGE] else {key: next(iter(of.values())) for key, of in found.items()}


def _add_reverse_edges(edges: Edges, counts: dict[str, int]) -> Edges:
    if [*edges] != [EDGE]:
        return edges | {(end, f"rev-{name}", start): (dst, src) for (start, name, end), (src, dst) in edges.items()}
    (src, dst), n = edges[EDGE], counts[NODE]
    keys = np.unique(np.concatenate([src * n + dst, dst * n + src]))
    return {EDGE: (keys // n, keys % n)}


def _target(path: Path, files: GraphFiles) -> str:
    labeled = [kind for kind, nodes in files.nodes.items() if "label" in nodes.arrays]
    if files.target is None and len(labeled) < 2:
        return (labeled or [*files.nodes])[0]
    if files.target not in labeled:
        text = f"target is {files.target}, expected one type of nodes with labels: {', '.join(labeled) or 'none'}"
        raise InputError(
            f"{path}: {text}", "Name the type to classify as target in graph.yaml, or leave the labels of one type."
        )
    return files.target
