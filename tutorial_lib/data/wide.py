"""Wide features, thousands of columns of which nearly all are 0 in a row: words, tags, items. They stay sparse.

    feat.npz                          a matrix (N, F) of ``scipy.sparse.save_npz``, in the order of the nodes
    feat.csv | .csv.gz | .parquet     a row ``id,feature`` or ``id,feature,value`` for each entry that is not 0

DGL knows dense features only. ``Dataset.wide`` has these as they are; a partition gets them dense, a part at a time,
and a process that trains alone has them dense as a whole.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import sparse

from tutorial_lib.data.ends import Names, read_ends
from tutorial_lib.data.tables import columns_of, pieces
from tutorial_lib.errors import InputError


def matrix_in(path: Path, n: int) -> sparse.csr_array:
    """float32 (n, F) from a file of scipy's."""
    try:
        matrix = sparse.csr_array(sparse.load_npz(path), dtype=np.float32)
        matrix.check_format(full_check=True)
    except (ValueError, OSError, KeyError, TypeError) as error:
        text = f"{path}: no sparse matrix: {str(error).splitlines()[0]}"
        raise InputError(text, "Save it with scipy.sparse.save_npz.") from None
    if matrix.shape[0] != n:
        raise InputError(f"{path} is of shape {matrix.shape}, and there are {n} nodes", "It needs a row for each.")
    return matrix


def listed_in(path: Path, nodes: Names) -> sparse.csr_array:
    """float32 (N, F) from its entries; an entry that is there twice is their sum.

    Features are numbered as nodes are: whole numbers from 0 on are their columns, others are sorted.
    """
    features = Names()
    ends = read_ends([path], nodes, features, words=(("id",), ("feature",)))
    features.settle()
    where = tuple(map(np.concatenate, ends))
    data = np.ones(len(where[0]), np.float32)
    if "value" in columns_of(path):
        try:
            values = [batch.column("value").cast("float32", safe=False) for batch in pieces(path, ["value"])]
        except (ValueError, NotImplementedError):  # pyarrow's errors are of these kinds
            raise InputError(f"{path}: column value is not of numbers") from None
        data = np.concatenate([value.to_numpy(zero_copy_only=False) for value in values])
    return sparse.csr_array((data, where), shape=(len(nodes), len(features)))
