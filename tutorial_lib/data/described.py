"""Folders with a description of what is where: ``graph.yaml``, ours, and ``metadata.json``, DGL's chunked format.

docs/own-graph.md shows both.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tutorial_lib.data.ends import Names, read_ends
from tutorial_lib.data.nodes import Nodes, nodes_at
from tutorial_lib.data.own import Parts
from tutorial_lib.data.tables import array_in, pieces
from tutorial_lib.errors import InputError

HELP = "docs/own-graph.md shows what belongs there."
ENDINGS = {"csv": "", "numpy": ".npy", "parquet": ".parquet"}
Count = Annotated[int, Field(ge=0, le=2**48)]
Key = Annotated[str, StringConstraints(pattern="^[^:]+:[^:]+:[^:]+$")]  # source:relation:destination


class Description(BaseModel):
    """graph.yaml: a type of nodes is a table, a folder or a number of nodes; a relation is a file of edges."""

    model_config = ConfigDict(extra="forbid")
    nodes: dict[str, Count | str] = {}
    edges: dict[Key, str]
    target: str | None = None


class Files(BaseModel):
    """Of metadata.json: the chunks of one thing."""

    format: dict[str, str]
    data: list[str]


class Metadata(BaseModel):
    """metadata.json; sizes are those of each chunk, or of each type."""

    node_type: list[str]
    num_nodes_per_chunk: list[list[Count]] = []
    num_nodes_per_type: list[Count] = []
    edge_type: list[Key]
    num_edges_per_chunk: list[list[Count]] = []
    num_edges_per_type: list[Count] = []
    edges: dict[str, Files]
    node_data: dict[str, dict[str, Files]] = {}
    edge_data: dict[str, dict[str, Files]] = {}
    target: str | None = None


def _described(path: Path, kind: type[BaseModel]) -> Any:
    try:
        text = path.read_text()
        return kind.model_validate(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text))
    except json.JSONDecodeError as error:
        problem = f"{path}, line {error.lineno}: {error.msg}"
    except yaml.MarkedYAMLError as error:
        problem = f"{path}, line {error.problem_mark.line + 1 if error.problem_mark else 1}: {error.problem}"
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{path}: {'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
    except RecursionError:
        problem = f"{path}: it is nested too deeply"
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = f"{path}: {error}"
    raise InputError(problem, HELP)


def _file(path: Path, name: str) -> Path:
    """A file that ``path`` names, from the folder of ``path``."""
    found = path.parent / name
    try:
        there = found.is_dir() or found.is_file()
    except OSError:  # a name that is too long
        there = False
    if not there:
        text = f"{path}: {name[:80]}: no such file or folder in {path.parent}"
        raise InputError(text, "Names are relative to that folder.")
    return found


def read_yaml(path: Path) -> Parts:
    """What a ``graph.yaml`` describes."""
    found = _described(path, Description)
    relations = {tuple(key.split(":")): _file(path, name) for key, name in found.edges.items()}
    nodes = {}
    for kind in dict.fromkeys([*found.nodes, *(end for start, _, end in relations for end in (start, end))]):
        given = found.nodes.get(kind)
        if given is None or isinstance(given, int):
            nodes[kind] = Nodes(path, Names(None if given is None else range(given)))
        else:
            nodes[kind] = nodes_at(_file(path, given))
    edges = {}
    for (start, name, end), file in relations.items():
        edges[start, name, end] = read_ends([file], nodes[start].names, nodes[end].names)
    if unused := [kind for kind, of in nodes.items() if of.names.ids is None and not of.names.given]:
        raise InputError(f"{path}: nothing says which nodes there are of type {unused[0]}", HELP)
    return Parts(path.parent, nodes, edges, target=found.target)


def read_metadata(path: Path) -> Parts:
    """A graph in DGL's chunked format."""
    found = _described(path, Metadata)
    known = {"node": found.node_type, "edge": found.edge_type}
    counts = {}
    for of, kinds in known.items():
        sizes = getattr(found, f"num_{of}s_per_type") or [*map(sum, getattr(found, f"num_{of}s_per_chunk"))]
        if len(sizes) != len(kinds):
            raise InputError(f"{path}: num_{of}s_per_chunk is for {len(sizes)} types, {of}_type names {len(kinds)}")
        if strange := getattr(found, f"{of}_data").keys() - kinds:
            raise InputError(f"{path}: {of}_data has {min(strange)}, and {of}_type is {', '.join(kinds)}")
        counts[of] = dict(zip(kinds, sizes, strict=True))
    nodes = {}
    for kind, count in counts["node"].items():
        arrays = {name: _array(path, files, count) for name, files in found.node_data.get(kind, {}).items()}
        nodes[kind] = Nodes(path, Names(range(count)), arrays)
    edges, edge_data = {}, {}
    for key, count in counts["edge"].items():
        start, name, end = key.split(":")
        if key not in found.edges or not {start, end} <= {*nodes}:
            raise InputError(f"{path}: edges has no {key}, or node_type not both of its types")
        paths, delimiter = _chunks(path, found.edges[key])
        edges[start, name, end] = read_ends(paths, nodes[start].names, nodes[end].names, delimiter)
        if (read := sum(map(len, edges[start, name, end][0]))) != count:
            raise InputError(f"{path}: {key} has {count} edges, and its files {read}")
        data = found.edge_data.get(key, {})
        edge_data[start, name, end] = {of: _array(path, files, count) for of, files in data.items()}
    return Parts(path.parent, nodes, edges, edge_data, found.target)


def _chunks(path: Path, files: Files) -> tuple[list[Path], str | None]:
    """The files, and for texts what is between two columns."""
    if (kind := files.format.get("name", "")) not in ENDINGS:
        raise InputError(f"{path}: format {kind!r} is not known", f"Known: {', '.join(ENDINGS)}.")
    paths = [_file(path, name) for name in files.data]
    if other := [chunk for chunk in paths if not chunk.name.endswith(ENDINGS[kind])]:
        raise InputError(f"{path}: {other[0].name} should be {kind}", f"Name it with {ENDINGS[kind]} at the end.")
    return paths, files.format.get("delimiter", ",") if kind == "csv" else None


def _array(path: Path, files: Files, count: int) -> np.ndarray:
    """All chunks of one thing: (count,) or (count, width)."""
    paths, delimiter = _chunks(path, files)
    found = [array_in(chunk) if chunk.suffix == ".npy" else _columns(chunk, delimiter) for chunk in paths]
    if sum(map(len, found)) != count or len({chunk.shape[1:] for chunk in found}) != 1:
        listed = ", ".join(f"{chunk.name} {array.shape}" for chunk, array in zip(paths, found, strict=True))
        raise InputError(f"{path}: expected {count} rows alike, found {listed or 'no file'}")
    return found[0] if len(found) == 1 else np.concatenate(found)


def _columns(path: Path, delimiter: str | None) -> np.ndarray:
    """A table of numbers, (n,) if it has one column; of a parquet file, one column of lists as well."""
    import pyarrow as pa

    values = pa.Table.from_batches(pieces(path, delimiter=delimiter)).to_pandas().to_numpy()
    values = values[:, 0] if values.shape[1] == 1 else values
    with contextlib.suppress(ValueError):  # lists of different lengths
        values = np.stack(values) if values.dtype == object else values
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path}: has {values.dtype}, expected numbers")
    return values
