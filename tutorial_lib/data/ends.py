"""The ends of edges as numbers of nodes, whatever the nodes are called: whole numbers or texts, known before or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.tables import (
    FIRST_LINE,
    ROWS,
    array_in,
    columns_of,
    free_memory,
    no_memory,
    pieces,
    place_in,
    places_of,
)
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SOURCES, DESTINATIONS = ("src", "source", "from", "u"), ("dst", "destination", "target", "to", "v")
EDGE_BYTES = 24  # for each edge that was read: both ends once more, in one array, and a key to find duplicates
SPARSE_IDS = 1000  # nodes for each end of an edge; ids that leave more of them out are no numbers from 0 on
Ends = tuple[list[np.ndarray], list[np.ndarray]]  # of edges: sources, destinations, in pieces


class Names:
    """What the nodes of one type are called.

    Attributes:
        ids: array of pyarrow, or a range. None: they are those that edges name, and ``settle`` says which.
    """

    def __init__(self, ids: Any = None) -> None:
        self.ids, self.known = ids, ids is not None
        self.given: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.ids)

    def places(self, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Number of each node, int64, and bool: which are not among the nodes. ``settle`` may change the numbers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pa.types.is_integer(column.type)
        if isinstance(self.ids, range):
            values = column.to_numpy(zero_copy_only=False).astype(np.int64) if whole else np.full(len(column), -1)
            return values, (values < 0) | (values >= len(self.ids))
        if whole and self.ids is None:
            self.given.append(column.to_numpy().astype(np.int64))  # a copy: ``settle`` writes into it
            return self.given[-1], np.zeros(len(column), bool)
        if self.ids is None:
            if self.given:
                remedy = "Write them alike; in a text, numbers in quotes are texts."
                raise InputError("the ids of nodes are whole numbers in one file and texts in another", remedy)
            self.ids = pa.array([], pa.string())
        coded = column.dictionary_encode()  # so that each name is looked up once in a piece
        number = pc.fill_null(places_of(coded.dictionary, self.ids), -1).to_numpy().astype(np.int64)
        if not self.known and (new := number < 0).any():
            number[new] = np.arange(len(self.ids), len(self.ids) + new.sum())
            self.ids = pa.concat_arrays([self.ids, coded.dictionary.filter(pa.array(new)).cast(pa.string())])
        found = number[coded.indices.to_numpy()]
        if not self.known:
            self.given.append(found)
        return found, found < 0

    def settle(self) -> None:
        """Once every edge was read: all ids, sorted; numbers that ``places`` gave are put right where they are.

        Raises:
            InputError: whole numbers from 0 on, but far more of them than edges have ends.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.known and self.ids is not None and not isinstance(self.ids, range):
            order = pc.sort_indices(self.ids)
            rank = np.empty(len(order), np.int64)
            rank[order.to_numpy()] = np.arange(len(order))
            for piece in self.given:
                piece[:] = rank[piece]
            self.ids = self.ids.take(order)
        elif not self.known:
            low, high = min(int(piece.min()) for piece in self.given), max(int(piece.max()) for piece in self.given)
            if low == 0:
                self.ids = range(high + 1)
                if high > SPARSE_IDS * sum(map(len, self.given)):
                    text = f"ids run from 0 to {high}, and nearly all of these nodes have no edge"
                    raise InputError(text, "List the nodes that there are in nodes.csv, in a column id.")
            else:
                every = np.unique(np.concatenate([pc.unique(pa.array(piece)).to_numpy() for piece in self.given]))
                for piece in self.given:
                    piece[:] = np.searchsorted(every, piece)
                self.ids = pa.array(every)
        self.given, self.known = [], True


