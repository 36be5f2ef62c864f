"""From a data set to a finished partition folder: assign nodes, write parts, count the cut, add checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data.base import Dataset
from tutorial_lib.data.named import write_ids
from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of, write_json
from tutorial_lib.partition.assign import DEFAULT_METHOD, assign_nodes, available_method
from tutorial_lib.partition.folder import Partition, checksums_of, load_partition_folder, unfinished_folder
from tutorial_lib.partition.report import count_partition, type_counts
from tutorial_lib.partition.writer import Writer

FORMAT_VERSION = 1


def dataset_description(dataset: Dataset) -> dict[str, Any]:
    """Return what manifests and results record about their data set."""
    found = {"name": dataset.name, "num_classes": dataset.num_classes, "num_features": dataset.num_features}
    if dataset.is_heterogeneous:
        found |= {"target": dataset.target, "node_types": type_counts(dataset.structure)["nodes"]}
    return found | dataset.info


def partition_dataset(
    dataset: Dataset,
    parts: int,
    out: str | Path,
    *,
    method: str = DEFAULT_METHOD,
    balance_train: bool = True,
    seed: int = 0,
    log: Callable[[str], None] = lambda _text: None,
) -> Partition:
    """Cut a data set into parts and write the folder ``out``. A folder made from the same input is reused.

    Args:
        parts: number of parts, one per machine.
        out: folder to write. It appears only when it is complete.
        method: ``kaminpar`` (few cut edges), ``random`` (many cut edges, for comparisons), or the path of an .npy file
            with the part of each node, see ``assign_nodes``.
        balance_train: let no KaMinPar part hold more than 3 % above its share of training nodes.
        seed: equal seeds give equal partitions.
        log: receives one sentence for each stage.

    Raises:
        InputError: an argument is wrong, or ``out`` holds something else or a damaged partition.
    """
    out = Path(out).resolve()  # the finished folder can replace the target of a link, but not the link
    recorded = available_method(method, log)
    if not 1 <= parts <= dataset.structure.num_nodes():
        raise InputError(f"cannot cut {dataset.structure.num_nodes()} nodes into {parts} parts")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder", "Choose another --out.")
    wanted = {
        "format": FORMAT_VERSION,
        "fingerprint": dataset.fingerprint(),
        "parts": parts,
        "method": recorded,
        "balance_train": balance_train,
        "seed": seed,
    }
    if out.exists() and any(out.iterdir()):
        return _reuse(out, wanted, log)
    if os.path.ismount(out):
        raise InputError(f"{out} is a mount point, which the finished folder cannot replace", f"Try --out {out}/parts.")
    return _write_partition(dataset, wanted, method if method.endswith(".npy") else recorded, out, log)


def _reuse(out: Path, wanted: dict[str, Any], log: Callable[[str], None]) -> Partition:
    found = load_partition_folder(out)
    problem = ""
    if any(found.manifest.get(key) != value for key, value in wanted.items()):
        problem = "holds a partition of other data or with other options"
    elif graphbolt_problem() is None and not found.has_graphbolt:
        problem = "was made without GraphBolt's files, which are needed here"
    if problem:
        raise InputError(f"{out} {problem}", "Remove it, or choose another --out.")
    log(f"reusing {out}")
    return Partition(out, found.manifest, reused=True)


def _write_partition(
    dataset: Dataset, wanted: dict[str, Any], method: str, out: Path, log: Callable[[str], None]
) -> Partition:
    graph, parts = dataset.structure, wanted["parts"]
    with unfinished_folder(out, log) as temporary:
        name = graph_name_of(dataset.name)
        log(f"cutting {graph.num_edges():,} edges into {parts} part(s) ({wanted['method']})")
        train = _train_mask(dataset) if wanted["balance_train"] else None
        part_of = assign_nodes(graph, parts, method, temporary, train=train, seed=wanted["seed"])
        log("numbering nodes and edges part by part")
        Writer(dataset, part_of, parts, temporary).write(name, wanted["method"], log)
        if dataset.ids is not None:
            write_ids(temporary, dataset.ids)
        log("counting the cut and writing checksums")
        sizes = [graph.num_nodes(kind) for kind in graph.ntypes]
        by_type = dict(zip(graph.ntypes, torch.from_numpy(part_of).split(sizes), strict=True))
        manifest = {
            **wanted,
            "graph_name": name,
            **({"types": type_counts(graph)} if dataset.is_heterogeneous else {}),
            "dataset": dataset_description(dataset),
            "report": asdict(count_partition(by_type, dataset, parts, wanted["method"])),
            "files": checksums_of(temporary),
        }
        write_json(temporary / "manifest.json", manifest)
        try:
            temporary.rename(out)  # this replaces an empty folder
        except OSError:
            if not (out / "manifest.json").exists():
                raise
            return _reuse(out, wanted, log)  # another process finished first
    return Partition(out, manifest)


def _train_mask(dataset: Dataset) -> np.ndarray | None:
    """Return which nodes are training nodes, with the node types one after the other: bool of shape (N,), or None."""
    graph = dataset.structure
    if "train_mask" not in dataset.target_data:
        return None
    mask = dataset.target_data["train_mask"].numpy()
    return np.concatenate(
        [mask if kind == dataset.target else np.zeros(graph.num_nodes(kind), bool) for kind in graph.ntypes]
    )
