"""Tables and arrays from files, a piece at a time; what is wrong with one is said with its file and line."""

from __future__ import annotations

import csv
import gzip
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".csv.gz", ".parquet")
BLOCK = 128 << 20  # bytes of a text that are parsed at a time
ROWS = 1 << 22  # of an array or a parquet file that are looked at together
LOOKED_AT = 10_000  # rows that say of which kind a column of names is
NUMBER = re.compile(r"0|-?[1-9]\d*(\.\d*)?")
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


def place_in(path: Path, row: int, first_line: int = FIRST_LINE) -> str:
    """Where a row is, for people: its line in a text; in another file its number, from 0 on."""
    return f"{path}, row {row}" if path.suffix in (".parquet", ".npy") else f"{path}, line {row + first_line}"


def array_in(path: Path) -> np.ndarray:
    """An array of numbers, mapped from its file; who writes into it does not change the file."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "Save it with numpy.save, as numbers.") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim == 0:
        raise InputError(f"{path} holds {getattr(array, 'dtype', 'an archive')}, expected an array of numbers")
    return array


def pieces(
    path: Path, columns: list[str] | None = None, delimiter: str | None = None, *, names: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a table, some megabytes at a time.

    Args:
        delimiter: of a text that has no header.
        names: the columns hold ids: of a text, 007, NA and 2020-01-01 are names, and not 7, nothing, and a date.
    """
    import pyarrow as pa
    from pyarrow import csv as texts
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            yield from parquet.ParquetFile(path).iter_batches(ROWS, columns=columns)
            return
        options = texts.ConvertOptions(include_columns=columns or [], strings_can_be_null=True)
        if names and columns:
            options.null_values = [""]
            options.column_types = dict.fromkeys(_no_numbers(path, columns), pa.string())
        # With threads, errors name no row.
        reading = texts.ReadOptions(block_size=BLOCK, use_threads=False, autogenerate_column_names=bool(delimiter))
        parsing = texts.ParseOptions(delimiter=delimiter or ",")
        with texts.open_csv(path, reading, parsing, options) as reader:
            yield from reader
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {error}", "Save it as UTF-8.") from None
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, EOFError) as error:
        # pyarrow's message has the row; ids that are numbers at first and texts later are the usual cause
        remedy = "Every row needs the same columns and kinds: ids all whole numbers, or all texts (quote the numbers)."
        raise InputError(f"{path}: {str(error).splitlines()[0]}", remedy) from None


def _no_numbers(path: Path, columns: list[str]) -> set[str]:
    """Columns in whose first rows a number would not be written as it stands there."""
    with _text(path) as file:
        rows = itertools.islice(csv.DictReader(file), LOOKED_AT)
        return {name for row in rows for name in columns if not NUMBER.fullmatch((row.get(name) or "0").strip())}


def _text(path: Path) -> IO[str]:
    encoding = "utf-8-sig"  # a mark of byte order before the first name, as Excel writes it, is no part of the name
    return gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding)


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns; of a text, what its first line says."""
    from pyarrow import ArrowInvalid, parquet

    try:
        if path.suffix == ".parquet":
            return parquet.ParquetFile(path).schema_arrow.names
        with _text(path) as file:
            return next(csv.reader(file), [])
    except (ArrowInvalid, OSError, UnicodeDecodeError, EOFError) as error:
        remedy = "A text is to be UTF-8; one that was cut off, or is of another kind, has to be written again."
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}", remedy) from None


class NodeTable:
    """The table of nodes: the ids at once, the rest when it is asked for."""

    def __init__(self, path: Path) -> None:
        import pyarrow.compute as pc

        self.path, self.columns = path, columns_of(path)
        if "id" not in self.columns:
            raise InputError(f"{path} has the columns {', '.join(self.columns)}", "One of them has to be id.")
        self.ids: Any = self.column("id", names=True)
        if len(self.ids) == 0:
            raise InputError(f"{path}: there is no node in it")
        if self.ids.null_count:
            place = place_in(path, pc.index(self.ids.is_null(), True).as_py())
            raise InputError(f"{place}: a node has no id", "Give it one, or remove the row.")
        if pc.count_distinct(self.ids).as_py() < len(self.ids):
            seen = pc.value_counts(self.ids)
            twice = seen.filter(pc.greater(seen.field("counts"), 1))[0]["values"]
            again = np.flatnonzero(pc.equal(self.ids, twice))[1]
            raise InputError(f"{place_in(path, again)}: {twice} is listed more than once", "One row for each node.")

    def column(self, name: str, *, names: bool = False) -> pa.Array | None:
        import pyarrow as pa

        if name not in self.columns:
            return None
        return pa.chunked_array([each.column(name) for each in pieces(self.path, [name], names=names)]).combine_chunks()

    def features(self) -> np.ndarray | None:
        """All other columns, float32 (N, F); None where there are none."""
        names = [name for name in self.columns if name not in ("id", "label", "split")]
        if not names:
            return None
        out = np.empty((len(self.ids), len(names)), np.float32)
        for k, name in enumerate(names):
            column: Any = self.column(name)
            try:
                values = column.cast("float32", safe=False)
            except Exception:
                remedy = "Features are numbers: leave the column out, or write a column of 0 and 1 for each value."
                raise InputError(f"{self.path}: column {name} has {column.type}, which is no feature", remedy) from None
            out[:, k] = found = values.to_numpy(zero_copy_only=False)
            if not (finite := np.isfinite(found)).all():
                place = place_in(self.path, int(finite.argmin()))
                remedy = "Every node needs a number there: fill the gap, or leave the column out."
                raise InputError(f"{place}: {name} is empty or not a finite number", remedy)
        return out