def read_ends(
    paths: Sequence[Path], start: Names, end: Names, delimiter: str | None = None, words: Any = (SOURCES, DESTINATIONS)
) -> Ends:
    """The edges of one type, numbered by the names of their source and of their destination nodes.

    Args:
        paths: tables with a source and a destination, or arrays (E, 2) or (2, E).
        delimiter: of texts without a header; None: a comma, and there is a header.
        words: what the column of the sources may be called, and that of the destinations.

    Raises:
        InputError: what is wrong with an edge, with its file and line.
    """
    import pyarrow as pa

    found: Ends = ([], [])
    for path in paths:
        row, first_line = 0, 1 if delimiter else FIRST_LINE
        for batch in _pairs(path, delimiter, words):
            columns = [_checked(path, row, first_line, *pair) for pair in zip(batch.schema.names, batch, strict=True)]
            if start is end and pa.types.is_string(columns[0].type) != pa.types.is_string(columns[1].type):
                columns = [column.cast(pa.string()) for column in columns]
            groups = [(start, columns)] if start is end else [(start, columns[:1]), (end, columns[1:])]
            places = []
            for names, some in groups:  # both ends at once where they are of one type
                joined, missing = names.places(pa.concat_arrays(some))
                if missing.any():
                    which, at = divmod(int(missing.argmax()), len(batch))
                    known = f", 0 to {len(names) - 1}" if isinstance(names.ids, range) else ""
                    text = f"{batch.schema.names[len(places) + which]} {some[which][at]} is not among the nodes{known}"
                    remedy = "Remove this row, or list the node: a column id of nodes.csv says which row is which."
                    raise InputError(f"{place_in(path, row + at, first_line)}: {text}", remedy)
                places += np.split(joined, len(some))
            for ends, these in zip(found, places, strict=True):
                ends.append(these)
            row += len(batch)
            if EDGE_BYTES * sum(map(len, found[0])) > free_memory():
                raise no_memory(path)
    if not any(map(len, found[0])):
        raise InputError(f"{', '.join(map(str, paths))}: there is no row in it")
    return found


def _checked(path: Path, row: int, first_line: int, name: str, column: pa.Array) -> pa.Array:
    """The column, as int64 or as texts, without gaps."""
    import pyarrow as pa

    if column.null_count:
        at = row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        text = f"{place_in(path, at, first_line)}: the {name} is missing"
        raise InputError(text, "Give it one, or leave the row out.")
    if pa.types.is_string(column.type):
        return column
    if pa.types.is_integer(column.type):
        with contextlib.suppress(pa.ArrowInvalid):  # above 2**63
            return column.cast(pa.int64())
    text = f"{path}: column {name} has {column.type}, expected whole numbers or texts"
    raise InputError(text, "Write numbers above 2**63 as texts.")


def _pairs(path: Path, delimiter: str | None, words: Any) -> Iterator[pa.RecordBatch]:
    """Batches of two columns."""
    import pyarrow as pa

    if path.suffix == ".npy":
        array = array_in(path)
        if array.ndim != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
            raise InputError(f"{path} is {array.dtype} of shape {array.shape}, expected whole numbers (E, 2) or (2, E)")
        array = array.T if array.shape[1] == 2 else array
        for at in range(0, array.shape[1], ROWS):
            ends = (pa.array(np.ascontiguousarray(end[at : at + ROWS])) for end in array)
            yield pa.record_batch([*ends], ["src", "dst"])
    elif delimiter:
        for batch in pieces(path, delimiter=delimiter):
            if batch.num_columns != 2:
                raise InputError(f"{path} has {batch.num_columns} columns, expected source and destination")
            yield batch.rename_columns(["src", "dst"])
    else:
        names = _edge_columns(path, words)
        for batch in pieces(path, names, names=True):
            yield batch.select(names)


def _edge_columns(path: Path, words: Any) -> list[str]:
    names = columns_of(path)
    known = [next((name for name in names if name.lower() in some), None) for some in words]
    if None not in known:
        return [str(name) for name in known]
    if len(names) == 2 and len(words[0]) > 1:
        if all(name.strip('"').lstrip("-").isdigit() for name in names) and path.suffix != ".parquet":
            raise InputError(f"{path}: the first line is {','.join(names)}", "It needs a header: src,dst")
        return names
    remedy = f"Name the two that matter {words[0][0]} and {words[1][0]}."
    raise InputError(f"{path} has the columns {', '.join(names)}", remedy)
