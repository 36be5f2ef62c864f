"""Read tables in blocks and give the nodes consecutive IDs, with one block in memory (lesson 17)."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv


def read_batches(path, columns, block_bytes=1 << 18):
    """Yield a pair for each block of a CSV file: the line of its first row, and a ``pyarrow.RecordBatch`` of strings.

    The header is line 1, so the first pair has line 2. The file has no empty lines. The batch has the given columns in
    the given order. All of them have the type ``pa.string()``, so ``007`` and ``NA`` keep their form. Only an empty
    cell is null. Iterate over ``csv.open_csv(path, read_options=..., convert_options=...)``, and set ``block_size`` of
    ``csv.ReadOptions`` and ``include_columns``, ``column_types``, ``null_values`` and ``strings_can_be_null`` of
    ``csv.ConvertOptions``. Do not collect the batches in a list, because the memory holds only one of them.
    """
    read = csv.ReadOptions(block_size=block_bytes)
    convert = csv.ConvertOptions(include_columns=columns, null_values=[""], strings_can_be_null=True)
    convert.column_types = dict.fromkeys(columns, pa.string())
    line = 2
    for batch in csv.open_csv(path, read_options=read, convert_options=convert):
        yield line, batch
        line += len(batch)


def collect_ids(path, columns, block_bytes=1 << 18):
    """Return the distinct values of some columns of a CSV file, a sorted ``pa.Array`` of strings without null.

    This is the first of two passes. Read the file with ``read_batches``. The memory holds a block and the distinct
    values of the rows so far.
    """
    known = pa.array([], pa.string())
    for _, batch in read_batches(path, columns, block_bytes):
        for column in batch.columns:
            known = pc.unique(pa.concat_arrays([known, column]))
    return known.drop_null().sort()


def read_node_ids(path, block_bytes=1 << 18):
    """Return the values of column ``id`` of a table of nodes, a sorted ``pa.Array`` of strings.

    Raises:
        ValueError: an ID occurs twice, or the ID is missing. The message names the path, the line, and the ID of the
            first such row, as in ``nodes.csv, line 4: '007' is listed more than once``, or ``nodes.csv, line 4: the id
            is missing``.
    """
    seen = set()
    for line, batch in read_batches(path, ["id"], block_bytes):
        for row, name in enumerate(batch["id"].to_pylist(), line):
            if name is None:
                raise ValueError(f"{path}, line {row}: the id is missing")
            if name in seen:
                raise ValueError(f"{path}, line {row}: {name!r} is listed more than once")
            seen.add(name)
    return pa.array(sorted(seen), pa.string())


def number_ids(ids, column, path, line):
    """Return the position of each value of ``column`` in the sorted array ``ids``, an int64 NumPy array.

    ``pc.index_in`` returns null for a value that it does not find.

    Args:
        column: ``pa.Array`` of strings, a column of a batch.
        path, line: file and line of the first row of the batch, for the message.

    Raises:
        ValueError: a value is null or not among the IDs. The message names the path, the line and the value of the
            first such row, as in ``edges.csv, line 12: no node has the ID 'x9'``. For null, the value is ``None``.
    """
    positions = pc.index_in(column, value_set=ids)
    if positions.null_count:
        row = positions.is_null().index(True).as_py()
        raise ValueError(f"{path}, line {line + row}: no node has the ID {column[row].as_py()!r}")
    return positions.to_numpy().astype(np.int64)


def write_chunks(path, ids, folder, block_bytes=1 << 18):
    """Number the edges of a table and write one file for each block. Return the list of the files in their order.

    This is the second pass. The files are ``folder / "0.npy"``, ``folder / "1.npy"`` and so on. ``np.save`` writes an
    int64 array of shape (E, 2) with the numbers of ``src`` and ``dst``. The rows keep their order, also duplicates.
    """
    files = []
    for line, batch in read_batches(path, ["src", "dst"], block_bytes):
        columns = [number_ids(ids, column, path, line) for column in batch.columns]
        files.append(folder / f"{len(files)}.npy")
        np.save(files[-1], np.stack(columns, axis=1))
    return files
