"""Read arrays and tables from files, and read and write IDs. Every error names the file, and the line if possible."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from tutorial_lib.data.memory import free_memory, not_enough_memory
from tutorial_lib.errors import InputError

TABLES = (".csv", ".csv.gz", ".parquet")
BLOCK_BYTES = 128 << 20  # bytes of a CSV file that are parsed together
FIRST_BYTES = 4 << 20  # first bytes of a CSV file. They decide whether a column of IDs has whole numbers
IDS = "node_ids.parquet"  # file in a partition folder
BATCH_ROWS = 1 << 22  # rows of a parquet file that are read together
WHOLE_NUMBER = r"^\s*((0|-?[1-9]\d*(\.\d*)?)?)\s*$"
REMEDY = "Use UTF-8 and the same columns in every row. IDs are whole numbers below 2**63, or all texts in quotes."


def place_in(path: Path, row: int) -> str:
    """Return the path and the line of a CSV file, or the path and the row (from 0 on) of another file."""
    return f"{path}, row {row}" if path.suffix in (".parquet", ".npy") else f"{path}, line {row + 2}"


def one_of(folder: Path, stem: str, endings: tuple[str, ...]) -> Path | None:
    """Return the file with this stem and one of the endings, or None."""
    found = [path for ending in endings if (path := folder / f"{stem}{ending}").is_file()]
    if len(found) > 1:
        raise InputError(f"{folder} has {' and '.join(path.name for path in found)}", "Leave one of them.")
    return found[0] if found else None


@contextlib.contextmanager
def reading(path: Path | str, remedy: str, problem: str = "cannot be read") -> Iterator[None]:
    """Turn the errors of the libraries that read files into an InputError."""
    try:
        yield
    except MemoryError:
        raise not_enough_memory(path) from None
    except InputError:
        raise
    except Exception as error:  # numpy, scipy, pyarrow, yaml, pydantic and zipfile have different errors
        reason = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)  # str(error) is only the key
        raise InputError(f"{path}: {problem}: {' '.join(reason.split())[:300]}", remedy) from None


def read_array(path: Path) -> np.ndarray:
    """Map an array of numbers from an .npy file. Writing into the array does not change the file."""
    with reading(path, "Save an array of numbers with numpy.save."):
        with np.errstate(over="ignore"):  # a damaged header may describe an array of any size
            array = np.load(path, mmap_mode="c", allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim == 0:
            raise ValueError(f"the content is {getattr(array, 'dtype', 'an archive')}, expected an array of numbers")
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def columns_of(path: Path) -> list[str]:
    """Return the names of a table's columns. In a CSV file, these are the first line."""
    with reading(path, REMEDY):
        names = (parquet.read_schema(path) if path.suffix == ".parquet" else _open_csv(path).schema).names
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two columns are called {twice[0]!r}")
        return names


def read_table(path: Path, columns: list[str], ids: list[str]) -> dict[str, pa.Array]:
    """Read columns of a table. IDs become int64, or dictionary-encoded texts if they are texts, such as 007 or NA."""
    found: dict[str, list[pa.Array]] = {name: [] for name in columns}
    rows = size = 0
    with reading(path, REMEDY):
        for batch in _batches(path, columns, ids):
            for name, arrays in found.items():
                arrays.append(_as_ids(path, rows, name, batch[name]) if name in ids else batch[name])
                size += arrays[-1].nbytes
            rows += len(batch)
            if size > free_memory():  # the tensors of the table will need about the same memory
                raise not_enough_memory(path)
        if not rows:
            raise ValueError("there is no row in it")
        return {name: pa.concat_arrays(arrays) if arrays[1:] else arrays[0] for name, arrays in found.items()}


def _batches(path: Path, columns: list[str], ids: list[str]) -> Iterable[pa.RecordBatch]:
    if path.suffix == ".parquet":
        return parquet.ParquetFile(path).iter_batches(BATCH_ROWS, columns=columns)
    first = next(iter(_open_csv(path, ids, ids)), None)
    whole = {} if first is None else {name: pc.match_substring_regex(first[name], WHOLE_NUMBER) for name in ids}
    texts = [name for name, matches in whole.items() if not pc.all(matches, min_count=0).as_py()]
    return _open_csv(path, columns, texts, BLOCK_BYTES)


def _open_csv(path: Path, columns: Iterable[str] = (), texts: Iterable[str] = (), block: int = FIRST_BYTES) -> Any:
    read = csv.ReadOptions(block_size=block, use_threads=False)  # with threads, pyarrow's errors name no row
    convert = csv.ConvertOptions(include_columns=[*columns], null_values=[""], strings_can_be_null=True)
    convert.column_types = dict.fromkeys(texts, pa.string())
    return csv.open_csv(path, read, convert_options=convert)


def _as_ids(path: Path, rows: int, name: str, column: pa.Array) -> pa.Array:
    if column.null_count:
        place = place_in(path, rows + column.is_null().index(True).as_py())
        raise InputError(f"{place}: the {name} is missing", "Add it, or remove the row.")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string()).dictionary_encode()
    if not pa.types.is_integer(column.type):
        raise ValueError(f"column {name} has {column.type}, expected whole numbers or texts")
    return column.cast(pa.int64())


def write_ids(folder: Path, ids: pa.Array) -> None:
    """Write original node IDs, which are in the order of the data set, into a partition folder."""
    parquet.write_table(pa.table({"id": ids}), folder / IDS)


def read_ids(folder: Path) -> pa.Array | None:
    """Return the array that ``write_ids`` wrote, or None if the folder has no such file."""
    return parquet.read_table(folder / IDS)["id"].combine_chunks() if (folder / IDS).exists() else None


def write_named_predictions(out: Path, ids: pa.Array, classes: list[str]) -> None:
    """Write ``predictions.npy`` as ``predictions.csv`` with IDs. If ``classes`` is not empty, write class names."""
    predictions = pa.array(np.load(out / "predictions.npy"))
    values = pa.array(classes).take(predictions) if classes else predictions
    csv.write_csv(pa.table({"id": ids, "prediction": values}), out / "predictions.csv")
