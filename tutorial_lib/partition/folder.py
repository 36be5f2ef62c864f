"""Partition folders: ``partition_dataset`` writes a folder, and ``load_partition_folder`` opens and verifies it."""

import json
import os
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from tutorial_lib.data.base import MASKS, Dataset
from tutorial_lib.data.tables import write_ids
from tutorial_lib.errors import InputError, Log
from tutorial_lib.files import JsonObject, check_file, graph_name_of, sha256_of, sibling_folder, write_json

FORMAT = 1  # version of the files
IdMap = np.ndarray | dict[str, np.ndarray]  # for each type if there are several


@dataclass(frozen=True)
class PartitionReport:
    """Sizes and edge cut of a partition. The lists have an entry for each part."""

    parts: int
    method: str
    nodes: list[int]
    edges: list[int]  # an edge belongs to the part of its destination
    train_nodes: list[int]
    halo_nodes: list[int]  # nodes of other parts at which an edge of the part starts. The files can hold more
    edge_cut: int
    edge_cut_share: float


class Partition:
    """A partition folder that has been written or verified. ``config`` is DGL's ``part_config`` file."""

    def __init__(self, folder: Path, manifest: JsonObject) -> None:
        self.folder, self.manifest, self.reused = folder, manifest, False
        self.graph_name: str = manifest["graph_name"]
        self.config = folder / f"{self.graph_name}.json"
        self.report = PartitionReport(*(manifest["report"][field.name] for field in fields(PartitionReport)))
        self.has_graphbolt = "part0/fused_csc_sampling_graph.pt" in manifest["files"]

    @cached_property
    def node_map(self) -> IdMap:
        """int64 (N,): original ID of each new node ID. With several types: an array of type-wise IDs for each type."""
        return self._map("node")

    @cached_property
    def edge_map(self) -> IdMap:
        """int64 (E,): original ID of each new edge ID, or a dictionary with keys like ``paper:cites:paper``."""
        return self._map("edge")

    def _map(self, kind: str) -> IdMap:
        if not (file := self.folder / f"{kind}_map.npy").exists():  # see writer.MOST_MAPPED
            raise InputError(f"{file} is missing, because the generated graph is large", "Use a smaller --scale.")
        original_ids = np.load(file)
        if "types" not in self.manifest:
            return original_ids
        counts = self.manifest["types"][f"{kind}s"]
        return dict(zip(counts, np.split(original_ids, np.cumsum(list(counts.values()))[:-1]), strict=True))


