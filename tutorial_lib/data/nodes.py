"""The nodes of one type: what they are called, their features, labels and split, from arrays or from a table.

docs/own-graph.md says which files there may be. Wide features, thousands of columns of which nearly all are 0 in a row,
stay sparse: DGL knows dense features only, so a partition gets them dense, a part at a time, and a process that trains
alone has them dense as a whole.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from tutorial_lib.data.base import MASKS, random_split
from tutorial_lib.data.ends import Names, read_ends
from tutorial_lib.data.tables import TABLES, NodeTable, array_in, columns_of, one_of, pieces, place_in
from tutorial_lib.errors import InputError

SPLITS = {"train": 0, "valid": 1, "val": 1, "validation": 1, "test": 2}
OWN = ("feat", "label", *MASKS)


@dataclass
class Nodes:
    """What is there about the nodes of one type, before any of it is looked at.

    Attributes:
        where: the folder or file that messages name.
        arrays: by name, with a row for each node: ``OWN``, and others that a partition shall have too.
        table: of a folder, or None.
    """

    where: Path
    names: Names
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    table: NodeTable | None = None

    @property
    def has_labels(self) -> bool:
        return "label" in self.arrays or (self.table is not None and "label" in self.table.columns)

    def features(self) -> np.ndarray | sparse.csr_array | None:
        """float32 (N, F), or the same as a sparse matrix; None: there are none."""
        n = len(self.names)
        if "feat" in self.arrays:
            feat = self.arrays["feat"]
            feat = feat[:, None] if feat.ndim == 1 else feat
            if feat.ndim != 2:
                raise InputError(f"{self.where}: feat is {feat.dtype} of shape {feat.shape}, expected numbers (N, F)")
            with contextlib.suppress(MemoryError):
                return np.ascontiguousarray(feat, dtype=np.float32)
            raise InputError(f"{self.where}: features of shape {feat.shape} do not fit in memory as float32")
        if self.where.is_dir() and (path := one_of(self.where, "feat", (".npz", *TABLES))) is not None:
            return _matrix_in(path, n) if path.suffix == ".npz" else _listed_in(path, self.names)
        return None if self.table is None else self.table.features()

    def labels(self) -> tuple[np.ndarray, list[str], np.ndarray]:
        """Class of each node (0 where it has none), names of the classes where they are texts, which have none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if (array := self.arrays.get("label")) is not None:
            array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
            if array.dtype.kind == "f" and (np.isnan(array) | (array == np.floor(array))).all():  # NaN: no label
                array = np.nan_to_num(array, nan=-1).astype(np.int64)
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise InputError(f"{self.where}: label is {array.dtype} {array.shape}, expected whole numbers (N,)")
            none = array < 0
            return np.where(none, 0, array).astype(np.int64), [], none
        column = None if self.table is None else self.table.column("label")
        if column is None:
            there = f"; it has: {', '.join(sorted(self.arrays))}" if self.arrays else ""
            remedy = "They are called label: label.npy, a column of the table of nodes, or node data."
            raise InputError(f"{self.where}: there are no labels{there}", remedy)
        none = column.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_integer(column.type):
            values = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            none = none | (values < 0)
            return np.where(none, 0, values), [], none
        names = pc.unique(column.drop_null())
        names = names.take(pc.sort_indices(names))
        found = pc.index_in(column, value_set=names).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return found, [str(name) for name in names], none

    def split(self, seed: int, facts: dict[str, Any]) -> np.ndarray:
        """0 (train), 1 (valid), 2 (test) or 3 (none) for each node, uint8 (N,); ``facts`` gets where it is from."""
        n = len(self.names)
        masks = {name: self.arrays[name] for name in MASKS if name in self.arrays}
        if masks:
            facts["split"] = "masks"
            return self._by_masks(masks)
        column, place, path = None, np.arange(n), self.where / "split.csv"
        if path.is_file():
            listed = NodeTable(path)
            if (column := listed.column("split")) is None:
                raise InputError(f"{path} has the columns {', '.join(listed.columns)}", "One of them has to be split.")
            place, missing = self.names.places(listed.ids)
            if missing.any():
                at = int(missing.argmax())
                text = f"{place_in(path, at)}: {listed.ids[at]} is not among the nodes"
                raise InputError(text, "Add it there, or leave the row out.")
        elif self.table is not None:
            column, path = self.table.column("split"), self.table.path
        if column is None:
            facts |= {"split": [0.6, 0.2, 0.2], "seed": seed}
            # RandomState: the only numpy generator whose stream is promised never to change.
            return random_split(np.random.RandomState(seed).permutation(n))
        split = np.full(n, len(MASKS), np.uint8)
        for at, word in enumerate(column.to_pylist()):
            if word is not None and word != "":
                if (number := SPLITS.get(str(word).lower())) is None:
                    text = f"{place_in(path, at)}: {word!r} is no split"
                    raise InputError(text, f"Known: {', '.join(SPLITS)}; or nothing, for a node in none.")
                split[place[at]] = number
        facts["split"] = path.name
        return split

    def _by_masks(self, masks: dict[str, np.ndarray]) -> np.ndarray:
        if missing := [name for name in MASKS if name not in masks]:
            raise InputError(f"{self.where} has no {' and no '.join(missing)}", "All three masks are needed, or none.")
        split = np.full(len(self.names), len(MASKS), np.uint8)
        for number, (name, mask) in enumerate(masks.items()):
            mask = mask[:, 0] if mask.ndim == 2 and mask.shape[1] == 1 else mask
            if mask.shape != split.shape or mask.dtype.kind not in "biu" or mask.min() < 0 or mask.max() > 1:
                found = f"{mask.dtype} of shape {mask.shape}"
                text = f"{self.where}: {name} is {found}, expected bool ({len(split)},), or 0 and 1"
                raise InputError(text, "One value for each node, in the order of the nodes.")
            chosen = mask.astype(bool)
            if both := int((split[chosen] < len(MASKS)).sum()):
                text = f"{self.where}: {both} nodes are in more than one split"
                raise InputError(text, "Each is in one of the three, or in none.")
            split[chosen] = number
        return split


def nodes_at(path: Path) -> Nodes:
    """From a folder or from a table: all that is there but wide features, which need the names of the nodes."""
    where, table, arrays = path, path, {}
    if path.is_dir():
        table = one_of(path, "nodes", TABLES)
        arrays = {name: array_in(path / f"{name}.npy") for name in OWN if (path / f"{name}.npy").is_file()}
    read = None if table is None else NodeTable(table)
    counts = {f"{key}.npy": len(array) for key, array in arrays.items()}
    if read is not None:
        counts[read.path.name] = len(read.ids)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        text = f"{where}: different numbers of nodes: {listed}"
        raise InputError(text, "Each has a row for each node, in the same order.")
    without_table = range(max(counts.values())) if counts else None
    return Nodes(where, Names(without_table if read is None else read.ids), arrays, read)


def _matrix_in(path: Path, n: int) -> sparse.csr_array:
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


def _listed_in(path: Path, nodes: Names) -> sparse.csr_array:
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
