"""Where the data of a run come from: which data set, and where its cache and its partitions are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.data import DEFAULT_SCALE, Dataset, check_arguments, default_root, load_dataset
from tutorial_lib.files import graph_name_of

if TYPE_CHECKING:  # the command line's help does not wait for torch
    from tutorial_lib.partition import Partition


@dataclass(frozen=True)
class DataSource:
    """Which data set to load, and where its cache and its partitions are kept.

    Attributes:
        name: one of synthetic-products, synthetic-academic, ogbn-products, ogbn-arxiv, amazon-computers, amazon-photo,
            or the path of a graph of your own: a folder, a file of dgl.save_graphs, or an .npz file.
        scale: size of a generated data set, 0.002 to 1.0 (1.0: 2.4M nodes); synthetic-products to 8.
        seed: seed of data, partition and training.
        root: folder of downloads, caches and partitions. (default: data/)
        method: auto, metis, multilevel, streaming or random.
        both_ways: add the reverse of each edge of a graph of your own.
        max_memory: the most that partitioning may use, like 12GB; decides between methods. (default: 80 % of the free)
    """

    name: str
    scale: float = DEFAULT_SCALE
    seed: int = 0
    root: Path | None = None
    method: str = "auto"
    both_ways: bool = False
    max_memory: int | str | None = None

    def __post_init__(self) -> None:
        if self.max_memory is not None:  # a mistake in it is said before anything is loaded
            from tutorial_lib.partition import parse_memory

            parse_memory(self.max_memory)

    def check(self) -> None:
        """Raise an InputError for a wrong name or scale, without loading anything."""
        check_arguments(self.name, self.scale, self.seed)

    def load(self, *, features: bool = True) -> Dataset:
        """The data set, checked; without ``features``, the graph, its labels and its split alone."""
        options = {"scale": self.scale, "seed": self.seed, "root": self.root, "both_ways": self.both_ways}
        dataset = load_dataset(self.name, features=features, **options)
        if not features and dataset.structure.is_homogeneous:  # with several types, the task's check says what is wrong
            dataset.structure.ndata.pop("feat", None)
            dataset.wide.clear()
        return dataset

    def partition(
        self, dataset: Dataset, parts: int, say: Callable[[str], None], folder: Path | None = None
    ) -> Partition:
        """The partition in ``folder``, or in one of its own under ``root/partitions``, written or reused.

        A folder that is there is taken, with ``auto`` whichever of its methods made it: how much memory is free today
        does not decide whether a graph is cut again.
        """
        from tutorial_lib.partition import AUTO, METHODS, PREFERENCE, choose_method, partition_dataset

        options = {"seed": self.seed, "max_memory": self.max_memory, "progress": say}
        if folder is not None:
            return partition_dataset(dataset, parts, folder, method=self.method, **options)
        fingerprint = dataset.fingerprint()[:12]
        folders = {method: self._folder(fingerprint, parts, method) for method in METHODS}
        wanted = PREFERENCE if self.method == AUTO else (self.method,)
        there = [method for method in wanted if method in folders and folders[method].exists()]
        choice = None if there else choose_method(dataset.structure, parts, self.method, self.max_memory, dataset.wide)
        method = choice.method if choice else there[0]
        return partition_dataset(dataset, parts, folders[method], method=method, choice=choice, **options)

    def _folder(self, fingerprint: str, parts: int, method: str) -> Path:
        """One folder for everything that decides what is in it."""
        from tutorial_lib.compat.stack import graphbolt_problem
        from tutorial_lib.partition import FORMAT_VERSION

        key = f"{graph_name_of(self.name)}-{fingerprint}-{parts}-{method}"
        if method != "metis":  # which has no seed
            key += f"-seed{self.seed}"
        key += f"-v{FORMAT_VERSION}"
        if graphbolt_problem() is not None:  # a torch that has it would miss the parts in its format
            key += "-without-graphbolt"
        return (self.root or default_root()) / "partitions" / key
