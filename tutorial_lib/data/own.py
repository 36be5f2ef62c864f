"""A graph of one's own: a folder with tables of edges and nodes, read in pieces.

    edges.csv | .csv.gz | .parquet | .npy    two columns, source and destination: any integers, or any texts
    nodes.csv | .csv.gz | .parquet           optional: ``id``, ``label``, ``split``; all other columns are features
    feat.npy, label.npy                      optional, in the order of the nodes
    train_mask.npy, val_mask.npy, test_mask.npy, or split.csv with ``id`` and ``split``      optional

Which nodes there are: those of ``nodes``; without it, 0 to N-1 where an array says N or the ids are whole numbers from
0 on; else all ids of the edges, sorted. A node without a label is in no split; without any split, a random one of
60/20/20 is drawn. Edges stay as they are: a message goes from source to destination. ``both_ways`` adds each edge's
reverse, and then every pair is there once.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.base import MASKS, Dataset, node_data, random_split
from tutorial_lib.data.tables import FIRST_LINE, TABLES, NodeTable, array_in, columns_of, one_of, pieces, places_of
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SOURCES, DESTINATIONS = ("src", "source", "from", "u"), ("dst", "destination", "target", "to", "v")
SPLITS = {"train": 0, "valid": 1, "val": 1, "validation": 1, "test": 2}


def load_folder(folder: Path, *, seed: int = 0, both_ways: bool = False) -> Dataset:
    """Read the folder; see the module's docstring.

    Node data: ``feat`` float32 (N, F) if there is any, ``label`` int64 (N,), three bool masks (N,). ``ids`` of the data
    set has the name of each node, ``info["class_names"]`` that of each class where labels are texts.

    Raises:
        InputError: what is wrong, in which file, and in which line where there are lines.
    """
    import dgl
    import torch

    folder = folder.expanduser()
    edges, nodes = one_of(folder, "edges", (*TABLES, ".npy")), one_of(folder, "nodes", TABLES)
    if edges is None:
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        wanted = ", ".join(f"edges{ending}" for ending in (*TABLES, ".npy"))
        raise InputError(
            f"{folder} has none of {wanted}; it has: {there}", "docs/own-graph.md says what a graph needs."
        )
    table = None if nodes is None else NodeTable(nodes)
    arrays = {name: array_in(folder / f"{name}.npy") for name in ("feat", "label", *MASKS)}
    counts = {f"{key}.npy": len(array) for key, array in arrays.items() if array is not None}
    if table is not None:
        counts[table.path.name] = len(table.ids)
    if len(set(counts.values())) > 1:
        raise InputError(f"{folder}: different numbers of nodes: {_listed(counts)}")
    count = next(iter(counts.values()), None)
    src, dst, ids = _read_edges(edges, None if table is None else table.ids, count)
    n = len(ids)
    facts: dict[str, Any] = {"file": str(folder), "edges_in_the_file": len(src), **_oddities(src, dst, n)}
    if both_ways:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        keys = np.unique(src * n + dst)
        src, dst = keys // n, keys % n
    facts["directed"] = not both_ways
    label, classes, unlabelled = _labels(folder, arrays["label"], table)
    split = _split(folder, arrays, table, ids, seed, facts)
    split[unlabelled] = len(MASKS)
    facts |= {"unlabelled_nodes": int(unlabelled.sum())} | ({"class_names": classes} if classes else {})
    feat = arrays["feat"] if table is None or arrays["feat"] is not None else table.features()
    if feat is not None:
        feat = _floats(folder, feat)
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=n)
    graph.ndata.update(node_data(feat, label, split))
    without = np.setdiff1d(label[~unlabelled], label[split == 0])
    facts["classes_without_a_training_node"] = [classes[k] if classes else int(k) for k in without]
    facts["memory"] = f"{(graph.num_edges() * 16 + (feat.nbytes if feat is not None else 0)) / 1e9:.2f} GB"
    classes_of = max(len(classes), int(label.max()) + 1)
    return Dataset(str(folder), graph, classes_of, facts, ids=None if isinstance(ids, range) else ids)


def _read_edges(path: Path, ids: pa.Array | None, count: int | None) -> tuple[np.ndarray, np.ndarray, Any]:
    """Ends of the edges as positions, int64 (E,) twice, and the id of each node: an array of pyarrow, or a range."""
    import pyarrow as pa

    if path.suffix == ".npy":
        array = array_in(path)
        assert array is not None
        if array.ndim != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
            raise InputError(f"{path} is {array.dtype} of shape {array.shape}, expected whole numbers (E, 2) or (2, E)")
        ends = array.T if array.shape[1] == 2 else array
        batches = iter([pa.record_batch([pa.array(np.ascontiguousarray(end)) for end in ends], ["src", "dst"])])
        names = ["src", "dst"]
    else:
        names = _edge_columns(path)
        batches = pieces(path, names)
    found: list[list[Any]] = [[], []]
    row = 0
    for batch in batches:
        for k, name in enumerate(names):
            column = batch.column(name)
            if column.null_count:
                where = row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise InputError(f"{path}, line {where + FIRST_LINE}: the {name} of this edge is missing")
            if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
                raise InputError(f"{path}: column {name} has {column.type}, expected whole numbers or texts")
            if ids is not None:
                place = places_of(column, ids)
                if place.null_count:
                    at = int(np.flatnonzero(place.is_null().to_numpy(zero_copy_only=False))[0])
                    text = f"{path}, line {row + at + FIRST_LINE}: {name} {column[at]} is not among the nodes"
                    raise InputError(text, "Add a row for it, or remove the edge.")
                column = place
            found[k].append(column)
        row += len(batch)
    if row == 0:
        raise InputError(f"{path}: there is no edge in it")
    kinds = {column.type for column in (*found[0], *found[1])}
    if len(kinds) > 1:  # whole numbers of several widths, or numbers in one column and texts in the other
        kind = pa.int64() if all(map(pa.types.is_integer, kinds)) else pa.string()
        found = [[column.cast(kind) for column in piece] for piece in found]
    ends = [pa.chunked_array(piece) for piece in found]
    found.clear()
    if ids is None:
        ids, ends = _nodes_of(path, ends, count)
    src, dst = (np.asarray(end.to_numpy(), dtype=np.int64) for end in ends)
    return src, dst, ids


def _edge_columns(path: Path) -> list[str]:
    names = columns_of(path)
    known = [next((name for name in names if name.lower() in words), None) for words in (SOURCES, DESTINATIONS)]
    if None not in known:
        return [str(name) for name in known]
    if len(names) == 2:
        if all(name.strip('"').lstrip("-").isdigit() for name in names):
            raise InputError(f"{path}: the first line is {','.join(names)}", "It needs a header: src,dst")
        return names
    raise InputError(f"{path} has the columns {', '.join(names)}", "Name the ends of the edges src and dst.")


def _nodes_of(path: Path, ends: list[Any], count: int | None) -> tuple[Any, list[Any]]:
    """Without a table of nodes: the ids of all nodes, and the ends as positions among them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(ends[0].type) and pa.types.is_integer(ends[1].type):
        low = min(pc.min(end).as_py() for end in ends)
        high = max(pc.max(end).as_py() for end in ends)
        if count is not None and not 0 <= low <= high < count:
            text = f"{path}: ids run from {low} to {high}, and the arrays have {count} nodes, 0 to {count - 1}"
            raise InputError(text, "Add a table nodes.csv whose column id says which row is which node.")
        if count is not None or low == 0:
            return range(high + 1 if count is None else count), ends
    elif count is not None:
        raise InputError(f"{path}: ids are texts; which row of the arrays is which node?", "Add nodes.csv with an id.")
    every = pc.unique(pa.chunked_array([*ends[0].chunks, *ends[1].chunks]))
    every = every.take(pc.sort_indices(every))
    return every, [pc.index_in(end, value_set=every) for end in ends]


