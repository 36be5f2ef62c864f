"""A data set cut into parts that DGL's servers load, with ID maps, a counted report and checksums.

The folder::

    NAME.json            DGL's description of the parts (``part_config``), paths relative to it
    part0/, part1/, ...  graph.dgl and fused_csc_sampling_graph.pt (GraphBolt), node and edge features
    node_map.npy         int64 (N,): original id of new node i    (DGL renumbers nodes part by part)
    edge_map.npy         int64 (E,): original id of new edge i
    manifest.json        what it was made from, the report, size and SHA-256 of every file
    partition.log        what DGL and METIS printed
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutorial_lib.datasets.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of, output_to, sha256_of, write_json
from tutorial_lib.reproducible import fixed_fresh_memory
from tutorial_lib.stack import graphbolt_problem

FORMAT_VERSION = 1
METHODS = ("metis", "random")


@dataclass(frozen=True)
class PartitionReport:
    """What the cut costs. Counted from the edges: ``partition_graph`` itself prints "0 edge cuts".

    Attributes:
        nodes, edges, train_nodes: per part, owned ones; an edge belongs to the part of its destination.
        halo_nodes: per part, nodes of other parts that an owned edge starts from.
        edge_cut: edges whose two ends lie in different parts.
        edge_cut_share: ``edge_cut`` divided by all edges.
    """

    parts: int
    method: str
    nodes: list[int]
    edges: list[int]
    train_nodes: list[int]
    halo_nodes: list[int]
    edge_cut: int
    edge_cut_share: float


def count_partition(part_of: torch.Tensor, dataset: Dataset, parts: int, method: str) -> PartitionReport:
    """Count a report from ``part_of``, the part of each original node, int64 of shape (N,)."""
    src, dst = dataset.graph.edges(order="eid")
    n = dataset.graph.num_nodes()
    edge_part = part_of[dst]
    cut = part_of[src] != edge_part
    halo = torch.unique(edge_part[cut] * n + src[cut]) // n

    def per_part(owner: torch.Tensor) -> list[int]:
        return torch.bincount(owner, minlength=parts).tolist()

    edge_cut = int(cut.sum())
    return PartitionReport(
        parts=parts,
        method=method,
        nodes=per_part(part_of),
        edges=per_part(edge_part),
        train_nodes=per_part(part_of[dataset.graph.ndata["train_mask"]]),
        halo_nodes=per_part(halo),
        edge_cut=edge_cut,
        edge_cut_share=edge_cut / len(src),
    )


@dataclass(frozen=True)
class Partition:
    """A partition folder that has been written or checked."""

    folder: Path
    manifest: dict[str, Any]
    reused: bool = False

    @property
    def graph_name(self) -> str:
        """Name under which servers and trainers know the graph."""
        return self.manifest["graph_name"]

    @property
    def config(self) -> Path:
        """DGL's ``part_config`` file."""
        return self.folder / f"{self.graph_name}.json"

    @property
    def report(self) -> PartitionReport:
        """Counts and cut."""
        return PartitionReport(**self.manifest["report"])

    @cached_property
    def node_map(self) -> np.ndarray:
        """int64 (N,): original id of each new node id."""
        return np.load(self.folder / "node_map.npy")

    @cached_property
    def node_map_inverse(self) -> np.ndarray:
        """int64 (N,): new id of each original node id."""
        return _inverse(self.node_map)

    @cached_property
    def edge_map(self) -> np.ndarray:
        """int64 (E,): original id of each new edge id."""
        return np.load(self.folder / "edge_map.npy")

    @cached_property
    def edge_map_inverse(self) -> np.ndarray:
        """int64 (E,): new id of each original edge id."""
        return _inverse(self.edge_map)


