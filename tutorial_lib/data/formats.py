"""The files of a user's graph, which are a folder of tables, ``graph.yaml``, or a file of ``dgl.save_graphs``."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import dgl
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tutorial_lib.data.base import EDGE, NODE, Edges, Relation
from tutorial_lib.data.memory import free_memory, not_enough_memory
from tutorial_lib.data.own_nodes import Nodes, read_nodes
from tutorial_lib.data.tables import TABLES, columns_of, one_of, place_in, read_array, read_table, reading
from tutorial_lib.errors import InputError

SOURCES, DESTINATIONS = ("src", "source", "from", "u"), ("dst", "destination", "target", "to", "v")
SPARSE_IDS = 1000  # if an ID exceeds this times the number of sources and destinations, IDs are not consecutive
NODE_BYTES = 24  # minimum memory of a node for its label, its masks, and a flag for nodes with an edge


class Description(BaseModel):
    """Content of graph.yaml. A type of nodes is a table, a folder or a count, and a relation is a file of edges."""

    model_config = ConfigDict(extra="forbid")
    nodes: dict[str, Annotated[int, Field(ge=0, le=2**48)] | str] = {}
    edges: dict[Annotated[str, StringConstraints(pattern="^[^:]+:[^:]+:[^:]+$")], str] = Field(min_length=1)
    target: str | None = None


@dataclass
class GraphFiles:
    """The content of the files of a graph. The nodes of each type are numbered from 0 on."""

    nodes: dict[str, Nodes]
    edges: Edges
    edge_data: dict[Relation, dict[str, np.ndarray]] = field(default_factory=dict)
    target: str | None = None  # type of the nodes with labels, or None for the only type that has labels


def _describe(folder: Path) -> Description:
    if (path := folder / "graph.yaml").is_file():
        with reading(path, "docs/own-graph.md describes graph.yaml."):
            return Description.model_validate(yaml.safe_load(path.read_text()))
    if (edges := one_of(folder, "edges", endings := (*TABLES, ".npy"))) is None:
        text = f"{folder} has none of {', '.join(f'edges{ending}' for ending in endings)} and graph.yaml"
        remedy = "docs/own-graph.md describes the files. Save a graph in chunks (metadata.json) with dgl.save_graphs."
        raise InputError(text, remedy)
    return Description(nodes={NODE: "."}, edges={":".join(EDGE): edges.name})


def read_folder(folder: Path) -> GraphFiles:
    """Read a folder with tables and arrays of one type of nodes, or with a ``graph.yaml``."""
    about = _describe(folder)
    paths = {tuple(key.split(":")): _find(folder, name) for key, name in about.edges.items()}
    tables = {relation: read_edges(path) for relation, path in paths.items()}
    nodes = {}
    for kind in dict.fromkeys([*about.nodes, *(end for relation in paths for end in relation[::2])]):
        given = about.nodes.get(kind)
        listed = range(given) if isinstance(given, int) else None
        of = nodes[kind] = read_nodes(_find(folder, given)) if isinstance(given, str) else Nodes(folder, listed)
        if of.ids is None:
            ends = [pair for relation in paths for pair in zip(relation[::2], tables[relation].values(), strict=True)]
            of.ids = ids_in(folder, kind, [column for end, column in ends if end == kind])
    if NODE_BYTES * sum(len(of.ids) for of in nodes.values()) > free_memory():
        raise not_enough_memory(folder)
    edges = {}
    for key, path in paths.items():  # this releases the columns of a relation after their numbering
        edges[key] = number_edges(path, tables.pop(key), nodes[key[0]].ids, nodes[key[2]].ids)
    return GraphFiles(nodes, edges, target=about.target)


def _find(folder: Path, name: str) -> Path:
    if not (os.path.isfile(folder / name) or os.path.isdir(folder / name)):  # pathlib's methods raise at a long name
        raise InputError(f"{folder}/graph.yaml: {name[:80]}: no such file or folder in {folder}", "Correct the name.")
    return folder / name


def read_edges(path: Path) -> dict[str, pa.Array]:
    """Return the sources and the destinations: int64, or dictionary-encoded texts."""
    if path.suffix == ".npy":
        array = read_array(path)
        if array.ndim != 2 or 2 not in array.shape or array.size == 0 or array.dtype.kind not in "iu":
            raise InputError(f"{path} is {array.dtype} of shape {array.shape}, expected whole numbers (E, 2) or (2, E)")
        ends = zip(("src", "dst"), array.T if array.shape[1] == 2 else array, strict=True)
        return {name: pa.array(np.ascontiguousarray(end, np.int64)) for name, end in ends}
    names = columns_of(path)
    found = [next((name for name in names if name.lower() in of), "") for of in (SOURCES, DESTINATIONS)]
    if "" in found:
        found, without_header = names, all(name.lstrip("-").isdigit() for name in names)
        if len(names) != 2 or (without_header and path.suffix != ".parquet"):
            remedy = "The first line names the columns. Name the two that matter src and dst."
            raise InputError(f"{path} has the columns {', '.join(names)}", remedy)
    return read_table(path, found, found)


def ids_in(folder: Path, kind: str, columns: list[pa.Array]) -> Any:
    """Return the IDs of the nodes in edges as a range, or sorted if they are not whole numbers from 0 on."""
    if not columns:
        raise InputError(f"{folder}: no file names the nodes of type {kind}", "Write nodes.csv, with a column id.")
    whole = all(pa.types.is_integer(column.type) for column in columns)
    if whole and min(pc.min(column).as_py() for column in columns) == 0:
        high = max(pc.max(column).as_py() for column in columns)
        if high > SPARSE_IDS * sum(map(len, columns)):
            text = f"{folder}: IDs run from 0 to {high}, and nearly all of these nodes have no edge"
            raise InputError(text, "List the nodes that there are in nodes.csv, in a column id.")
        return range(high + 1)
    values = [column.dictionary if pa.types.is_dictionary(column.type) else pc.unique(column) for column in columns]
    ids = pc.unique(pa.concat_arrays([each.cast(pa.int64() if whole else pa.string()) for each in values]))
    return ids.take(pc.sort_indices(ids))


def number_edges(path: Path, columns: dict[str, pa.Array], *ids: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the node numbers of sources and destinations, given the IDs of both types: int64 of shape (E,)."""
    found = []
    for (name, column), known in zip(columns.items(), ids, strict=True):
        found.append(_numbers_of(column, known))
        if (unknown := (found[-1] < 0) | (found[-1] >= len(known))).any():
            row = int(unknown.argmax())
            listed = f", 0 to {len(known) - 1}" if isinstance(known, range) else ""
            text = f"{place_in(path, row)}: {name} {str(column[row])[:80]} is not among the nodes{listed}"
            raise InputError(text, "Remove this row, or list the node in nodes.csv, in a column id.")
    return found[0], found[1]


