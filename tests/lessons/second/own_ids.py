"""A second solution of own_ids.py, written from its docstrings and public tests."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv


def read_batches(path, columns, block_bytes=1 << 18):
    read = csv.ReadOptions(block_size=block_bytes)
    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types={name: pa.string() for name in columns},
        null_values=[""],
        strings_can_be_null=True,
    )
    line = 2
    for batch in csv.open_csv(path, read_options=read, convert_options=convert):
        yield line, batch
        line += len(batch)


def collect_ids(path, columns, block_bytes=1 << 18):
    values = set()
    for _, batch in read_batches(path, columns, block_bytes):
        for column in batch.columns:
            values.update(pc.unique(column).to_pylist())
    values.discard(None)
    return pa.array(sorted(values), pa.string())


def read_node_ids(path, block_bytes=1 << 18):
    seen = set()
    for first, batch in read_batches(path, ["id"], block_bytes):
        for line, value in enumerate(batch["id"].to_pylist(), first):
            if value is None:
                raise ValueError(f"{path}, line {line}: the id is missing")
            if value in seen:
                raise ValueError(f"{path}, line {line}: {value!r} is listed more than once")
            seen.add(value)
    return pa.array(sorted(seen), pa.string())


def number_ids(ids, column, path, line):
    numbers = pc.fill_null(pc.index_in(column, value_set=ids), -1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(numbers < 0)
    if len(wrong):
        value = column[int(wrong[0])].as_py()
        raise ValueError(f"{path}, line {line + wrong[0]}: no node has the ID {value!r}")
    return numbers.astype(np.int64)


def write_chunks(path, ids, folder, block_bytes=1 << 18):
    files = []
    for line, batch in read_batches(path, ["src", "dst"], block_bytes):
        pairs = np.stack([number_ids(ids, column, path, line) for column in batch.columns], axis=1)
        files.append(folder / f"{len(files)}.npy")
        np.save(files[-1], pairs)
    return files
