"""Load the user's graph: a folder of tables, an .npz file, or one of ``dgl.save_graphs``. See docs/own-graph.md."""

import io
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import dgl
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import yaml
from numpy.lib.npyio import NpzFile
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from scipy import sparse

from tutorial_lib.data import tables
from tutorial_lib.data.base import EDGE, MASKS, NODE, Dataset, Edges, Relation, make_graph, node_data
from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject

SOURCES, DESTINATIONS = ("src", "source", "from", "u"), ("dst", "destination", "target", "to", "v")
SPARSE_IDS = 1000  # if the largest ID is more than this many times the number of endpoints, list the nodes


class Description(BaseModel):
    """Content of graph.yaml. A type of nodes is a table, a folder or a count, and a relation is a file of edges."""

    model_config = ConfigDict(extra="forbid")
    nodes: dict[str, Annotated[int, Field(ge=0, lt=2**31)] | str] = {}
    edges: dict[Annotated[str, StringConstraints(pattern="^[^:]+:[^:]+:[^:]+$")], str] = Field(min_length=1)
    target: str | None = None


@dataclass
class GraphFiles:
    """The content of the files of a graph. The nodes of each type are numbered from 0 on."""

    nodes: dict[str, tables.NodeTable]
    edges: Edges
    edge_data: dict[Relation, dict[str, np.ndarray]] = field(default_factory=dict)
    target: str | None = None  # type of the nodes with labels, or None for the only type that has labels


def load_user_graph(path: Path, *, seed: int = 0, add_reverse_edges: bool = False) -> Dataset:
    """Read the user's graph. ``add_reverse_edges`` adds each reverse edge, and ``seed`` is for a random split."""
    path = path.expanduser()
    if path.is_dir():
        files = _read_folder(path)
    elif not path.is_file():
        raise InputError(f"{path} is neither a folder nor a file", "docs/own-graph.md describes the files.")
    elif path.suffix in (".npz", ".zip"):
        files = _read_npz(path)
        add_reverse_edges = True
    else:
        files = _read_dgl_file(path)
    target = _check_types(path, files)
    counts = {ntype: len(nodes.ids) for ntype, nodes in files.nodes.items()}
    if add_reverse_edges:
        files.edges, files.edge_data = _add_reverse_edges(files.edges, counts), {}
    graph = make_graph(files.edges, counts)
    nodes = files.nodes[target]
    num_classes = 0
    info: JsonObject = {"file": str(path), "directed": not add_reverse_edges}
    label, split = nodes.labels(), nodes.split(seed, info)
    class_names = nodes.class_names
    if label is not None and split is not None:
        num_classes = max(len(class_names), int(label.max()) + 1, 1)
        split[label < 0] = len(MASKS)
        unseen = np.setdiff1d(label[label >= 0], label[split == 0])
        info |= {"unlabeled_nodes": int((label < 0).sum())} | ({"class_names": class_names} if class_names else {})
        info["classes_without_a_training_node"] = [class_names[k] if class_names else int(k) for k in unseen]
        label[label < 0] = 0
    for ntype, table in files.nodes.items():
        data = node_data(table.arrays.get("feat"), *((label, split) if ntype == target else (None, None)))
        extra = [key for key in table.arrays if key not in (*tables.FIELDS, tables.SPLIT)]
        graph.nodes[ntype].data.update(data | {key: torch.from_numpy(table.arrays[key]) for key in extra})
    for relation, arrays in files.edge_data.items():
        graph.edges[relation].data.update({name: torch.from_numpy(array) for name, array in arrays.items()})
    return Dataset(str(path), graph, num_classes, info, None if isinstance(nodes.ids, range) else nodes.ids)


def _check_types(path: Path, files: GraphFiles) -> str:
    """Check the names of the types, give a single type DGL's name in ``files``, and return the type with labels."""
    if len(files.nodes) == len(files.edges) == 1:
        files.nodes = {NODE: next(iter(files.nodes.values()))}
        files.edges = {EDGE: next(iter(files.edges.values()))}
        files.edge_data = {EDGE: next(iter(files.edge_data.values()), {})}
        files.target = files.target and NODE
    for name in {*files.nodes, *(name for _, name, _ in files.edges)}:  # also names of files and of torch modules
        if not re.fullmatch(r"[\w-]+", name) or hasattr(torch.nn.ModuleDict, name):
            text = f"{path}: a type cannot be called {name!r}"
            raise InputError(text, "Use letters, digits, - and _, and no attribute of torch modules, such as type.")
    labeled = [ntype for ntype, nodes in files.nodes.items() if "label" in nodes.arrays]
    if files.target is None and len(labeled) < 2:
        return (labeled or [*files.nodes])[0]
    if files.target not in labeled:
        text = f"target is {files.target}, expected one type of nodes with labels: {', '.join(labeled) or 'none'}"
        remedy = "Set target in graph.yaml to the type to classify, or keep the labels of only one type."
        raise InputError(f"{path}: {text}", remedy)
    return files.target