def _oddities(src: np.ndarray, dst: np.ndarray, n: int) -> dict[str, int]:
    """What the file may have and who made it may not know."""
    keys = np.sort(src * n + dst)
    touched = np.zeros(n, bool)
    touched[src] = touched[dst] = True
    return {
        "duplicate_edges": int((keys[1:] == keys[:-1]).sum()),
        "self_loops": int((src == dst).sum()),
        "isolated_nodes": int(n - touched.sum()),
    }


def _labels(
    folder: Path, array: np.ndarray | None, table: NodeTable | None
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Class of each node (0 where it has none), names of the classes where they are texts, which nodes have none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array is not None:
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(
                f"{folder / 'label.npy'} is {array.dtype} of shape {array.shape}, expected whole numbers (N,)"
            )
        none = array < 0
        return np.where(none, 0, array).astype(np.int64), [], none
    column = None if table is None else table.column("label")
    if column is None:
        raise InputError(f"{folder}: there are no labels", "Add label.npy, or a column label to the table of nodes.")
    none = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(column.type):
        values = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        none = none | (values < 0)
        return np.where(none, 0, values), [], none
    names = pc.unique(column.drop_null())
    names = names.take(pc.sort_indices(names))
    found = pc.index_in(column, value_set=names).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found, [str(name) for name in names], none


def _split(
    folder: Path, arrays: dict[str, Any], table: NodeTable | None, ids: Any, seed: int, facts: dict[str, Any]
) -> np.ndarray:
    """0 (train), 1 (valid), 2 (test) or 3 (none) for each node, uint8 (N,)."""
    n = len(ids)
    masks = {name: arrays[name] for name in MASKS if arrays[name] is not None}
    if masks:
        if missing := [f"{name}.npy" for name in MASKS if name not in masks]:
            raise InputError(f"{folder} has no {' and no '.join(missing)}", "All three masks are needed, or none.")
        split = np.full(n, len(MASKS), np.uint8)
        for number, (name, mask) in enumerate(masks.items()):
            if mask.shape != (n,) or mask.dtype != bool:
                raise InputError(f"{folder / name}.npy is {mask.dtype} of shape {mask.shape}, expected bool ({n},)")
            if both := int((split[mask] < len(MASKS)).sum()):
                raise InputError(f"{folder}: {both} nodes are in more than one split")
            split[mask] = number
        facts["split"] = "masks"
        return split
    column, place, where = None, np.arange(n), folder / "split.csv"
    if where.is_file():
        listed = NodeTable(where)
        if (column := listed.column("split")) is None:
            raise InputError(f"{where} has the columns {', '.join(listed.columns)}", "One of them has to be split.")
        value_set = table.ids if table is not None else ids
        if isinstance(value_set, range):
            place = listed.ids.to_numpy(zero_copy_only=False)
            bad = (place < 0) | (place >= n)
        else:
            found = places_of(listed.ids, value_set)
            bad, place = found.is_null().to_numpy(zero_copy_only=False), found.fill_null(0).to_numpy()
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(f"{where}, line {at + FIRST_LINE}: {listed.ids[at]} is not among the nodes")
    elif table is not None:
        column, where = table.column("split"), table.path
    if column is None:
        facts |= {"split": [0.6, 0.2, 0.2], "seed": seed}
        return random_split(np.random.RandomState(seed).permutation(n))
    split = np.full(n, len(MASKS), np.uint8)
    for at, word in enumerate(column.to_pylist()):
        if word is not None and word != "":
            if (number := SPLITS.get(str(word).lower())) is None:
                text = f"{where}, line {at + FIRST_LINE}: {word!r} is no split"
                raise InputError(text, f"Known: {', '.join(SPLITS)}; or nothing, for a node in none.")
            split[place[at]] = number
    facts["split"] = where.name
    return split


def _floats(folder: Path, feat: np.ndarray) -> np.ndarray:
    if feat.ndim != 2 or feat.dtype.kind not in "fiub":
        raise InputError(f"{folder / 'feat.npy'} is {feat.dtype} of shape {feat.shape}, expected numbers (N, F)")
    with contextlib.suppress(MemoryError):
        return np.ascontiguousarray(feat, dtype=np.float32)
    raise InputError(f"{folder}: features of shape {feat.shape} do not fit in memory as float32")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
