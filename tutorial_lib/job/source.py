"""The data of a run, and the folders of its cache and its partitions."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.data import AMAZON_STEMS, DEFAULT_SCALE, Dataset, default_root, load_dataset
from tutorial_lib.errors import Log
from tutorial_lib.files import graph_name_of, replace_file
from tutorial_lib.launcher.environment import package_digest
from tutorial_lib.partition import Partition, load_partition_folder, partition_dataset
from tutorial_lib.partition.folder import FORMAT, method_name


@dataclass(frozen=True)
class DataSource:
    """A data set by name or path, and the folder of its cache and its partitions.

    Attributes:
        name: One of synthetic-products, synthetic-academic, ogbn-products, ogbn-arxiv, amazon-computers, amazon-photo,
            or the path of your graph (a folder, a file of dgl.save_graphs, or an .npz file).
        scale: Size of a generated data set, 0.002 to 1.0, or up to 8 for synthetic-products. 1.0 has 2.4M nodes.
        seed: Seed of data, partition and training.
        root: Folder of downloads, caches and partitions. (default: data/)
        method: kaminpar, random, or an .npy file with the part of each node.
        both_ways: Add the reverse of each edge of your graph.
    """

    name: str = "synthetic-products"
    scale: float = DEFAULT_SCALE
    seed: int = 0
    root: Path | None = None
    method: str = "kaminpar"
    both_ways: bool = False

    def load(self, *, features: bool = True, download: bool = False) -> Dataset:
        options = {"scale": self.scale, "seed": self.seed, "root": self.root, "add_reverse_edges": self.both_ways}
        dataset = load_dataset(self.name, features=features, download=download, **options)
        if not features and dataset.structure.is_homogeneous:  # the task's check reports several types
            dataset.structure.ndata.pop("feat", None)
        return dataset

    def partition(self, dataset: Dataset, parts: int, log: Log) -> Partition:
        """Write or reuse the partition in a folder of ``root/partitions``, whose name contains all of its inputs."""
        name_file = self._name_file(parts, features=dataset.num_features > 0 or not dataset.structure.is_homogeneous)
        name = f"{graph_name_of(self.name)}-{dataset.fingerprint()[:12]}-{parts}-{method_name(self.method)}"
        out = name_file.with_name(f"{name}-seed{self.seed}-v{FORMAT}")
        partition = partition_dataset(dataset, parts, out, method=self.method, seed=self.seed, log=log)
        with replace_file(name_file) as file:
            file.write(out.name.encode())
        return partition

    def find_partition(self, parts: int, *, features: bool) -> Partition | None:
        """Return the partition of this data set without loading the data set, if ``partition`` has made it before."""
        name_file = self._name_file(parts, features=features)
        folder = name_file.with_name(name_file.read_text()) if name_file.is_file() else name_file
        return load_partition_folder(folder, checksums=False) if folder.is_dir() else None  # machines compare them

    def _name_file(self, parts: int, *, features: bool = True) -> Path:
        """Return the path of a file with the name of a partition. It depends on options, code, and times of files."""
        root = self.root or default_root()
        path = Path(self.name).expanduser()
        stem = AMAZON_STEMS.get(self.name, self.name.replace("-", "_"))
        paths = [path, *path.rglob("*")] if path.exists() else [*root.glob(f"{stem}*"), *root.glob(f"{stem}/**/*")]
        files = sorted((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in paths if file.is_file())
        method = method_name(self.method)
        options = (self.name, self.scale, self.seed, method, self.both_ways, parts, features, package_digest())
        digest = hashlib.sha256(repr((options, files)).encode()).hexdigest()
        return root / "partitions" / f".{digest[:32]}"
