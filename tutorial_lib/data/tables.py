"""Read arrays, tables and nodes of the user's files. Every error names the file, and the line if possible."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from tutorial_lib.data.base import MASKS, random_split
from tutorial_lib.errors import InputError, print_to_stderr
from tutorial_lib.files import JsonObject

TABLES = (".csv", ".csv.gz", ".parquet")
SPLITS = {"train": 0, "valid": 1, "val": 1, "validation": 1, "test": 2, "": 3}
FIELDS = ("feat", "label", *MASKS)
SPLIT = "column split"  # name of the array with the content of this column
MOST_CLASSES = 1_000_000  # the model has a row of weights for each class
BLOCK_BYTES = 128 << 20  # bytes of a CSV file that are parsed together
FIRST_BYTES = 4 << 20  # first bytes of a CSV file. They decide whether a column of IDs has integers
BATCH_ROWS = 1 << 22  # rows of a parquet file that are read together
INTEGER = r"^\s*((0|-?[1-9]\d*(\.\d*)?)?)\s*$"
REMEDY = "Use UTF-8 and the same columns in every row. IDs are integers below 2**63, or strings that are all in quotes."
IDS = "node_ids.parquet"  # file in a partition folder
Ids = range | pa.Array  # the array has integers or strings


def row_name(path: Path, row: int) -> str:
    """Return the path and the line of a CSV file, or the path and the row (from 0 on) of another file."""
    return f"{path}, row {row}" if path.suffix in (".parquet", ".npy") else f"{path}, line {row + 2}"


def find_one_file(folder: Path, stem: str, endings: tuple[str, ...]) -> Path | None:
    paths = [path for ending in endings if (path := folder / f"{stem}{ending}").is_file()]
    if len(paths) > 1:
        raise InputError(f"{folder} has both {' and '.join(path.name for path in paths)}", "Keep only one of them.")
    return paths[0] if paths else None


@contextlib.contextmanager
def input_error(path: Path | str, remedy: str, problem: str = "cannot be read") -> Iterator[None]:
    """Turn the errors of the libraries that read files into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # numpy, scipy, pyarrow, yaml, pydantic and zipfile have different errors
        reason = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)  # str(error) is only the key
        raise InputError(f"{path}: {problem}: {' '.join(reason.split())[:300]}", remedy) from None


def read_array(path: Path) -> np.ndarray:
    """Map an array of numbers from an .npy file. Writing into the array does not change the file."""
    with input_error(path, "Save an array of numbers with numpy.save."):
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.ndim == 0:
            raise ValueError(f"the content is {getattr(array, 'dtype', 'an archive')}, expected an array of numbers")
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_column_names(path: Path) -> list[str]:
    with input_error(path, REMEDY):
        return (parquet.read_schema(path) if path.suffix == ".parquet" else _open_csv(path).schema).names


def read_table(path: Path, columns: list[str], ids: list[str]) -> dict[str, pa.Array]:
    """Read columns of a table. IDs become int64, or dictionary-encoded if they are strings, such as 007 or NA."""
    chunks: dict[str, list[pa.Array]] = {name: [] for name in columns}
    rows = size = 0
    with input_error(path, REMEDY):
        for batch in _batches(path, columns, ids):
            for name, arrays in chunks.items():
                arrays.append(_as_ids(path, rows, name, batch[name]) if name in ids else batch[name])
                size += arrays[-1].nbytes
            rows += len(batch)
            if size > psutil.virtual_memory().available:  # the tensors of the table will need about the same memory
                raise ValueError("the content does not fit in memory. Remove rows or columns")
        if not rows:
            raise ValueError("the file has no rows")
        return {name: pa.concat_arrays(arrays) if arrays[1:] else arrays[0] for name, arrays in chunks.items()}