def _numbers_of(column: pa.Array, ids: Any) -> np.ndarray:
    if isinstance(ids, range):
        if pa.types.is_integer(column.type):
            return column.to_numpy()
        ids = pa.array(np.arange(len(ids)))
    column = column.dictionary_encode()
    values = column.dictionary
    if values.type != ids.type:
        values, ids = values.cast(pa.string()), ids.cast(pa.string())
    numbers = pc.index_in(values, value_set=ids).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers[column.indices.to_numpy()]


def read_dgl_file(path: Path) -> GraphFiles:
    """Read a file of ``dgl.save_graphs`` with one graph, its node data and its edge data."""
    child = multiprocessing.get_context("fork").Process(target=_try_to_load, args=[path])
    child.start()
    child.join()
    if child.exitcode != 0:
        remedy = "Save one graph with dgl.save_graphs. Tables belong into a folder, as edges.csv and nodes.csv."
        raise InputError(f"{path}: no file with one DGL graph, damaged, or too large for the memory", remedy)
    graph = dgl.load_graphs(str(path))[0][0].long()
    nodes = {kind: Nodes(path, range(graph.num_nodes(kind)), _arrays(graph.nodes[kind].data)) for kind in graph.ntypes}
    ends = {relation: graph.edges(order="eid", etype=relation) for relation in graph.canonical_etypes}
    edges = {relation: (src.numpy(), dst.numpy()) for relation, (src, dst) in ends.items()}
    return GraphFiles(nodes, edges, {relation: _arrays(graph.edges[relation].data) for relation in edges})


def _try_to_load(path: Path) -> None:
    """Load a file in a forked process, because DGL's C++ code aborts the process at some damaged files."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with ThreadPoolExecutor(1) as pool:  # in the first thread, OpenMP would hang
        (_,), _ = pool.submit(dgl.load_graphs, str(path)).result()


def _arrays(data: Any) -> dict[str, np.ndarray]:
    kinds = {torch.bfloat16: torch.float32, torch.uint8: torch.int64}  # numpy has no bfloat16
    return {name: value.to(kinds.get(value.dtype, value.dtype)).numpy() for name, value in data.items()}
