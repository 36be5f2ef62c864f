"""Edges from files, and the numbers of the nodes that their IDs name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.tables import columns_of, place_in, read_array, read_table
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    Ids = range | pa.Array  # of the nodes of one type: numbers from 0 on, or an array of whole numbers or texts

SOURCES, DESTINATIONS = ("src", "source", "from", "u"), ("dst", "destination", "target", "to", "v")
SPARSE_IDS = 1000  # more IDs than this for each end of an edge are probably no numbers from 0 on


@dataclass
class EdgeFile:
    """The edges of one file, by the IDs in the file.

    Attributes:
        ends: names and columns of sources and destinations, int64 or dictionary-encoded texts.
        first_line: line of the first edge in a CSV file.
    """

    path: Path
    ends: list[tuple[str, pa.ChunkedArray]]
    first_line: int = 2


def read_edges(path: Path, delimiter: str | None = None) -> EdgeFile:
    """Read a table with a source and a destination, or an array of shape (E, 2) or (2, E)."""
    import pyarrow as pa

    if path.suffix == ".npy":
        array = read_array(path)
        if array.ndim != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
            raise InputError(f"{path} is {array.dtype} of shape {array.shape}, expected whole numbers (E, 2) or (2, E)")
        pair = array.T if array.shape[1] == 2 else array
        columns: Any = [pa.chunked_array([np.ascontiguousarray(end, np.int64)]) for end in pair]
        return EdgeFile(path, [*zip(("src", "dst"), columns, strict=True)])
    if delimiter:
        table = read_table(path, ids=("f0", "f1"), delimiter=delimiter)  # pyarrow's names of columns without a header
        if table.num_columns != 2:
            raise InputError(f"{path} has {table.num_columns} columns, expected source and destination")
        return EdgeFile(path, [*zip(("src", "dst"), table.columns, strict=True)], 1)
    names = _edge_columns(path)
    table = read_table(path, [*names], names)
    return EdgeFile(path, [(name, table[name]) for name in names])


def _edge_columns(path: Path) -> tuple[str, str]:
    names = columns_of(path)
    source, destination = (next((name for name in names if name.lower() in of), None) for of in (SOURCES, DESTINATIONS))
    if source and destination:
        return source, destination
    if len(names) != 2:
        raise InputError(f"{path} has the columns {', '.join(names)}", "Name the two that matter src and dst.")
    if path.suffix != ".parquet" and all(name.lstrip("-").isdigit() for name in names):
        raise InputError(f"{path}: the first line is {','.join(names)}", "It needs a header: src,dst")
    return names[0], names[1]


def ids_in(path: Path, columns: list[pa.ChunkedArray]) -> Ids:
    """Return the IDs of the nodes that edges name: a range if they are whole numbers from 0 on, or else sorted IDs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk for column in columns for chunk in column.chunks]
    whole = all(pa.types.is_integer(chunk.type) for chunk in chunks)
    if whole and min(pc.min(chunk).as_py() for chunk in chunks) == 0:
        high = max(pc.max(chunk).as_py() for chunk in chunks)
        if high > SPARSE_IDS * sum(map(len, chunks)):
            text = f"{path}: IDs run from 0 to {high}, and nearly all of these nodes have no edge"
            raise InputError(text, "List the nodes that there are in nodes.csv, in a column id.")
        return range(high + 1)
    values = [chunk.dictionary if pa.types.is_dictionary(chunk.type) else pc.unique(chunk) for chunk in chunks]
    ids = pc.unique(pa.concat_arrays([each.cast(pa.int64() if whole else pa.string()) for each in values]))
    return ids.take(pc.sort_indices(ids))


def numbers_of(column: pa.ChunkedArray, ids: Ids) -> np.ndarray:
    """Return the position of each ID of a column among ``ids``, int64, and -1 for unknown IDs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = []
    for chunk in column.chunks:
        coded = pa.types.is_dictionary(chunk.type)
        values = chunk.dictionary if coded else chunk
        if not isinstance(ids, range):
            alike = (values, ids) if values.type == ids.type else (values.cast(pa.string()), ids.cast(pa.string()))
            numbers = pc.index_in(alike[0], value_set=alike[1]).fill_null(-1).to_numpy().astype(np.int64)
        else:
            numbers = np.full(len(values), -1) if coded else values.to_numpy()
            if numbers.min() < 0 or numbers.max() >= len(ids):
                numbers = np.where((numbers < 0) | (numbers >= len(ids)), -1, numbers)
        found.append(numbers[chunk.indices.to_numpy()] if coded else numbers)
    return found[0] if len(found) == 1 else np.concatenate(found)


def number_edges(files: list[EdgeFile], *ids: Ids) -> tuple[np.ndarray, np.ndarray]:
    """Return sources and destinations of the edges as node numbers, int64 of shape (E,). The columns are released.

    Args:
        ids: IDs of the source nodes and of the destination nodes.
    """
    found: tuple[list[np.ndarray], ...] = ([], [])
    for file in files:
        for (name, column), known, numbers in zip(file.ends, ids, found, strict=True):
            numbers.append(numbers_of(column, known))
            if numbers[-1].min() < 0:
                at = int((numbers[-1] < 0).argmax())
                listed = f", 0 to {len(known) - 1}" if isinstance(known, range) else ""
                text = f"{place_in(file.path, at, file.first_line)}: {name} {column[at]} is not among the nodes{listed}"
                raise InputError(text, "Remove this row, or list the node in nodes.csv, in a column id.")
        file.ends.clear()
    src, dst = (of[0] if len(of) == 1 else np.concatenate(of) for of in found)
    return src, dst