def _batches(path: Path, columns: list[str], ids: list[str]) -> Iterable[pa.RecordBatch]:
    if path.suffix == ".parquet":
        return parquet.ParquetFile(path).iter_batches(BATCH_ROWS, columns=columns)
    head = next(iter(_open_csv(path, ids, ids)), None)
    is_integer = {} if head is None else {name: pc.match_substring_regex(head[name], INTEGER) for name in ids}
    text_columns = [name for name, matches in is_integer.items() if not pc.all(matches, min_count=0).as_py()]
    return _open_csv(path, columns, text_columns, BLOCK_BYTES)


def _open_csv(path: Path, columns: Iterable[str] = (), texts: Iterable[str] = (), block: int = FIRST_BYTES) -> Any:
    read = csv.ReadOptions(block_size=block, use_threads=False)  # with threads, pyarrow's errors name no row
    convert = csv.ConvertOptions(include_columns=[*columns], null_values=[""], strings_can_be_null=True)
    convert.column_types = dict.fromkeys(texts, pa.string())
    return csv.open_csv(path, read, convert_options=convert)


def _as_ids(path: Path, rows: int, name: str, column: pa.Array) -> pa.Array:
    if column.null_count:
        location = row_name(path, rows + column.is_null().index(True).as_py())
        raise InputError(f"{location}: the {name} is missing", "Add it, or remove the row.")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string()).dictionary_encode()
    if not pa.types.is_integer(column.type):
        raise ValueError(f"column {name} has {column.type}, expected integers or strings")
    return column.cast(pa.int64())


@dataclass
class NodeTable:
    """The nodes of one type. If ``ids`` is None, the edges define the nodes. Errors name the path ``where``."""

    where: Path
    ids: Any = None  # ``Ids``, or None before they are known
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # a row for each node: FIELDS, SPLIT, and other data
    class_names: list[str] = field(default_factory=list)  # empty if the labels are numbers

    def labels(self) -> np.ndarray | None:
        """Return the class of each node (int64, -1 means without a class), or None if the nodes have no labels."""
        if (label := self.arrays.get("label")) is None:
            return None
        remedy = "Number the classes from 0 on, and write -1 for a node without a label."
        text = f"{self.where}: label is {label.dtype} of shape {label.shape}, expected integers"
        if label.dtype.kind not in "iuf" or label.shape != (len(self.ids),):
            raise InputError(f"{text} of shape ({len(self.ids)},)", remedy)
        label = np.where(np.isnan(label), -1, label)
        if (invalid := (label >= MOST_CLASSES) | (label != np.floor(label))).any():
            row = int(invalid.argmax())
            raise InputError(f"{text} below {MOST_CLASSES:,}, but node {row} has {label[row]}", remedy)
        return np.maximum(label.astype(np.int64), -1)

    def split(self, seed: int, info: JsonObject) -> np.ndarray | None:
        """Return 0 (train), 1 (valid), 2 (test) or 3 (no split) per node: uint8 (N,). Store the source in ``info``."""
        n = len(self.ids)
        masks = [self.arrays[name] for name in MASKS if name in self.arrays]
        if masks:
            info["split"] = "masks"
            valid = len(masks) == 3 and all(mask.shape == (n,) and np.isin(mask, (0, 1)).all() for mask in masks)
            if not valid or (np.sum(masks, axis=0) > 1).any():
                remedy = "Save all three masks, or none. Each has 0 or 1 for each node, and no node is in two masks."
                raise InputError(f"{self.where}: {', '.join(MASKS)} are not disjoint masks of {n} nodes", remedy)
            return np.where(np.any(masks, axis=0), np.argmax(masks, axis=0), len(MASKS)).astype(np.uint8)
        if SPLIT in self.arrays:
            info["split"] = "nodes"
            return self.arrays[SPLIT]
        if "label" not in self.arrays:
            return None
        info |= {"split": [0.6, 0.2, 0.2], "seed": seed}
        return random_split(np.random.RandomState(seed).permutation(n))  # numpy never changes these numbers


