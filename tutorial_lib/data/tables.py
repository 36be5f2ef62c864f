"""Tables and arrays from files, a piece at a time; what is wrong with one is said with its file and line."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".csv.gz", ".parquet")
BLOCK = 64 << 20  # bytes of a text that are parsed at a time
FIRST_LINE = 2  # of the rows of a CSV file: the header is line 1


def one_of(folder: Path, stem: str, endings: tuple[str, ...]) -> Path | None:
    """The file of this name with one of the endings. Raises InputError when there are several."""
    found = [folder / f"{stem}{ending}" for ending in endings if (folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise InputError(f"{folder} has {' and '.join(path.name for path in found)}", "Leave one of them.")
    return found[0] if found else None


def places_of(values: pa.Array, ids: pa.Array) -> pa.Array:
    """Where each value stands among the ids; null where it does not, also for a text among numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.index_in(values.cast(ids.type), value_set=ids)
    except pa.ArrowInvalid:
        return pc.index_in(values.cast(pa.string()), value_set=ids.cast(pa.string()))


def array_in(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "Save it with numpy.save, as numbers.") from None


def pieces(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a table, some megabytes at a time."""
    import pyarrow as pa
    from pyarrow import csv as texts
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            yield from parquet.ParquetFile(path).iter_batches(columns=columns)
            return
        options = texts.ConvertOptions(include_columns=columns or [], strings_can_be_null=True)
        reading = texts.ReadOptions(block_size=BLOCK, use_threads=False)  # with threads, errors name no row
        with texts.open_csv(path, reading, convert_options=options) as reader:
            yield from reader
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        # pyarrow's message has the row; ids that are numbers at first and texts later are the usual cause
        remedy = "Every row needs the same columns and kinds: ids all whole numbers, or all texts (quote the numbers)."
        raise InputError(f"{path}: {str(error).splitlines()[0]}", remedy) from None


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns; of a text, what its first line says."""
    from pyarrow import ArrowInvalid, parquet

    try:
        if path.suffix == ".parquet":
            return parquet.ParquetFile(path).schema_arrow.names
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            return next(csv.reader(file), [])
    except (ArrowInvalid, OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


class NodeTable:
    """The table of nodes: the ids at once, the rest when it is asked for."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.path, self.columns = path, columns_of(path)
        if "id" not in self.columns:
            raise InputError(f"{path} has the columns {', '.join(self.columns)}", "One of them has to be id.")
        self.ids = pa.chunked_array([batch.column("id") for batch in pieces(path, ["id"])]).combine_chunks()
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
        return pa.chunked_array([batch.column(name) for batch in pieces(self.path, [name])]).combine_chunks()

    def features(self) -> np.ndarray | None:
        """All other columns, float32 (N, F); None where there are none."""
        names = [name for name in self.columns if name not in ("id", "label", "split")]
        if not names:
            return None
        out = np.empty((len(self.ids), len(names)), np.float32)
        for k, name in enumerate(names):
            row = 0
            for batch in pieces(self.path, [name]):
                column = batch.column(name)
                try:
                    values = column.cast("float32", safe=False)
                except Exception:
                    raise InputError(f"{self.path}: column {name} has {column.type}, which is no feature") from None
                out[row : row + len(values), k] = values.to_numpy(zero_copy_only=False)
                row += len(values)
        return out