def type_counts(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Return the numbers of nodes and edges of each type, in the order in which the ID maps hold the types."""
    graph = dataset.structure
    edges = {":".join(relation): graph.num_edges(relation) for relation in graph.canonical_etypes}
    return {"nodes": {name: graph.num_nodes(name) for name in graph.ntypes}, "edges": edges}


def dataset_description(dataset: Dataset) -> JsonObject:
    """Return the entry ``dataset`` of manifests and results."""
    description = {"name": dataset.name, "num_classes": dataset.num_classes, "num_features": dataset.num_features}
    description["masks"] = all(name in dataset.target_data for name in MASKS)
    if not dataset.structure.is_homogeneous:
        description |= {"target": dataset.target, "node_types": type_counts(dataset)["nodes"]}
    return description | dataset.info


def method_name(method: str) -> str:
    """Return the name of a method in manifests. For a file, it contains the beginning of the checksum."""
    if method.endswith(".npy"):
        if not (file := Path(method)).is_file():
            raise InputError(f"--method {method}: there is no such file", "Use kaminpar, random or an existing file.")
        return f"file-{sha256_of(file)[:12]}"
    if method not in ("kaminpar", "random"):
        remedy = "Use --method kaminpar, random or FILE.npy. Lesson 04 calls DGL's METIS itself."
        raise InputError(f"the partition method {method} does not exist", remedy)
    return method


def partition_dataset(
    dataset: Dataset, parts: int, out: str | Path, *, method: str = "kaminpar", seed: int = 0, log: Log = lambda _: None
) -> Partition:
    """Cut a data set into parts and write the folder ``out``. A folder made from the same input is reused.

    Args:
        parts: number of parts, one per machine.
        out: folder to write. It appears only when it is complete.
        method: ``kaminpar`` (few cut edges, balanced training nodes), ``random`` (many cut edges, for comparisons), or
            the path of an .npy file with the part of each node, with the node types one after the other.
        seed: equal seeds give equal partitions.
        log: receives one sentence for each stage.
    """
    out = Path(out).resolve()  # the finished folder can replace the target of a link, but not the link
    name, n = method_name(method), dataset.structure.num_nodes()
    if not 1 <= parts <= n:
        raise InputError(f"cannot cut {n} nodes into {parts} parts", f"Use 1 to {n} parts.")
    inputs = {"format": FORMAT, "fingerprint": dataset.fingerprint(), "parts": parts, "method": name, "seed": seed}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        return _reuse(out, inputs, log)
    if os.path.ismount(out):
        raise InputError(f"{out} is a mount point, which the finished folder cannot replace", f"Try --out {out}/parts.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with sibling_folder(out) as folder:
            try:
                manifest = _write_folder(dataset, inputs, method, folder, log)
            except Exception:
                # numpy, DGL and torch report a full disk in different ways. This write raises the kernel's error.
                (folder / "probe").write_bytes(bytes(1 << 20))
                raise
            try:
                folder.rename(out)  # this replaces an empty folder
            except OSError:
                return _reuse(out, inputs, log)  # another process finished first
    except OSError as error:
        remedy = "Free space there, or choose another folder: --out for partition, --root for train."
        raise InputError(f"cannot write the partition {out}: {error.strerror or error}", remedy) from error
    return Partition(out, manifest)


def _reuse(out: Path, inputs: JsonObject, log: Log) -> Partition:
    partition = load_partition_folder(out)
    if any(partition.manifest.get(key) != value for key, value in inputs.items()):
        raise InputError(f"{out} holds a partition of other data or options", "Remove it, or choose another --out.")
    log(f"reusing {out}")
    partition.reused = True
    return partition


def _write_folder(dataset: Dataset, inputs: JsonObject, method: str, folder: Path, log: Log) -> JsonObject:
    from tutorial_lib.partition.assign import assign_nodes, type_offsets

    graph, parts, name = dataset.structure, inputs["parts"], graph_name_of(dataset.name)
    log(f"cutting {graph.num_edges():,} edges into {parts} part(s) ({inputs['method']})")
    train = np.flatnonzero(dataset.target_data.get("train_mask", [])) + type_offsets(dataset)[dataset.target]
    part_of = assign_nodes(dataset, parts, method, folder, train, inputs["seed"])
    from tutorial_lib.partition.writer import Writer  # only now, because DGL takes 2 s and 80 MB

    log("numbering nodes and edges part by part")
    counts = Writer(dataset, part_of, parts, folder).write(name, inputs["method"], log)
    if dataset.ids is not None:
        write_ids(folder, dataset.ids)
    log("counting the cut and writing checksums")
    counts["train_nodes"] = np.bincount(part_of[train], minlength=parts).tolist()
    counts["edge_cut_share"] = counts["edge_cut"] / graph.num_edges()
    report = PartitionReport(parts, inputs["method"], **counts)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in paths}
    manifest = {
        **inputs,
        "graph_name": name,
        **({} if graph.is_homogeneous else {"types": type_counts(dataset)}),
        "dataset": dataset_description(dataset),
        "report": asdict(report),
        "files": files,
    }
    write_json(folder / "manifest.json", manifest)
    return manifest


def load_partition_folder(folder: str | Path, *, checksums: bool = True, part: int | None = None) -> Partition:
    """Open a partition folder and compare each file with the manifest.

    Args:
        checksums: also compare contents, not only sizes. The contents of node_map.npy are always compared.
        part: on a machine that has only the files of its own part, the number of this part.
    """
    folder = Path(folder).absolute()
    try:
        partition = Partition(folder, json.loads((folder / "manifest.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{folder} is not a partition folder with a manifest.json", "Choose another folder.") from None
    others = tuple(f"part{k}/" for k in range(partition.report.parts) if part is not None and k != part)
    for name, expected in partition.manifest["files"].items():
        path = folder / name
        digest = expected["sha256"] if checksums or name == "node_map.npy" else None
        if not name.startswith(others) and (problem := check_file(path, expected["bytes"], digest)):
            raise InputError(f"damaged partition: {path} {problem}", f"Remove {folder} and partition again.")
    return partition