def read_nodes(path: Path) -> NodeTable:
    """Read the nodes of one type from a folder or from a table. Arrays replace the columns of a table."""
    nodes, table = NodeTable(path), path
    if path.is_dir():
        unknown = {file.name for file in path.glob("*.npy")} - {"edges.npy", *(f"{name}.npy" for name in FIELDS)}
        if unknown and not (path / "graph.yaml").exists():
            print_to_stderr(f"warning: {path}: {', '.join(sorted(unknown))} is not read, see docs/own-graph.md")
        table = find_one_file(path, "nodes", TABLES)
        nodes.arrays = {name: read_array(file) for name in FIELDS if (file := path / f"{name}.npy").is_file()}
    if table is not None:
        _read_node_table(table, nodes)
    for name, array in nodes.arrays.items():
        nodes.ids = range(len(array)) if nodes.ids is None else nodes.ids
        if len(array) != len(nodes.ids):
            text = f"{path}: {name} has {len(array):,} rows, and there are {len(nodes.ids):,} nodes"
            raise InputError(text, "Each file has a row for each node, in the same order.")
    return nodes


def _read_node_table(file: Path, nodes: NodeTable) -> None:
    names = read_column_names(file)
    if "id" not in names:
        raise InputError(f"{file} has the columns {', '.join(names)}", "One column must be named id.")
    table = read_table(file, names, ["id"])
    label, split = table.pop("label", None), table.pop("split", None)
    ids = table.pop("id")
    nodes.ids = ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    counts = pc.value_counts(ids)
    if dupes := counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist():
        row = np.flatnonzero(pc.equal(ids, dupes[0]))[1]
        raise InputError(f"{row_name(file, row)}: {dupes[0]} is listed more than once", "Write one row for each node.")
    if table and "feat" not in nodes.arrays:
        nodes.arrays["feat"] = np.empty((len(ids), len(table)), np.float32)
        for number, (name, column) in enumerate(table.items()):
            with input_error(f"{file}, column {name}", "Leave it out, or write a column of 0 and 1 for each value."):
                nodes.arrays["feat"][:, number] = column.cast("float32", safe=False).to_numpy(zero_copy_only=False)
    if label is not None and "label" not in nodes.arrays:
        with input_error(f"{file}, column label", "Write one class for each node, as an integer or a string."):
            if not pa.types.is_integer(label.type):
                classes = pc.unique(label.drop_null()).sort()
                nodes.class_names = [str(name) for name in classes]
                label = pc.index_in(label, value_set=classes)
            nodes.arrays["label"] = label.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    if split is not None:
        numbers = [SPLITS.get(str(word or "").lower()) for word in split.to_pylist()]
        if None in numbers:
            row = numbers.index(None)
            raise InputError(f"{row_name(file, row)}: unknown split {split[row]}", "Use train, valid, test or nothing.")
        nodes.arrays[SPLIT] = np.array(numbers, np.uint8)


def write_ids(folder: Path, ids: pa.Array) -> None:
    """Write the user's node IDs, in the order of the data set, into a partition folder."""
    parquet.write_table(pa.table({"id": ids}), folder / IDS)


def read_ids(folder: Path) -> pa.Array | None:
    return parquet.read_table(folder / IDS)["id"].combine_chunks() if (folder / IDS).exists() else None


def write_named_predictions(out: Path, ids: pa.Array, classes: list[str]) -> None:
    """Write ``predictions.npy`` as ``predictions.csv`` with IDs. If ``classes`` is not empty, write class names."""
    rows = np.load(out / "predictions.npy")
    values = pa.array(classes).take(pa.array(rows)) if classes else rows
    columns = {"prediction": values} if rows.ndim == 1 else {f"prediction_{k}": row for k, row in enumerate(rows.T)}
    csv.write_csv(pa.table({"id": ids, **columns}), out / "predictions.csv")