def _add_reverse_edges(edges: Edges, counts: dict[str, int]) -> Edges:
    if [*edges] != [EDGE]:
        return edges | {(end, f"rev-{name}", start): (dst, src) for (start, name, end), (src, dst) in edges.items()}
    (src, dst), n = edges[EDGE], counts[NODE]
    keys = np.unique(np.concatenate([src * n + dst, dst * n + src]))
    return {EDGE: (keys // n, keys % n)}


def _read_folder(folder: Path) -> GraphFiles:
    """Read a folder with tables and arrays of one type of nodes, or with a ``graph.yaml``."""
    if (path := folder / "graph.yaml").is_file():
        with tables.input_error(path, "docs/own-graph.md describes graph.yaml."):
            description = Description.model_validate(yaml.safe_load(path.read_text()))
    elif (file := tables.find_one_file(folder, "edges", endings := (*tables.TABLES, ".npy"))) is not None:
        description = Description(nodes={NODE: "."}, edges={":".join(EDGE): file.name})
    else:
        text = f"{folder} has none of {', '.join(f'edges{ending}' for ending in endings)} and graph.yaml"
        remedy = "docs/own-graph.md describes the files. Save a graph in chunks (metadata.json) with dgl.save_graphs."
        raise InputError(text, remedy)
    paths = {tuple(key.split(":")): _find(folder, name) for key, name in description.edges.items()}
    columns = {relation: _read_edges(path) for relation, path in paths.items()}
    nodes = {}
    for ntype in dict.fromkeys([*description.nodes, *(name for relation in paths for name in relation[::2])]):
        entry = description.nodes.get(ntype)
        ids = range(entry) if isinstance(entry, int) else None
        table = tables.read_nodes(_find(folder, entry)) if isinstance(entry, str) else tables.NodeTable(folder, ids)
        nodes[ntype] = table
        if table.ids is None:
            pairs = [pair for relation in paths for pair in zip(relation[::2], columns[relation].values(), strict=True)]
            table.ids = _ids_in(folder, ntype, [column for name, column in pairs if name == ntype])
    edges = {}
    for key, path in paths.items():  # this releases the columns of a relation after their numbering
        edges[key] = _number_edges(path, columns.pop(key), nodes[key[0]].ids, nodes[key[2]].ids)
    return GraphFiles(nodes, edges, target=description.target)


def _find(folder: Path, name: str) -> Path:
    if not (os.path.isfile(folder / name) or os.path.isdir(folder / name)):  # pathlib's methods raise at a long name
        raise InputError(f"{folder}/graph.yaml: {name[:80]}: no such file or folder in {folder}", "Correct the name.")
    return folder / name


def _read_edges(path: Path) -> dict[str, pa.Array]:
    """Return the sources and the destinations: int64, or dictionary-encoded strings."""
    if path.suffix == ".npy":
        array = tables.read_array(path)
        if array.ndim != 2 or 2 not in array.shape or array.size == 0 or array.dtype.kind not in "iu":
            raise InputError(f"{path} is {array.dtype} of shape {array.shape}, expected integers (E, 2) or (2, E)")
        src, dst = np.ascontiguousarray(array.T if array.shape[1] == 2 else array, np.int64)
        return {"src": pa.array(src), "dst": pa.array(dst)}
    names = tables.read_column_names(path)
    columns = [next((name for name in names if name.lower() in aliases), "") for aliases in (SOURCES, DESTINATIONS)]
    if "" in columns:
        columns, without_header = names, all(name.lstrip("-").isdigit() for name in names)
        if len(names) != 2 or (without_header and path.suffix != ".parquet"):
            remedy = "Name the columns of sources and destinations src and dst in the first line."
            raise InputError(f"{path} has no columns src and dst, but {', '.join(names)}", remedy)
    return tables.read_table(path, columns, columns)


def _ids_in(folder: Path, ntype: str, columns: list[pa.Array]) -> tables.Ids:
    """Return the node IDs that edges contain, as a range if they are integers from 0 on, else as a sorted array."""
    if not columns:
        raise InputError(f"{folder}: no file names the nodes of type {ntype}", "Write nodes.csv, with a column id.")
    are_integers = all(pa.types.is_integer(column.type) for column in columns)
    if are_integers and min(pc.min(column).as_py() for column in columns) == 0:
        largest = max(pc.max(column).as_py() for column in columns)
        if largest > SPARSE_IDS * sum(map(len, columns)):
            text = f"{folder}: IDs run from 0 to {largest}, and nearly all of these nodes have no edge"
            raise InputError(text, "List the existing nodes in nodes.csv, in a column named id.")
        return range(largest + 1)
    values = [column.dictionary if pa.types.is_dictionary(column.type) else pc.unique(column) for column in columns]
    id_type = pa.int64() if are_integers else pa.string()
    return pc.unique(pa.concat_arrays([array.cast(id_type) for array in values])).sort()


def _number_edges(path: Path, columns: dict[str, pa.Array], *ids: tables.Ids) -> tuple[np.ndarray, np.ndarray]:
    """Return the node numbers of sources and destinations, given the IDs of both types: int64 of shape (E,)."""
    endpoints = []
    for (name, column), node_ids in zip(columns.items(), ids, strict=True):
        endpoints.append(numbers := _numbers_of(column, node_ids))
        if (unknown := (numbers < 0) | (numbers >= len(node_ids))).any():
            row = int(unknown.argmax())
            id_range = f", 0 to {len(node_ids) - 1}" if isinstance(node_ids, range) else ""
            text = f"{tables.row_name(path, row)}: {name} {str(column[row])[:80]} is not among the nodes{id_range}"
            raise InputError(text, "Remove this row, or list the node in nodes.csv, in a column id.")
    return endpoints[0], endpoints[1]


def _numbers_of(column: pa.Array, ids: tables.Ids) -> np.ndarray:
    if isinstance(ids, range) and pa.types.is_integer(column.type):
        return column.to_numpy()
    node_ids = pa.array(np.arange(len(ids))) if isinstance(ids, range) else ids
    column = column.dictionary_encode()
    values = column.dictionary
    if values.type != node_ids.type:
        values, node_ids = values.cast(pa.string()), node_ids.cast(pa.string())
    numbers = pc.index_in(values, value_set=node_ids).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers[column.indices.to_numpy()]


def _read_npz(path: Path) -> GraphFiles:
    """Read a file, or the file of the same name in a zip file, without unpickling. Self loops are left out."""
    remedy = "Copy the file again, or save it as docs/own-graph.md describes."
    with tables.input_error(path, remedy, "cut off, damaged or pickled, or in another layout"), path.open("rb") as file:
        stream: Any = io.BytesIO(zipfile.ZipFile(file).read(f"{path.stem}.npz")) if path.suffix == ".zip" else file
        with NpzFile(stream, allow_pickle=False) as stored:  # np.load would also open .npy files
            adjacency = _read_csr(stored, "adj").tocoo()
            names = {"labels": "label", "attr_matrix": "feat", **{name: name for name in MASKS}}
            arrays = {name: stored[key] for key, name in names.items() if key in stored}
            if "attr_data" in stored:
                arrays["feat"] = _read_csr(stored, "attr").astype(np.float32).toarray()
        if "feat" in arrays:
            arrays["feat"] = standardize(arrays["feat"].astype(np.float32, copy=False))
        n, columns = adjacency.shape
        if n != columns or len(arrays.get("feat", range(n))) != n:
            raise ValueError(f"the adjacency is {n} by {columns}, and each node needs a row of features")
    keep = adjacency.row != adjacency.col
    src, dst = (node_ids[keep].astype(np.int64) for node_ids in (adjacency.row, adjacency.col))
    return GraphFiles({NODE: tables.NodeTable(path, range(n), arrays)}, {EDGE: (src, dst)})


def _read_csr(stored: NpzFile, prefix: str) -> sparse.csr_matrix:
    data, indices, indptr, shape = (stored[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    matrix = sparse.csr_matrix((data, indices.astype(np.int64), indptr.astype(np.int64)), shape=shape.tolist())
    matrix.check_format(full_check=True)
    return matrix


def standardize(feat: np.ndarray) -> np.ndarray:
    """Shift and scale each column of a float32 array (N, F) to mean 0 and standard deviation 1. Constants become 0."""
    # The Amazon features are 0 or 1 for each word. GraphSAGE reaches 89 to 90 %, but only 38 to 70 % without this step.
    if not np.isfinite(feat).all():  # check_dataset reports such features
        return feat
    feat = feat - feat.mean(axis=0, dtype=np.float64).astype(np.float32)
    std = np.sqrt(np.einsum("ij,ij->j", feat, feat, dtype=np.float64) / len(feat)).astype(np.float32)
    std[std < np.finfo(np.float32).tiny] = np.inf  # a division by smaller values can overflow
    return feat / std


def _read_dgl_file(path: Path) -> GraphFiles:
    try:
        (graph,), _ = dgl.load_graphs(str(path))
    except (dgl.DGLError, ValueError):
        remedy = "Save one graph with dgl.save_graphs. Put tables into a folder, as edges.csv and nodes.csv."
        raise InputError(f"{path} is damaged, or is not a file with one DGL graph", remedy) from None
    graph = graph.long()
    frames = {ntype: _arrays(graph.nodes[ntype].data) for ntype in graph.ntypes}
    nodes = {ntype: tables.NodeTable(path, range(graph.num_nodes(ntype)), arrays) for ntype, arrays in frames.items()}
    endpoints = {relation: graph.edges(order="eid", etype=relation) for relation in graph.canonical_etypes}
    edges = {relation: (src.numpy(), dst.numpy()) for relation, (src, dst) in endpoints.items()}
    return GraphFiles(nodes, edges, {relation: _arrays(graph.edges[relation].data) for relation in edges})


def _arrays(data: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    dtypes = {torch.bfloat16: torch.float32, torch.uint8: torch.int64}  # numpy has no bfloat16
    return {name: value.to(dtypes.get(value.dtype, value.dtype)).numpy() for name, value in data.items()}
