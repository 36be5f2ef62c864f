"""The nodes of one type: what they are called, their features, labels and split, from arrays or from a table.

docs/own-graph.md says which files there may be. Wide features, thousands of columns of which nearly all are 0 in a row,
stay sparse: DGL knows dense features only, so a partition gets them dense, a part at a time, and a process that trains
alone has them dense as a whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from tutorial_lib.data.base import MASKS, random_split
from tutorial_lib.data.ends import Names, read_ends
from tutorial_lib.data.tables import TABLES, NodeTable, array_in, columns_of, no_memory, one_of, pieces, place_in
from tutorial_lib.errors import InputError, to_stderr

SPLITS = {"train": 0, "valid": 1, "val": 1, "validation": 1, "test": 2}
OWN = ("feat", "label", *MASKS)
EXPECTED = tuple(
    [f"{stem}{ending}" for stem in ("edges", "nodes", "feat") for ending in TABLES]
    + [f"{name}.npy" for name in ("edges", *OWN)]
    + ["feat.npz", "split.csv", "graph.yaml", "metadata.json"]
)  # the files that a folder may have
MOST_CLASSES = 1_000_000  # of labels that are numbers: the model has a row of weights for each
SPARSE_CLASSES = 10  # classes for each one that has a node: more of them are a mistake in a label, or ids


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
            with contextlib.suppress(MemoryError), np.errstate(over="ignore"):  # too large: reported as infinite
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
            whole = array.dtype.kind in "iu"
            if array.dtype.kind == "f" and (np.isnan(array) | (array == np.floor(array))).all():  # NaN: no label
                array, whole = np.where(np.isnan(array), -1, array), True
            if array.ndim != 1 or not whole:
                text = f"{self.where}: label is {array.dtype} {array.shape}, expected whole numbers (N,)"
                raise InputError(text, "Write the number of its class for each node, from 0 on, and -1 for none.")
            file = self.where / "label.npy" if self.where.is_dir() else f"{self.where}: label"
            found, none = class_numbers(array, array < 0, lambda row: f"{file}, row {row}")
            return found, [], none
        column = None if self.table is None else self.table.column("label")
        if self.table is None or column is None:
            raise self._no_labels()
        table, none = self.table.path, column.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_integer(column.type):
            values = column.fill_null(0).to_numpy(zero_copy_only=False)
            found, none = class_numbers(values, none | (values < 0), lambda row: place_in(table, row))
            return found, [], none
        if pa.types.is_nested(column.type):
            text = f"{table}: column label has {column.type}, expected whole numbers or texts"
            raise InputError(text, "Write one class for each node.")
        names = pc.unique(column.drop_null())
        names = names.take(pc.sort_indices(names))
        found = pc.index_in(column, value_set=names).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return found, [str(name) for name in names], none

    def _no_labels(self) -> InputError:
        text = f"{self.where}: there are no labels"
        remedy = "They are called label: label.npy, a column of the table of nodes, or node data."
        if self.where.is_dir():
            text += f"; it has: {names_in(self.where)}"
            remedy = f"Write them to label.npy, or to a column label of {', '.join(f'nodes{end}' for end in TABLES)}."
        elif self.table is not None:
            text += f"; it has: {', '.join(self.table.columns)}"
        elif self.arrays:
            text += f"; it has: {', '.join(sorted(self.arrays))}"
        return InputError(text, remedy)

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


def class_numbers(
    values: np.ndarray, none: np.ndarray, place: Callable[[int], object]
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels that are numbers as int64 (N,), with 0 where there is none, and bool (N,): where there is none.

    The model has weights for each number up to the highest. A warning reports a highest number far above the others.

    Args:
        none: bool (N,), true where a node has no label.
        place: returns where the label of a row is, for messages.

    Raises:
        InputError: a number is far too high for a class.
    """
    values = np.where(none, 0, values)
    row, count = int(values.argmax()), len(np.unique(values[~none]))
    text = f"{place(row)}: label {values[row]}"
    remedy = "Correct it, write -1 for a node without a label, or number the classes from 0 on."
    if values[row] >= MOST_CLASSES:
        raise InputError(f"{text} is too high: at most {MOST_CLASSES:,} classes are possible", remedy)
    if (classes := int(values[row]) + 1) > SPARSE_CLASSES * max(1, count):
        to_stderr(f"warning: {text} makes {classes:,} classes, and only {count} of them occur\n  {remedy}")
    return values.astype(np.int64), none


def names_in(folder: Path) -> str:
    """List the files of a folder for a message, with the expected name where one is misspelled."""
    listed = []
    for name in sorted(path.name for path in folder.iterdir()):
        meant = [] if name in EXPECTED else get_close_matches(name, EXPECTED, 1, 0.8)
        listed.append(f"{name} (did you mean {meant[0]}?)" if meant else name)
    return ", ".join([*listed[:8], *(["..."] if listed[8:] else [])]) or "nothing"


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
        stored = sparse.load_npz(path)
        if stored.dtype.kind not in "biuf":
            raise ValueError(f"it holds {stored.dtype}, expected numbers")
        matrix = sparse.csr_array(stored, dtype=np.float32)
        matrix.check_format(full_check=True)
    except MemoryError:
        raise no_memory(path) from None
    except Exception as error:  # numpy, scipy, zipfile and zlib each have their own for a bad file
        text = f"{path}: no sparse matrix: {(str(error).splitlines() or [type(error).__name__])[0]}"
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
