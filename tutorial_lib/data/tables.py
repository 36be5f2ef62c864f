"""Read arrays and tables from files. Every error names the file, and the line if there is one."""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import re
import tokenize
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.memory import free_memory, not_enough_memory
from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".csv.gz", ".parquet")
BLOCK_BYTES = 128 << 20  # of a CSV file that are parsed together
BATCH_ROWS = 1 << 22  # of a parquet file that are read together
FIRST_ROWS = 10_000  # rows that decide whether a column of IDs holds whole numbers
WHOLE_NUMBER = re.compile(r"(0|-?[1-9]\d*(\.\d*)?)?")
LONGEST_LINE = 1 << 24  # characters, because a small compressed file may hold one line of any length


def place_in(path: Path, row: int, first_line: int = 2) -> str:
    """Name a row for people: the line of a CSV file, or the row of another file from 0 on."""
    return f"{path}, row {row}" if path.suffix in (".parquet", ".npy") else f"{path}, line {row + first_line}"


def one_of(folder: Path, stem: str, endings: tuple[str, ...]) -> Path | None:
    """Return the file of this name with one of the endings, and raise an InputError if there are several."""
    found = [folder / f"{stem}{ending}" for ending in endings if (folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise InputError(f"{folder} has {' and '.join(path.name for path in found)}", "Leave one of them.")
    return found[0] if found else None


def read_array(path: Path) -> np.ndarray:
    """Map an array of numbers from an .npy file. Writing into the array does not change the file."""
    remedy = "Save it with numpy.save, as numbers."
    try:
        with np.errstate(over="ignore"):  # a damaged header may describe an array of any size
            array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError, RecursionError, tokenize.TokenError) as error:
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}", remedy) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim == 0:
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "an archive"
        raise InputError(f"{path} holds {found}, expected an array of numbers", remedy)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of pyarrow, csv, gzip and the file system into an InputError."""
    import pyarrow as pa

    try:
        yield
    except MemoryError:
        raise not_enough_memory(path) from None
    except (pa.ArrowInvalid, pa.ArrowKeyError, csv.Error, OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        remedy = "Every row needs the same columns and kinds: IDs all whole numbers, or all texts in quotes. Use UTF-8."
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}", remedy) from None


def read_table(
    path: Path, columns: list[str] | None = None, ids: tuple[str, ...] = (), delimiter: str | None = None
) -> pa.Table:
    """Read a CSV or parquet file.

    Args:
        columns: columns to read. None reads all columns.
        ids: columns with IDs, which become int64 or dictionary-encoded texts. Texts stay as they are: 007, NA and
            2020-01-01 are IDs, and not a number, a missing value and a date.
        delimiter: delimiter of a CSV file without a header. None means a comma and a header.

    Raises:
        InputError: the file is damaged, has no row, does not fit in memory, or an ID is missing.
    """
    import pyarrow as pa

    found, rows, size = [], 0, 0
    with reading(path):
        for batch in _batches(path, columns, ids, delimiter):
            data = {name: batch.column(name) for name in batch.schema.names}
            for name in data.keys() & {*ids}:
                data[name] = _as_ids(path, rows, 1 if delimiter else 2, name, data[name])
            found.append(pa.table(data))
            rows, size = rows + len(batch), size + found[-1].nbytes
            if size > free_memory():  # the tensors that are made of the table are about as large
                raise not_enough_memory(path)
    if not rows:
        raise InputError(f"{path}: there is no row in it")
    return pa.concat_tables(found)


def _batches(
    path: Path, columns: list[str] | None, ids: tuple[str, ...], delimiter: str | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    if path.suffix == ".parquet":
        yield from parquet.ParquetFile(path).iter_batches(BATCH_ROWS, columns=columns)
        return
    if len(delimiter or ",") != 1 or not (delimiter or ",").isascii():
        raise InputError(f"{path}: the delimiter is {delimiter!r}", "Use one ASCII character.")
    convert = arrow_csv.ConvertOptions(include_columns=columns or [], strings_can_be_null=True)
    if ids and not delimiter:
        convert.null_values, convert.column_types = [""], dict.fromkeys(_text_columns(path, ids), pa.string())
    # With threads, pyarrow's errors name no row.
    read = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, autogenerate_column_names=bool(delimiter))
    with arrow_csv.open_csv(path, read, arrow_csv.ParseOptions(delimiter=delimiter or ","), convert) as reader:
        yield from reader


def _text_columns(path: Path, columns: tuple[str, ...]) -> set[str]:
    """Return the columns with a value that a whole number would not reproduce, in the first rows of a CSV file."""
    with _open_csv(path) as rows:
        header = next(rows, [])
        places = [(name, header.index(name)) for name in columns if name in header]
        pairs = ((name, row[at]) for row in itertools.islice(rows, FIRST_ROWS) for name, at in places if at < len(row))
        return {name for name, value in pairs if not WHOLE_NUMBER.fullmatch(value.strip())}


@contextlib.contextmanager
def _open_csv(path: Path) -> Iterator[Iterator[list[str]]]:
    encoding = "utf-8-sig"  # Excel writes a byte order mark before the first name
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding=encoding) as file:
        yield csv.reader(iter(lambda: file.readline(LONGEST_LINE), ""))


def columns_of(path: Path) -> list[str]:
    """Return the names of a table's columns. In a CSV file, these are the first line."""
    from pyarrow import parquet

    with reading(path):
        if path.suffix == ".parquet":
            names = parquet.ParquetFile(path).schema_arrow.names
        else:
            with _open_csv(path) as rows:
                names = next(rows, [])
    if not names:
        raise InputError(f"{path}: the first line is empty", "It needs the names of the columns.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path}: two columns are called {twice[0]!r}", "Rename one, or leave it out.")
    return names


def _as_ids(path: Path, row: int, first_line: int, name: str, column: pa.Array) -> pa.Array:
    import pyarrow as pa

    if column.null_count:
        at = row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{place_in(path, at, first_line)}: the {name} is missing", "Add it, or remove the row.")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string()).dictionary_encode()
    if pa.types.is_integer(column.type):
        with contextlib.suppress(pa.ArrowInvalid):  # from 2**63 on
            return column.cast(pa.int64())
    text = f"{path}: column {name} has {column.type}, expected whole numbers or texts"
    raise InputError(text, "Write numbers from 2**63 on as texts.")
