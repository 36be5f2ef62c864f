"""The nodes of one type in files of your own: IDs, features, labels and split. docs/own-graph.md lists the files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutorial_lib.data.base import MASKS, random_split
from tutorial_lib.data.memory import not_enough_memory
from tutorial_lib.data.tables import TABLES, one_of, place_in, read_array, read_table
from tutorial_lib.errors import InputError, to_stderr

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = {"train": 0, "valid": 1, "val": 1, "validation": 1, "test": 2}
FIELDS = ("feat", "label", *MASKS)
SPLIT = "column split"  # name of the array that is made of this column of a table
KNOWN_FILES = [f"{stem}{ending}" for stem in ("edges", "nodes") for ending in TABLES]
KNOWN_FILES += [f"{name}.npy" for name in ("edges", *FIELDS)]
MOST_CLASSES = 1_000_000  # the model has a row of weights for each class
SPARSE_CLASSES = 10  # more classes than this for each class with a node are probably a mistake in a label


@dataclass
class Nodes:
    """The nodes of one type.

    Attributes:
        where: folder or file, for messages.
        ids: range, or array of whole numbers or texts. None means that the edges name the nodes.
        arrays: a row for each node by name: ``FIELDS``, ``SPLIT``, and other data for the partition.
        class_names: names of the classes if the labels are texts.
    """

    where: Path
    ids: Any = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    class_names: list[str] = field(default_factory=list)

    def features(self) -> np.ndarray | None:
        """Return the features, float32 of shape (N, F), or None."""
        if (feat := self.arrays.get("feat")) is None:
            return None
        with contextlib.suppress(MemoryError), np.errstate(over="ignore"):  # too large: reported as infinite
            return np.ascontiguousarray(feat[:, None] if feat.ndim == 1 else feat, dtype=np.float32)
        raise not_enough_memory(self.where)

    def labels(self) -> np.ndarray | None:
        """Return the class of each node, int64 with -1 for none, or None if there are no labels.

        A class number far above the number of classes that occur is a warning, or an error from ``MOST_CLASSES`` on.
        """
        if (label := self.arrays.get("label")) is None:
            return None
        label = label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label
        if label.dtype.kind == "f" and (np.isnan(label) | (label == np.floor(label))).all():
            label = np.where(np.isnan(label), -1, label)
        elif label.dtype.kind not in "iu":
            text = f"{self.where}: label is {label.dtype}, expected whole numbers"
            raise InputError(text, "Write the number of its class for each node, from 0 on, and -1 for none.")
        if label.shape != (len(self.ids),):
            raise InputError(f"{self.where}: label has shape {label.shape}, expected ({len(self.ids)},)")
        row, occur = int(label.argmax()), len(np.unique(label[label >= 0]))
        text = f"{self.where}: label {label[row]} of node {row}"
        remedy = "Correct it, write -1 for a node without a label, or number the classes from 0 on."
        if label[row] >= MOST_CLASSES:
            raise InputError(f"{text} is too high: at most {MOST_CLASSES:,} classes are possible", remedy)
        if (classes := int(label[row]) + 1) > SPARSE_CLASSES * max(1, occur):
            to_stderr(f"warning: {text} makes {classes:,} classes, and only {occur} of them occur\n  {remedy}")
        return np.maximum(label.astype(np.int64), -1)

    def split(self, seed: int, info: dict[str, Any]) -> np.ndarray | None:
        """Return 0 (train), 1 (valid), 2 (test) or 3 (none) for each node, uint8 of shape (N,).

        Nodes with labels but without masks or a split get a random split. Without labels there is none. ``info``
        receives the source of the split.
        """
        if any(name in self.arrays for name in MASKS):
            info["split"] = "masks"
            return self._split_by_masks()
        if SPLIT in self.arrays:
            info["split"] = "nodes"
            return self.arrays[SPLIT]
        if "label" not in self.arrays:
            return None
        info |= {"split": [0.6, 0.2, 0.2], "seed": seed}
        # RandomState: the only numpy generator whose stream is promised never to change.
        return random_split(np.random.RandomState(seed).permutation(len(self.ids)))

    def _split_by_masks(self) -> np.ndarray:
        if missing := [name for name in MASKS if name not in self.arrays]:
            raise InputError(f"{self.where} has no {' and no '.join(missing)}", "All three masks are needed, or none.")
        split = np.full(len(self.ids), len(MASKS), np.uint8)
        for number, name in enumerate(MASKS):
            mask = self.arrays[name]
            mask = mask[:, 0] if mask.ndim == 2 and mask.shape[1] == 1 else mask
            if mask.shape != split.shape or mask.dtype.kind not in "biu" or mask.min() < 0 or mask.max() > 1:
                text = f"{self.where}: {name} is {mask.dtype} of shape {mask.shape}, expected bool ({len(split)},)"
                raise InputError(text, "One value for each node, in the order of the nodes.")
            chosen = mask.astype(bool)
            if both := int((split[chosen] < len(MASKS)).sum()):
                raise InputError(f"{self.where}: {both} nodes are in more than one split", "Select each at most once.")
            split[chosen] = number
        return split


def read_nodes(path: Path) -> Nodes:
    """Read the nodes of one type from a folder or from a table. Arrays replace the columns of a table."""
    file, arrays = path, {}
    if path.is_dir():
        _check_names(path)
        file = one_of(path, "nodes", TABLES)
        arrays = {name: read_array(path / f"{name}.npy") for name in FIELDS if (path / f"{name}.npy").is_file()}
    counts = {f"{name}.npy": len(array) for name, array in arrays.items()}
    nodes = Nodes(path, range(max(counts.values())) if counts else None, arrays)
    if file is not None:
        _read_node_table(file, nodes)
        counts[file.name] = len(nodes.ids)
    if len({*counts.values()}) > 1:
        text = f"{path}: different numbers of nodes: {', '.join(f'{name} {count:,}' for name, count in counts.items())}"
        raise InputError(text, "Each has a row for each node, in the same order.")
    return nodes


def _check_names(folder: Path) -> None:
    """Raise an InputError for misspelled files, and for files that earlier versions read."""
    for name in sorted(path.name for path in folder.iterdir()):
        if name == "split.csv":
            raise InputError(f"{folder}/{name} is not read", "Write a column split into nodes.csv, or save masks.")
        if name in {f"feat{ending}" for ending in (".npz", *TABLES)}:
            raise InputError(f"{folder}/{name}: sparse features are not read", "Save an array (N, F) as feat.npy.")
        meant = [] if name in KNOWN_FILES else get_close_matches(name, KNOWN_FILES, 1, 0.8)
        if meant and not (folder / meant[0]).exists():
            raise InputError(f"{folder}/{name} is not read", f"Did you mean {meant[0]}? Or move it away.")


def _read_node_table(file: Path, nodes: Nodes) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = read_table(file, ids=("id",))
    if "id" not in table.column_names:
        raise InputError(f"{file} has the columns {', '.join(table.column_names)}", "One of them has to be id.")
    ids = table["id"].combine_chunks()
    nodes.ids = ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    if pc.count_distinct(ids).as_py() < len(ids):
        counts = pc.value_counts(ids)
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"]
        at = np.flatnonzero(pc.equal(ids, twice))[1]
        raise InputError(f"{place_in(file, at)}: {twice} is listed more than once", "Write one row for each node.")
    names = [name for name in table.column_names if name not in ("id", "label", "split")]
    if names and "feat" not in nodes.arrays:
        nodes.arrays["feat"] = np.empty((len(ids), len(names)), np.float32)
        for k, name in enumerate(names):
            try:
                nodes.arrays["feat"][:, k] = table[name].cast("float32", safe=False).to_numpy()
            except Exception:  # pyarrow and numpy each have their own errors
                text = f"{file}: column {name} has {table[name].type}, which is no feature"
                raise InputError(text, "Leave it out, or write a column of 0 and 1 for each value.") from None
    if "label" in table.column_names and "label" not in nodes.arrays:
        nodes.arrays["label"], nodes.class_names = _label_column(file, table["label"].combine_chunks())
    if "split" in table.column_names:
        nodes.arrays[SPLIT] = np.full(len(ids), len(MASKS), np.uint8)
        for at, word in enumerate(table["split"].to_pylist()):
            if word and str(word).lower() not in SPLITS:
                text = f"{place_in(file, at)}: {word!r} is no split"
                raise InputError(text, f"Known: {', '.join(SPLITS)}; or nothing, for a node in none.")
            nodes.arrays[SPLIT][at] = SPLITS[str(word).lower()] if word else len(MASKS)


def _label_column(file: Path, column: pa.Array) -> tuple[np.ndarray, list[str]]:
    """Return the class of each node, with -1 for none, and the names of the classes if the labels are texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_nested(column.type):
        text = f"{file}: column label has {column.type}, expected whole numbers or texts"
        raise InputError(text, "Write one class for each node.")
    if pa.types.is_integer(column.type):
        return column.fill_null(-1).to_numpy(zero_copy_only=False), []
    names = pc.unique(column.drop_null())
    names = names.take(pc.sort_indices(names))
    found = pc.index_in(column, value_set=names).fill_null(-1)
    return found.to_numpy(zero_copy_only=False).astype(np.int64), [str(name) for name in names]
