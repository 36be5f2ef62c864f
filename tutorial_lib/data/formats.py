"""Described graphs: ``graph.yaml``, DGL's chunked format (``metadata.json``), and files of ``dgl.save_graphs``."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tutorial_lib.data.own_edges import EdgeFile, read_edges
from tutorial_lib.data.own_graph import GraphFiles
from tutorial_lib.data.own_nodes import Nodes, read_nodes
from tutorial_lib.data.tables import read_array, read_table
from tutorial_lib.errors import InputError

ENDINGS = {"csv": "", "numpy": ".npy", "parquet": ".parquet"}
MAGIC = bytes.fromhex("3fa1b446f04f2edd")  # first bytes of a file of dgl.save_graphs
Count = Annotated[int, Field(ge=0, le=2**48)]
Key = Annotated[str, StringConstraints(pattern="^[^:]+:[^:]+:[^:]+$")]  # source:relation:destination


class Description(BaseModel):
    """graph.yaml. A type of nodes is a table, a folder or a number of nodes. A relation is a file of edges."""

    model_config = ConfigDict(extra="forbid")
    nodes: dict[str, Count | str] = {}
    edges: dict[Key, str]
    target: str | None = None


class Chunks(BaseModel):
    """The files of one thing in metadata.json."""

    format: dict[str, str]
    data: list[str]


class Metadata(BaseModel):
    """metadata.json. The sizes are those of each chunk, or of each type."""

    node_type: list[str]
    num_nodes_per_chunk: list[list[Count]] = []
    num_nodes_per_type: list[Count] = []
    edge_type: list[Key]
    num_edges_per_chunk: list[list[Count]] = []
    num_edges_per_type: list[Count] = []
    edges: dict[str, Chunks]
    node_data: dict[str, dict[str, Chunks]] = {}
    edge_data: dict[str, dict[str, Chunks]] = {}
    target: str | None = None


def _parse(path: Path, kind: type[BaseModel]) -> Any:
    try:
        text = path.read_text()
        return kind.model_validate(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text))
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
    except RecursionError:
        problem = "it is nested too deeply"
    except (ValueError, yaml.YAMLError) as error:  # with the line
        problem = " ".join(str(error).split())
    raise InputError(f"{path}: {problem}", "docs/own-graph.md describes the format.")


def _file(path: Path, name: str) -> Path:
    """Return a file or folder that a description names, relative to its folder."""
    found = path.parent / name
    with contextlib.suppress(OSError):  # a name that is too long
        if found.is_dir() or found.is_file():
            return found
    text = f"{path}: {name[:80]}: no such file or folder in {path.parent}"
    raise InputError(text, "Names are relative to that folder.")


def read_yaml(path: Path) -> GraphFiles:
    """Read the graph that a ``graph.yaml`` describes."""
    found = _parse(path, Description)
    edges = {tuple(key.split(":")): [read_edges(_file(path, name))] for key, name in found.edges.items()}
    nodes = {}
    for kind in dict.fromkeys([*found.nodes, *(end for relation in edges for end in relation[::2])]):
        given = found.nodes.get(kind)
        if isinstance(given, str):
            nodes[kind] = read_nodes(_file(path, given))
        else:
            nodes[kind] = Nodes(path, None if given is None else range(given))
    return GraphFiles(path.parent, nodes, edges, target=found.target)


def read_metadata(path: Path) -> GraphFiles:
    """Read a graph in DGL's chunked format."""
    found = _parse(path, Metadata)
    counts = {}
    for of, kinds in (("node", found.node_type), ("edge", found.edge_type)):
        sizes = getattr(found, f"num_{of}s_per_type") or [*map(sum, getattr(found, f"num_{of}s_per_chunk"))]
        if len(sizes) != len(kinds):
            raise InputError(f"{path}: num_{of}s_per_chunk is for {len(sizes)} types, {of}_type names {len(kinds)}")
        if strange := getattr(found, f"{of}_data").keys() - kinds:
            raise InputError(f"{path}: {of}_data has {min(strange)}, and {of}_type is {', '.join(kinds)}")
        counts[of] = dict(zip(kinds, sizes, strict=True))
    nodes = {}
    for kind, count in counts["node"].items():
        arrays = {name: _array(path, chunks, count) for name, chunks in found.node_data.get(kind, {}).items()}
        nodes[kind] = Nodes(path, range(count), arrays)
    edges, edge_data = {}, {}
    for key, count in counts["edge"].items():
        relation = tuple(key.split(":"))
        if key not in found.edges or not {*relation[::2]} <= {*nodes}:
            raise InputError(f"{path}: edges has no {key}, or node_type not both of its types")
        files, delimiter = _chunks(path, found.edges[key])
        edges[relation] = [read_edges(file, delimiter) for file in files]
        if (read := sum(len(file.ends[0][1]) for file in edges[relation])) != count:
            raise InputError(f"{path}: {key} has {count} edges, and its files {read}")
        data = found.edge_data.get(key, {})
        edge_data[relation] = {name: _array(path, chunks, count) for name, chunks in data.items()}
    return GraphFiles(path.parent, nodes, edges, edge_data, found.target)


