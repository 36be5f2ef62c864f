"""The data of a run, and the folders of its cache and its partitions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.data import DEFAULT_SCALE, Dataset, check_arguments, default_root, load_dataset
from tutorial_lib.files import graph_name_of

if TYPE_CHECKING:  # --help does not import torch
    from tutorial_lib.partition import Partition


@dataclass(frozen=True)
class DataSource:
    """A data set by name or path, and the folder of its cache and its partitions.

    Attributes:
        name: one of synthetic-products, synthetic-academic, ogbn-products, ogbn-arxiv, amazon-computers, amazon-photo,
            or the path of your graph (a folder, a file of dgl.save_graphs, or an .npz file).
        scale: size of a generated data set, 0.002 to 1.0, or up to 8 for synthetic-products. 1.0 has 2.4M nodes.
        seed: seed of data, partition and training.
        root: folder of downloads, caches and partitions. (default: data/)
        method: kaminpar, random, or an .npy file with the part of each node.
        both_ways: add the reverse of each edge of your graph.
    """

    name: str = "synthetic-products"
    scale: float = DEFAULT_SCALE
    seed: int = 0
    root: Path | None = None
    method: str = "kaminpar"
    both_ways: bool = False

    def check(self) -> None:
        """Check the name and the scale without loading anything."""
        check_arguments(self.name, self.scale, self.seed)

    def load(self, *, features: bool = True) -> Dataset:
        options = {"scale": self.scale, "seed": self.seed, "root": self.root, "both_ways": self.both_ways}
        dataset = load_dataset(self.name, features=features, **options)
        if not features and dataset.structure.is_homogeneous:  # the task's check reports several types
            dataset.structure.ndata.pop("feat", None)
        return dataset

    def partition(
        self, dataset: Dataset, parts: int, say: Callable[[str], None], folder: Path | None = None
    ) -> "Partition":
        """Write or reuse the partition in ``folder``, by default in a folder of ``root/partitions``."""
        from tutorial_lib.partition.folder import FORMAT_VERSION, available_method, partition_dataset

        if folder is None:  # the name contains all inputs of the partition
            key = f"{graph_name_of(self.name)}-{dataset.fingerprint()[:12]}-{parts}-{available_method(self.method)}"
            folder = (self.root or default_root()) / "partitions" / f"{key}-seed{self.seed}-v{FORMAT_VERSION}"
        return partition_dataset(dataset, parts, folder, method=self.method, seed=self.seed, log=say)
