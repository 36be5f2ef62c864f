"""A graph of one's own: a folder with tables of edges and nodes, read in pieces.

    edges.csv | .csv.gz | .parquet | .npy    two columns, source and destination: any integers, or any texts
    nodes.csv | .csv.gz | .parquet           optional: ``id``, ``label``, ``split``; all other columns are features
    feat.npy, label.npy                      optional, in the order of the nodes
    train_mask.npy, val_mask.npy, test_mask.npy, or split.csv with ``id`` and ``split``      optional

Which nodes there are: those of ``nodes``; without it, 0 to N-1 where an array says N or the ids are whole numbers from 0
on; else all ids of the edges, sorted. A row of nodes without a label is in no split; without any split, a random one of
60/20/20 is drawn. Edges stay as they are: a message goes from source to destination. ``both_ways`` adds each edge's
reverse, and then every pair is there once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.base import MASKS, Dataset, node_data, random_split
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".csv.gz", ".parquet")
SOURCES, DESTINATIONS = ("src", "source", "from", "u"), ("dst", "destination", "target", "to", "v")
SPLITS = {"train": 0, "valid": 1, "val": 1, "validation": 1, "test": 2}
BLOCK = 64 << 20  # bytes of a text that are parsed at a time
FIRST_LINE = 2  # of the rows of a CSV file: the header is line 1


def is_folder_of_tables(name: str) -> bool:
    """Whether a data set's name is a folder; what is wrong with it is said on reading."""
    return Path(name).expanduser().is_dir()


def load_tables(folder: Path, *, seed: int = 0, both_ways: bool = False) -> Dataset:
    """Read the folder; see the module's docstring.

    Node data: ``feat`` float32 (N, F) if there is any, ``label`` int64 (N,), three bool masks (N,). ``ids`` of the data
    set has the name of each node, ``info["classes"]`` that of each class where labels are texts.

    Raises:
        InputError: what is wrong, in which file, and in which line where there are lines.
    """
    import dgl
    import torch

    folder = folder.expanduser()
    edges = _one_of(folder, "edges", (*TABLES, ".npy"))
    nodes = _one_of(folder, "nodes", TABLES, needed=False)
    table = None if nodes is None else _Nodes(nodes)
    arrays = {name: _array(folder / f"{name}.npy") for name in ("feat", "label", *MASKS)}
    counts = {f"{key}.npy": len(array) for key, array in arrays.items() if array is not None}
    if table is not None:
        counts[table.path.name] = len(table.ids)
    if len(set(counts.values())) > 1:
        raise InputError(f"{folder}: different numbers of nodes: {_listed(counts)}")
    count = next(iter(counts.values()), None)
    src, dst, ids = _read_edges(edges, None if table is None else table.ids, count)
    n = len(ids)
    facts: dict[str, Any] = {"file": str(folder), "edges_in_the_file": len(src)}
    if both_ways:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        keys = np.unique(src * n + dst)
        src, dst = keys // n, keys % n
    facts |= {"directed": not both_ways, **_oddities(src, dst, n)}
    label, classes, unlabelled = _labels(folder, arrays["label"], table)
    split = _split(folder, arrays, table, ids, seed, facts)
    split[unlabelled] = len(MASKS)
    facts |= {"unlabelled_nodes": int(unlabelled.sum())} | ({"classes": classes} if classes else {})
    feat = arrays["feat"] if table is None or arrays["feat"] is not None else table.features()
    if feat is not None:
        feat = _floats(folder, feat)
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=n)
    graph.ndata.update(node_data(feat, label, split))
    return Dataset(str(folder), graph, int(label.max()) + 1, facts, ids=ids)