def _chunks(path: Path, chunks: Chunks) -> tuple[list[Path], str | None]:
    """Return the files, and the delimiter of CSV files."""
    if (kind := chunks.format.get("name", "")) not in ENDINGS:
        raise InputError(f"{path}: format {kind!r} is not known", f"Known: {', '.join(ENDINGS)}.")
    files = [_file(path, name) for name in chunks.data]
    if other := [file for file in files if not file.name.endswith(ENDINGS[kind])]:
        raise InputError(f"{path}: {other[0].name} should be {kind}", f"Name it with {ENDINGS[kind]} at the end.")
    return files, chunks.format.get("delimiter", ",") if kind == "csv" else None


def _array(path: Path, chunks: Chunks, count: int) -> np.ndarray:
    """Return the rows of all chunks, of shape (count,) or (count, width)."""
    files, delimiter = _chunks(path, chunks)
    found = [read_array(file) if file.suffix == ".npy" else _numbers(file, delimiter) for file in files]
    if sum(map(len, found)) != count or len({array.shape[1:] for array in found}) != 1:
        listed = ", ".join(f"{file.name} {array.shape}" for file, array in zip(files, found, strict=True))
        raise InputError(f"{path}: expected {count} rows alike, found {listed or 'no file'}")
    return found[0] if len(found) == 1 else np.concatenate(found)


def _numbers(path: Path, delimiter: str | None) -> np.ndarray:
    """Return a table of numbers, (n,) if it has one column. A parquet file may have one column of lists."""
    values = read_table(path, delimiter=delimiter).to_pandas().to_numpy()
    values = values[:, 0] if values.shape[1] == 1 else values
    with contextlib.suppress(ValueError):  # lists of different lengths
        values = np.stack(values) if values.dtype == object else values
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path}: has {values.dtype}, expected numbers")
    return values


def read_dgl_file(path: Path) -> GraphFiles:
    """Read a file of ``dgl.save_graphs`` with one graph, its node data and its edge data."""
    import dgl
    import pyarrow as pa

    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            remedy = "Tables belong into a folder, as edges.csv and nodes.csv: docs/own-graph.md describes them."
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
        nodes[kind] = Nodes(path, range(graph.num_nodes(kind)), _arrays(graph.nodes[kind].data))
    edges, edge_data = {}, {}
    for relation in graph.canonical_etypes:
        ends = [pa.chunked_array([end.numpy()]) for end in graph.edges(order="eid", etype=relation)]
        edges[relation] = [EdgeFile(path, [*zip(("src", "dst"), ends, strict=True)])]
        edge_data[relation] = _arrays(graph.edges[relation].data)
    return GraphFiles(path, nodes, edges, edge_data)


def _load_in_child(path: Path) -> None:
    """Load the file in a forked process first, because DGL's C++ code aborts the process at some damaged files."""
    import dgl

    def load() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        thread = threading.Thread(target=dgl.load_graphs, args=[str(path)])  # in the first thread, OpenMP would hang
        thread.start()
        thread.join()

    child = multiprocessing.get_context("fork").Process(target=load)
    child.start()
    child.join()
    if child.exitcode != 0:
        raise InputError(f"{path}: damaged, or too large for the memory", "Save it again.")


def _arrays(data: Any) -> dict[str, np.ndarray]:
    import torch

    return {name: (value.float() if value.dtype == torch.bfloat16 else value).numpy() for name, value in data.items()}
