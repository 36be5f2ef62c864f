"""Where the data of a run come from: which data set, and where its cache and its partitions are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data import DEFAULT_SCALE, Dataset, check_arguments, default_root, load_dataset
from tutorial_lib.files import graph_name_of
from tutorial_lib.partition import (
    AUTO,
    FORMAT_VERSION,
    METHODS,
    PREFERENCE,
    Partition,
    choose_method,
    parse_memory,
    partition_dataset,
)


@dataclass(frozen=True)
class DataSource:
    """Which data set to load, and where its cache and its partitions are kept.

    Attributes:
        scale, seed: of the data set; the seed also decides a partition that needs one.
        root: folder of caches and partitions; None: the default one.
        method, max_memory: of partitioning, see ``partition_dataset``.
    """

    name: str
    scale: float = DEFAULT_SCALE
    seed: int = 0
    root: Path | None = None
    method: str = AUTO
    max_memory: int | str | None = None

    def __post_init__(self) -> None:
        parse_memory(self.max_memory)  # a mistake in it is said before anything is loaded

    def check(self) -> None:
        """Find a wrong name or scale without loading anything.

        Raises:
            InputError: it is.
        """
        check_arguments(self.name, self.scale, self.seed)

    def load(self, *, features: bool = True) -> Dataset:
        """The data set, checked; without ``features``, the graph, its labels and its split alone."""
        dataset = load_dataset(self.name, scale=self.scale, seed=self.seed, root=self.root, features=features)
        if not features and dataset.graph.is_homogeneous:  # with several types, the task's check says what is wrong
            dataset.graph.ndata.pop("feat", None)
        return dataset

    def partition(self, dataset: Dataset, parts: int, say: Callable[[str], None]) -> Partition:
        """The partition folder under ``root/partitions``, written or reused.

        A folder that is there is taken, with ``auto`` whichever of its methods made it: how much memory is free today
        does not decide whether a graph is cut again.
        """
        fingerprint = dataset.fingerprint()[:12]
        folders = {method: self._folder(fingerprint, parts, method) for method in METHODS}
        wanted = PREFERENCE if self.method == AUTO else (self.method,)
        there = [method for method in wanted if method in folders and folders[method].exists()]
        choice = None if there else choose_method(dataset.graph, parts, self.method, self.max_memory)
        method = choice.method if choice else there[0]
        return partition_dataset(
            dataset,
            parts,
            folders[method],
            method=method,
            seed=self.seed,
            max_memory=self.max_memory,
            choice=choice,
            progress=say,
        )

    def _folder(self, fingerprint: str, parts: int, method: str) -> Path:
        """One folder for everything that decides what is in it."""
        key = f"{graph_name_of(self.name)}-{fingerprint}-{parts}-{method}"
        if method != "metis":  # which has no seed
            key += f"-seed{self.seed}"
        key += f"-v{FORMAT_VERSION}"
        if graphbolt_problem() is not None:  # a torch that has it would miss the parts in its format
            key += "-without-graphbolt"
        return (self.root or default_root()) / "partitions" / key
