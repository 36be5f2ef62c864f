"""Read IDs, features, labels and split of nodes of one type from the user's files. See ``docs/own-graph.md``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorial_lib.data.base import MASKS, random_split
from tutorial_lib.data.tables import TABLES, columns_of, one_of, place_in, read_array, read_table, reading
from tutorial_lib.errors import InputError, to_stderr

SPLITS = {"train": 0, "valid": 1, "val": 1, "validation": 1, "test": 2, "": 3}
FIELDS = ("feat", "label", *MASKS)
SPLIT = "column split"  # name of the array with the content of this column
MOST_CLASSES = 1_000_000  # the model has a row of weights for each class
SPARSE_CLASSES = 10  # more than this number of classes per class with a node suggests a wrong label
KNOWN_FILES = {f"{stem}{ending}" for stem in ("edges", "nodes") for ending in TABLES}
KNOWN_FILES |= {"edges.npy", *(f"{name}.npy" for name in FIELDS)}


@dataclass
class Nodes:
    """The nodes of one type. If ``ids`` is None, the edges name the nodes. Messages contain ``where``."""

    where: Path
    ids: Any = None  # range, or pyarrow array of whole numbers or texts
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # a row for each node: FIELDS, SPLIT, and other data
    class_names: list[str] = field(default_factory=list)  # empty if the labels are numbers

    def labels(self) -> np.ndarray | None:
        """Return the class of each node (int64, -1 means without a class), or None if the nodes have no labels."""
        if (label := self.arrays.get("label")) is None:
            return None
        remedy = "Number the classes from 0 on, and write -1 for a node without a label."
        if label.dtype.kind not in "iuf" or label.shape != (len(self.ids),):
            text = f"label is {label.dtype} of shape {label.shape}, expected whole numbers of shape ({len(self.ids)},)"
            raise InputError(f"{self.where}: {text}", remedy)
        label = np.where(np.isnan(label), -1, label)
        if (wrong := (label >= MOST_CLASSES) | (label != np.floor(label))).any():
            row = int(wrong.argmax())
            text = f"label is {label.dtype}, expected whole numbers below {MOST_CLASSES:,}"
            raise InputError(f"{self.where}: {text}, but node {row} has {label[row]}", remedy)
        row, occur = int(label.argmax()), len(np.unique(label[label >= 0]))
        if label[row] >= SPARSE_CLASSES * max(1, occur):
            text = f"label {label[row]:g} of node {row} makes {label[row] + 1:,.0f} classes, and {occur} of them occur"
            to_stderr(f"warning: {self.where}: {text}\n  {remedy}")
        return np.maximum(label.astype(np.int64), -1)

    def split(self, seed: int, info: dict[str, Any]) -> np.ndarray | None:
        """Return 0 (train), 1 (valid), 2 (test) or 3 (no split) per node: uint8 (N,). Store the source in ``info``."""
        if masks := {name: self.arrays[name] for name in MASKS if name in self.arrays}:
            info["split"] = "masks"
            remedy = "Save all three masks, or none. Each has 0 or 1 for each node, and no node is in two masks."
            if missing := [name for name in MASKS if name not in masks]:
                raise InputError(f"{self.where} has no {' and no '.join(missing)}", remedy)
            values = [*masks.values()]
            fits = {mask.shape for mask in values} == {(len(self.ids),)} and np.isin(values, (0, 1)).all()
            if not fits or (np.sum(values, axis=0) > 1).any():
                kinds = ", ".join(f"{name} {mask.dtype} {mask.shape}" for name, mask in masks.items())
                raise InputError(f"{self.where}: not disjoint masks of {len(self.ids)} nodes: {kinds}", remedy)
            return np.where(np.any(values, axis=0), np.argmax(values, axis=0), len(MASKS)).astype(np.uint8)
        if SPLIT in self.arrays:
            info["split"] = "nodes"
            return self.arrays[SPLIT]
        if "label" not in self.arrays:
            return None
        info |= {"split": [0.6, 0.2, 0.2], "seed": seed}
        # numpy promises only for RandomState that its numbers never change.
        return random_split(np.random.RandomState(seed).permutation(len(self.ids)))


def read_nodes(path: Path) -> Nodes:
    """Read the nodes of one type from a folder or from a table. Arrays replace the columns of a table."""
    nodes, table = Nodes(path), path
    if path.is_dir():
        files = {file.name for file in path.iterdir() if file.name.endswith((*TABLES, ".npy"))}
        if (unknown := files - KNOWN_FILES) and not (path / "graph.yaml").exists():
            remedy = f"The names of the files are {', '.join(sorted(KNOWN_FILES))}."
            to_stderr(f"warning: {path}: {', '.join(sorted(unknown))} is not read\n  {remedy}")
        table = one_of(path, "nodes", TABLES)
        nodes.arrays = {name: read_array(file) for name in FIELDS if (file := path / f"{name}.npy").is_file()}
    if table is not None:
        _read_node_table(table, nodes)
    for name, array in nodes.arrays.items():
        nodes.ids = range(len(array)) if nodes.ids is None else nodes.ids
        if len(array) != len(nodes.ids):
            text = f"{path}: {name} has {len(array):,} rows, and there are {len(nodes.ids):,} nodes"
            raise InputError(text, "Each file has a row for each node, in the same order.")
    return nodes


def _read_node_table(file: Path, nodes: Nodes) -> None:
    names = columns_of(file)
    if "id" not in names:
        raise InputError(f"{file} has the columns {', '.join(names)}", "One of them has to be id.")
    table = read_table(file, names, ["id"])
    ids, label, split = table.pop("id"), table.pop("label", None), table.pop("split", None)
    nodes.ids = ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    counts = pc.value_counts(ids)
    if twice := counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist():
        row = np.flatnonzero(pc.equal(ids, twice[0]))[1]
        raise InputError(f"{place_in(file, row)}: {twice[0]} is listed more than once", "Write one row for each node.")
    if table and "feat" not in nodes.arrays:
        nodes.arrays["feat"] = np.empty((len(ids), len(table)), np.float32)
        for number, (name, column) in enumerate(table.items()):
            with reading(f"{file}, column {name}", "Leave it out, or write a column of 0 and 1 for each value."):
                nodes.arrays["feat"][:, number] = column.cast("float32", safe=False).to_numpy(zero_copy_only=False)
    if label is not None and "label" not in nodes.arrays:
        with reading(f"{file}, column label", "Write one class for each node, as a whole number or a text."):
            nodes.arrays["label"], nodes.class_names = _classes_of(label)
    if split is not None:
        numbers = [SPLITS.get(str(word or "").lower()) for word in split.to_pylist()]
        if None in numbers:
            row = numbers.index(None)
            raise InputError(f"{place_in(file, row)}: {split[row]} is no split", "Write train, valid, test or nothing.")
        nodes.arrays[SPLIT] = np.array(numbers, np.uint8)


def _classes_of(column: pa.Array) -> tuple[np.ndarray, list[str]]:
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False), []
    names = pc.unique(column.drop_null())
    names = names.take(pc.sort_indices(names))
    classes = pc.index_in(column, value_set=names).fill_null(-1)
    return classes.to_numpy(zero_copy_only=False).astype(np.int64), [str(name) for name in names]