def _one_of(folder: Path, stem: str, endings: tuple[str, ...], *, needed: bool = True) -> Path | None:
    found = [folder / f"{stem}{ending}" for ending in endings if (folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise InputError(f"{folder} has {' and '.join(path.name for path in found)}", "Leave one of them.")
    if not found and needed:
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        wanted = ", ".join(f"{stem}{ending}" for ending in endings)
        raise InputError(
            f"{folder} has none of {wanted}; it has: {there}", "docs/own-graph.md shows what a graph needs."
        )
    return found[0] if found else None


def _array(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "Save it with numpy.save, as numbers.") from None


def _pieces(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a table, some megabytes at a time."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".parquet":
            yield from parquet.ParquetFile(path).iter_batches(columns=columns)
            return
        options = csv.ConvertOptions(include_columns=columns or [], strings_can_be_null=True)
        with csv.open_csv(path, csv.ReadOptions(block_size=BLOCK), convert_options=options) as reader:
            yield from reader
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        # pyarrow's message has the row; ids that are numbers at first and texts later are the usual cause
        remedy = "Every row needs the same columns and kinds: ids all whole numbers, or all texts (quote the numbers)."
        raise InputError(f"{path}: {str(error).splitlines()[0]}", remedy) from None


def _names_of(path: Path) -> list[str]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".parquet":
            return parquet.ParquetFile(path).schema_arrow.names
        with csv.open_csv(path, csv.ReadOptions(block_size=BLOCK)) as reader:
            return reader.schema.names
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _read_edges(path: Path, ids: pa.Array | None, count: int | None) -> tuple[np.ndarray, np.ndarray, Any]:
    """Ends of the edges as positions, int64 (E,) twice, and the id of each node: an array of pyarrow, or a range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if path.suffix == ".npy":
        found = _array(path)
        assert found is not None
        if found.ndim != 2 or 2 not in found.shape or found.dtype.kind not in "iu":
            raise InputError(f"{path} is {found.dtype} of shape {found.shape}, expected whole numbers (E, 2) or (2, E)")
        ends = found.T if found.shape[1] == 2 else found
        batches = iter([pa.record_batch([pa.array(np.ascontiguousarray(end)) for end in ends], ["src", "dst"])])
        names = ["src", "dst"]
    else:
        names = _edge_columns(path)
        batches = _pieces(path, names)
    pieces: list[list[Any]] = [[], []]
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
                place = pc.index_in(column.cast(ids.type), value_set=ids)
                if place.null_count:
                    at = int(np.flatnonzero(place.is_null().to_numpy(zero_copy_only=False))[0])
                    text = f"{path}, line {row + at + FIRST_LINE}: {name} {column[at]} is not among the nodes"
                    raise InputError(text, "Add a row for it, or remove the edge.")
                column = place
            pieces[k].append(column)
        row += len(batch)
    if row == 0:
        raise InputError(f"{path}: there is no edge in it")
    ends = [pa.chunked_array(piece) for piece in pieces]
    pieces.clear()
    if ids is None:
        ids, ends = _nodes_of(path, ends, count)
    src, dst = (np.asarray(end.to_numpy(), dtype=np.int64) for end in ends)
    return src, dst, ids


def _edge_columns(path: Path) -> list[str]:
    names = _names_of(path)
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


class _Nodes:
    """The table of nodes: the ids at once, the rest when it is asked for."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.path, self.columns = path, _names_of(path)
        if "id" not in self.columns:
            raise InputError(f"{path} has the columns {', '.join(self.columns)}", "One of them has to be id.")
        self.ids = pa.chunked_array([batch.column("id") for batch in _pieces(path, ["id"])]).combine_chunks()
        if self.ids.null_count or len(self.ids) == 0:
            raise InputError(f"{path}: a node has no id" if self.ids.null_count else f"{path}: there is no node in it")
        if pc.count_distinct(self.ids).as_py() < len(self.ids):
            seen = pc.value_counts(self.ids)
            twice = seen.filter(pc.greater(seen.field("counts"), 1))[0]["values"]
            raise InputError(f"{path}: {twice} is listed more than once")

    def column(self, name: str) -> pa.Array | None:
        import pyarrow as pa

        if name not in self.columns:
            return None
        return pa.chunked_array([batch.column(name) for batch in _pieces(self.path, [name])]).combine_chunks()

    def features(self) -> np.ndarray | None:
        """All other columns, float32 (N, F); None where there are none."""
        names = [name for name in self.columns if name not in ("id", "label", "split")]
        if not names:
            return None
        out = np.empty((len(self.ids), len(names)), np.float32)
        for k, name in enumerate(names):
            row = 0
            for batch in _pieces(self.path, [name]):
                column = batch.column(name)
                try:
                    values = column.cast("float32", safe=False)
                except Exception:
                    raise InputError(f"{self.path}: column {name} has {column.type}, which is no feature") from None
                out[row : row + len(values), k] = values.to_numpy(zero_copy_only=False)
                row += len(values)
        return out


def _oddities(src: np.ndarray, dst: np.ndarray, n: int) -> dict[str, int]:
    """What a graph may have and who made it may not know."""
    keys = np.sort(src * n + dst)
    touched = np.zeros(n, bool)
    touched[src] = touched[dst] = True
    return {
        "duplicate_edges": int((keys[1:] == keys[:-1]).sum()),
        "self_loops": int((src == dst).sum()),
        "isolated_nodes": int(n - touched.sum()),
    }


def _labels(folder: Path, array: np.ndarray | None, table: _Nodes | None) -> tuple[np.ndarray, list[str], np.ndarray]:
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
    folder: Path, arrays: dict[str, Any], table: _Nodes | None, ids: Any, seed: int, facts: dict[str, Any]
) -> np.ndarray:
    """0 (train), 1 (valid), 2 (test) or 3 (none) for each node, uint8 (N,)."""
    import pyarrow.compute as pc

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
    column, place, where = None, None, folder / "split.csv"
    if where.is_file():
        listed = _Nodes(where)
        column = listed.column("split")
        value_set = table.ids if table is not None else ids
        if isinstance(value_set, range):
            place = listed.ids.to_numpy(zero_copy_only=False)
            bad = (place < 0) | (place >= n)
        else:
            found = pc.index_in(listed.ids, value_set=value_set)
            bad, place = found.is_null().to_numpy(zero_copy_only=False), found.fill_null(0).to_numpy()
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(f"{where}, line {at + FIRST_LINE}: {listed.ids[at]} is not among the nodes")
    elif table is not None:
        column, place, where = table.column("split"), np.arange(n), table.path
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