def _inverse(permutation: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def dataset_description(dataset: Dataset) -> dict[str, Any]:
    """What a partition and a result say about their data set."""
    return {
        "name": dataset.name,
        "num_classes": dataset.num_classes,
        "num_features": dataset.num_features,
        **dataset.info,
    }


def partition_dataset(
    dataset: Dataset,
    parts: int,
    out: str | Path,
    *,
    method: str = "metis",
    balance_train: bool = True,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> Partition:
    """Cut a data set and write the folder ``out``; a folder made from the same input is reused.

    Args:
        parts: number of parts, one per machine.
        method: ``metis`` (few cut edges) or ``random`` (many; to see what METIS is good for).
        balance_train: let METIS also give each part the same number of training nodes.
        seed: of the random method. METIS has none: DGL fixes it, see ``fixed_fresh_memory``.

    Raises:
        InputError: wrong arguments; ``out`` holds something else, or a damaged partition (the file is named).
    """
    out = Path(out).absolute()
    if method not in METHODS:
        raise InputError(f"unknown partition method {method!r}", f"Known: {', '.join(METHODS)}.")
    if not 1 <= parts <= dataset.graph.num_nodes():
        raise InputError(f"cannot cut {dataset.graph.num_nodes()} nodes into {parts} parts")
    wanted = {
        "format": FORMAT_VERSION,
        "fingerprint": dataset.fingerprint(),
        "parts": parts,
        "method": method,
        "balance_train": balance_train,
        "seed": seed if method == "random" else None,
    }
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder", "Choose another --out.")
    if out.exists() and any(out.iterdir()):
        return _reuse(out, wanted, progress)
    return _write_partition(dataset, wanted, out, progress)


def _reuse(out: Path, wanted: dict, progress: Callable[[str], None]) -> Partition:
    found = load_partition_folder(out)
    if any(found.manifest.get(key) != value for key, value in wanted.items()):
        raise InputError(
            f"{out} holds a partition of other data or with other options", "Remove it, or choose another --out."
        )
    progress(f"reusing {out}")
    return Partition(out, found.manifest, reused=True)


def _write_partition(dataset: Dataset, wanted: dict, out: Path, progress: Callable[[str], None]) -> Partition:
    out.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed: a folder with the final name is always complete.
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        temporary.chmod(0o755)
        name = graph_name_of(dataset.name)
        progress(f"cutting {dataset.graph.num_edges():,} edges into {wanted['parts']} part(s) ({wanted['method']})")
        node_map, edge_map = _run_dgl(dataset, name, wanted, temporary)
        np.save(temporary / "node_map.npy", node_map.numpy())
        np.save(temporary / "edge_map.npy", edge_map.numpy())
        progress("counting the cut and writing checksums")
        part_of = _part_of_original(temporary / f"{name}.json", node_map)
        report = count_partition(part_of, dataset, wanted["parts"], wanted["method"])
        manifest = {
            **wanted,
            "graph_name": name,
            "dataset": dataset_description(dataset),
            "report": asdict(report),
            "files": _checksums(temporary),
        }
        write_json(temporary / "manifest.json", manifest)
        try:
            temporary.rename(out)  # takes the place of an empty folder
        except OSError:
            if not (out / "manifest.json").exists():
                raise
            return _reuse(out, wanted, progress)  # another process was quicker
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Partition(out, manifest)


def _run_dgl(dataset: Dataset, name: str, wanted: dict, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Both of DGL's formats, or its own alone on a torch without GraphBolt."""
    import dgl

    if wanted["method"] == "random":
        dgl.seed(wanted["seed"])
    balance = dataset.graph.ndata["train_mask"] if wanted["balance_train"] and wanted["method"] == "metis" else None
    with output_to(folder / "partition.log"), fixed_fresh_memory():
        try:
            return dgl.distributed.partition_graph(
                dataset.graph,
                name,
                wanted["parts"],
                str(folder),
                part_method=wanted["method"],
                balance_ntypes=balance,
                return_mapping=True,
                use_graphbolt=graphbolt_problem() is None,
            )
        except dgl.DGLError as error:
            raise InputError(
                f"{wanted['method']} could not cut {dataset.graph.num_nodes()} nodes into {wanted['parts']} parts: "
                f"{str(error).strip().splitlines()[-1]}",
                "Try fewer parts, or --method random.",
            ) from error


def _part_of_original(config: Path, node_map: torch.Tensor) -> torch.Tensor:
    """Part of each original node; new ids are contiguous within a part."""
    (ranges,) = json.loads(config.read_text())["node_map"].values()
    part_of = torch.empty_like(node_map)
    for part, (first, end) in enumerate(ranges):
        part_of[node_map[first:end]] = part
    return part_of


def _checksums(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in files}


def load_partition_folder(folder: str | Path, *, checksums: bool = True, part: int | None = None) -> Partition:
    """Open a partition folder and check every file of it against the manifest.

    Args:
        checksums: also compare contents, not only sizes.
        part: on a machine that has a copy of its own part only: the parts of the others may be missing.

    Raises:
        InputError: no manifest, a file is missing, has another size or other content; the file is named.
    """
    folder = Path(folder).absolute()
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        files = manifest["files"]
    except FileNotFoundError:
        raise InputError(f"{folder} is not a partition folder: it has no manifest.json") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder}/manifest.json is damaged", f"Remove {folder} and partition again.") from None
    others = () if part is None else tuple(f"part{k}/" for k in range(manifest["report"]["parts"]) if k != part)
    for name, expected in files.items():
        path = folder / name
        if name.startswith(others):
            continue
        if not path.is_file():
            problem = "is missing"
        elif path.stat().st_size != expected["bytes"]:
            problem = f"has {path.stat().st_size} bytes, expected {expected['bytes']}"
        elif checksums and sha256_of(path) != expected["sha256"]:
            problem = "has other content than when it was written (checksum)"
        else:
            continue
        raise InputError(f"damaged partition: {path} {problem}", f"Remove {folder} and partition again.")
    return Partition(folder, manifest)
