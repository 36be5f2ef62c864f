"""Tables and arrays from files, a piece at a time; what is wrong with one is said with its file and line."""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import re
import resource
import tokenize
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import psutil

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".csv.gz", ".parquet")
BLOCK = 128 << 20  # bytes of a text that are parsed at a time
ROWS = 1 << 22  # of an array or a parquet file that are looked at together
LOOKED_AT = 10_000  # rows that say of which kind a column of names is
NUMBER = re.compile(r"0|-?[1-9]\d*(\.\d*)?")
FIRST_LINE = 2  # of the rows of a CSV file: the header is line 1
LONGEST_LINE = 1 << 24  # characters; a compressed file may hold one line of any length
SHAPE = re.compile(r".*Row #(\d+): Expected (\d+) columns, got (\d+)")  # a message of pyarrow


def free_in_group(group: Path) -> int:
    """Bytes below the limit of a control group; its cached files are counted as used, but they make room."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    used = int((group / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
    return max(0, int((group / "memory.max").read_text()) - used)


def free_memory() -> int:
    """Return the bytes that this process may still take, of the machine, its container or ``ulimit -v``."""
    free = psutil.virtual_memory().available
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - psutil.Process().memory_info().vms))
    with contextlib.suppress(OSError, ValueError):  # a container's limit; the file says "max" where there is none
        free = min(free, free_in_group(Path("/sys/fs/cgroup")))
    return free


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
        with np.errstate(over="ignore"):  # a damaged header may describe an array of any size
            array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError, RecursionError, tokenize.TokenError) as error:
        problem = f"{path}: cannot be read: {str(error).splitlines()[0]}"
        raise InputError(problem, "Save it with numpy.save, as numbers.") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim == 0:
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "an archive"
        raise InputError(f"{path} holds {found}, expected an array of numbers", "Save it with numpy.save, as numbers.")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


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

    if len(delimiter or ",") != 1 or not (delimiter or ",").isascii():
        raise InputError(f"{path}: the delimiter is {delimiter!r}", "It has to be one ASCII character.")
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
    except MemoryError:
        raise no_memory(path) from None
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, EOFError, csv.Error, zlib.error) as error:
        if shape := SHAPE.match(str(error)):
            row, expected, found = shape.groups()
            header = "" if delimiter else f" ({', '.join(columns_of(path)[:8])})"
            text = f"{path}, row {row}: {found} columns, expected {expected}{header}"
            remedy = "Give every row a value for each column, and put quotes around a text with a comma."
            raise InputError(text, remedy) from None
        # pyarrow's message has the row; ids that are numbers at first and texts later are the usual cause
        remedy = "Every row needs the same columns and kinds: ids all whole numbers, or all texts (quote the numbers)."
        if isinstance(error, OSError | EOFError | zlib.error):
            remedy = "Copy or write the file again."
        raise InputError(f"{path}: {str(error).splitlines()[0]}", remedy) from None


def no_memory(path: Path) -> InputError:
    """Return the error for a file whose content is larger than the free memory, as of an archive made to be so."""
    remedy = "Check how large it is when unpacked. Leave rows or columns out, or use a computer with more memory."
    return InputError(f"{path}: the content does not fit in memory ({free_memory() / 1e9:.1f} GB is free)", remedy)


def _no_numbers(path: Path, columns: list[str]) -> set[str]:
    """Columns in whose first rows a number would not be written as it stands there."""
    with _text(path) as file:
        header = next(rows := _rows(file), [])
        places = [(name, header.index(name)) for name in columns]
        some = itertools.islice(rows, LOOKED_AT)
        found = ((name, row[at]) for row in some for name, at in places if at < len(row))
        return {name for name, value in found if not NUMBER.fullmatch((value or "0").strip())}


def _rows(file: IO[str]) -> Iterator[list[str]]:
    return csv.reader(iter(lambda: file.readline(LONGEST_LINE), ""))


def _text(path: Path) -> IO[str]:
    encoding = "utf-8-sig"  # a mark of byte order before the first name, as Excel writes it, is no part of the name
    return gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding)


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns; of a text, what its first line says."""
    from pyarrow import ArrowInvalid, parquet

    try:
        if path.suffix == ".parquet":
            names = parquet.ParquetFile(path).schema_arrow.names
        else:
            with _text(path) as file:
                names = next(_rows(file), [])
    except (ArrowInvalid, OSError, UnicodeDecodeError, EOFError, csv.Error, zlib.error) as error:
        remedy = "A text is to be UTF-8; one that was cut off, or is of another kind, has to be written again."
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}", remedy) from None
    if not names:
        raise InputError(f"{path}: the first line is empty", "It needs the names of the columns.")
    if len(names) > len(set(names)):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise InputError(f"{path}: two columns are called {twice!r}", "Rename one, or leave it out.")
    return names


class NodeTable:
    """The table of nodes: ids, labels and splits are read at once, features when they are needed."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.path, self.columns = path, columns_of(path)
        if "id" not in self.columns:
            raise InputError(f"{path} has the columns {', '.join(self.columns)}", "One of them has to be id.")
        self.ids: Any = pa.chunked_array([each.column("id") for each in pieces(path, ["id"], names=True)])
        self.ids = self.ids.combine_chunks()
        if len(self.ids) == 0:
            raise InputError(f"{path}: there is no node in it")
        if not (pa.types.is_integer(self.ids.type) or pa.types.is_string(self.ids.type)):
            text = f"{path}: column id has {self.ids.type}, expected whole numbers or texts"
            raise InputError(text, "Write the ids as one of these.")
        if self.ids.null_count:
            place = place_in(path, pc.index(self.ids.is_null(), True).as_py())
            raise InputError(f"{place}: a node has no id", "Give it one, or remove the row.")
        if pc.count_distinct(self.ids).as_py() < len(self.ids):
            seen = pc.value_counts(self.ids)
            twice = seen.filter(pc.greater(seen.field("counts"), 1))[0]["values"]
            again = np.flatnonzero(pc.equal(self.ids, twice))[1]
            raise InputError(f"{place_in(path, again)}: {twice} is listed more than once", "One row for each node.")

    def column(self, name: str) -> pa.Array | None:
        import pyarrow as pa

        if name not in self.columns:
            return None
        return pa.chunked_array([each.column(name) for each in pieces(self.path, [name])]).combine_chunks()

    def features(self) -> np.ndarray | None:
        """All other columns, float32 (N, F), in one pass over the file; None where there are none."""
        names = [name for name in self.columns if name not in ("id", "label", "split")]
        if not names:
            return None
        if 4 * len(self.ids) * len(names) > free_memory():
            raise no_memory(self.path)
        out, row = np.empty((len(self.ids), len(names)), np.float32), 0
        for batch in pieces(self.path, names):
            rows = out[row : row + len(batch)]
            for k, column in enumerate(batch.columns):
                try:
                    rows[:, k] = column.cast("float32", safe=False).to_numpy(zero_copy_only=False)
                except Exception:
                    remedy = "Features are numbers: leave the column out, or write a column of 0 and 1 for each value."
                    text = f"{self.path}: column {names[k]} has {column.type}, which is no feature"
                    raise InputError(text, remedy) from None
            if not (finite := np.isfinite(rows)).all():
                at, k = divmod(int(finite.argmin()), len(names))
                remedy = "Every node needs a number there: fill the gap, or leave the column out."
                text = f"{place_in(self.path, row + at)}: {names[k]} is empty or not a finite number"
                raise InputError(text, remedy)
            row += len(batch)
        return out
