"""From a data set to a finished partition folder: choose a method, cut, write, count, seal with checksums."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutorial_lib.compat.generators import seed_dgl
from tutorial_lib.compat.heap import fixed_fresh_memory
from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data.base import Dataset
from tutorial_lib.data.named import write_ids
from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of, output_to, write_json
from tutorial_lib.partition.folder import Partition, checksums_of, load_partition_folder, unfinished_folder
from tutorial_lib.partition.memory import AUTO, METHODS, PREFERENCE, Choice, choose_method
from tutorial_lib.partition.methods import Say, assign, cannot_cut, check_no_empty_part
from tutorial_lib.partition.report import count_partition
from tutorial_lib.partition.split import NODE_TYPE, add_wide, write_parts
from tutorial_lib.partition.types import part_of_original, type_counts

FORMAT_VERSION = 1


def dataset_description(dataset: Dataset) -> dict[str, Any]:
    """What a partition and a result say about their data set; of several types, also which one is classified."""
    found = {"name": dataset.name, "num_classes": dataset.num_classes, "num_features": dataset.num_features}
    if dataset.is_heterogeneous:
        found |= {"target": dataset.target, "node_types": type_counts(dataset.structure)["nodes"]}
    return found | dataset.info


def partition_dataset(
    dataset: Dataset,
    parts: int,
    out: str | Path,
    *,
    method: str = AUTO,
    balance_train: bool = True,
    seed: int = 0,
    max_memory: int | str | None = None,
    choice: Choice | None = None,
    progress: Say = lambda _text: None,
) -> Partition:
    """Cut a data set and write the folder ``out``; a folder made from the same input is reused.

    Args:
        parts: number of parts, one per machine.
        method: ``metis`` (few cut edges; DGL does it), ``multilevel`` (as few, in a fraction of the memory),
            ``streaming`` (simpler; more cut edges), ``random`` (many; to see what the others are good for), or
            ``auto``: the first of the first two that fits in the memory. What is chosen is said through ``progress``.
        balance_train: also give each part the same number of training nodes.
        seed: of all methods but METIS, which has none: DGL fixes it, see ``fixed_fresh_memory``.
        max_memory: the most that this process may use, in bytes or as a text such as ``12GB``. None: what it has and
            80 % of what is free.
        choice: what ``choose_method`` said, from a caller that has asked already; its method is ``method``.

    Raises:
        InputError: wrong arguments; nothing fits in the memory; ``out`` holds something else, or a damaged partition
            (the file is named).
    """
    out = Path(out).resolve()  # what a link leads to can be replaced by the finished folder; the link cannot
    if method not in (AUTO, *METHODS):
        raise InputError(f"unknown partition method {method!r}", f"Known: {AUTO}, {', '.join(METHODS)}.")
    if not 1 <= parts <= dataset.structure.num_nodes():
        raise InputError(f"cannot cut {dataset.structure.num_nodes()} nodes into {parts} parts")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder", "Choose another --out.")
    wanted = {
        "format": FORMAT_VERSION,
        "fingerprint": dataset.fingerprint(),
        "parts": parts,
        "method": method,
        "balance_train": balance_train,
        "seed": seed,
    }
    if out.exists() and any(out.iterdir()):
        return _reuse(out, wanted, progress)
    if os.path.ismount(out):
        raise InputError(f"{out} is a mount point, which the finished folder cannot replace", f"Try --out {out}/parts.")
    choice = choice or choose_method(dataset.structure, parts, method, max_memory, dataset.wide)
    progress(choice.reason)
    return _write_partition(dataset, _settled(wanted, choice.method), choice, out, progress)


def _settled(wanted: dict[str, Any], method: str) -> dict[str, Any]:
    """What is wanted, with the method that it came to; METIS has no seed."""
    return {**wanted, "method": method, "seed": None if method == "metis" else wanted["seed"]}


def _reuse(out: Path, wanted: dict[str, Any], progress: Say) -> Partition:
    """The partition in ``out`` if it is the wanted one; ``auto`` takes what any of its methods has made."""
    found = load_partition_folder(out)
    made = found.manifest.get("method")
    method = made if wanted["method"] == AUTO and made in PREFERENCE else wanted["method"]
    problem = ""
    if any(found.manifest.get(key) != value for key, value in _settled(wanted, method).items()):
        problem = "holds a partition of other data or with other options"
    elif graphbolt_problem() is None and not found.has_graphbolt:
        problem = "was made without GraphBolt's files, which are needed here"
    if problem:
        raise InputError(f"{out} {problem}", "Remove it, or choose another --out.")
    progress(f"reusing {out}")
    return Partition(out, found.manifest, reused=True)


def _write_partition(dataset: Dataset, wanted: dict[str, Any], choice: Choice, out: Path, progress: Say) -> Partition:
    graph, parts, method = dataset.structure, wanted["parts"], wanted["method"]
    with unfinished_folder(out, progress) as temporary:
        name = graph_name_of(dataset.name)
        progress(f"cutting {graph.num_edges():,} edges into {parts} part(s) ({method})")
        if choice.by_dgl:
            part_of = _by_dgl(dataset, name, wanted, temporary)
        else:

            def say(text: str) -> None:
                progress(text)
                with (temporary / "partition.log").open("a") as log:
                    print(text, file=log)

            train_mask = graph.ndata["train_mask"].numpy() if wanted["balance_train"] else None
            assigned = assign(graph, parts, method, train_mask=train_mask, seed=wanted["seed"], progress=say)
            write_parts(graph, assigned, parts, name, method, temporary, say)
            part_of = {NODE_TYPE: torch.from_numpy(assigned)}
        if dataset.wide:
            progress("writing wide features, dense")
            add_wide(dataset, temporary, name)
        if dataset.ids is not None:
            write_ids(temporary, dataset.ids)
        progress("counting the cut and writing checksums")
        report = count_partition(part_of, dataset, parts, method)
        manifest = {
            **wanted,
            "graph_name": name,
            **({"types": type_counts(graph)} if dataset.is_heterogeneous else {}),
            "dataset": dataset_description(dataset),
            "report": asdict(report),
            "files": checksums_of(temporary),
        }
        write_json(temporary / "manifest.json", manifest)
        try:
            temporary.rename(out)  # takes the place of an empty folder
        except OSError:
            if not (out / "manifest.json").exists():
                raise
            return _reuse(out, wanted, progress)  # another process was quicker
    return Partition(out, manifest)


def _by_dgl(dataset: Dataset, name: str, wanted: dict[str, Any], folder: Path) -> dict[str, torch.Tensor]:
    """Cut and write with ``partition_graph``, in both of its formats where there are both.

    Returns:
        By type of nodes, the part of each node: int64 (N,).
    """
    import dgl

    graph, parts, method = dataset.graph, wanted["parts"], wanted["method"]
    if method == "random":
        seed_dgl(wanted["seed"])
    balance = None
    if wanted["balance_train"] and method == "metis":
        balance = dataset.target_data["train_mask"]
        if dataset.is_heterogeneous:  # each type that the dictionary lacks is balanced as a kind of its own
            balance = {dataset.target: balance.int()}
    with output_to(folder / "partition.log"), fixed_fresh_memory():
        try:
            maps = dgl.distributed.partition_graph(
                graph,
                name,
                parts,
                str(folder),
                part_method=method,
                balance_ntypes=balance,
                return_mapping=True,
                use_graphbolt=graphbolt_problem() is None,
            )
        except (dgl.DGLError, IndexError, KeyError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            if isinstance(error, (IndexError, KeyError)):
                reason = f"a part without nodes or edges, which DGL cannot write ({reason})"
            raise cannot_cut(graph.num_nodes(), parts, method, reason) from error
    if not dataset.is_heterogeneous:
        maps = [{kind: new} for kind, new in zip((NODE_TYPE, graph.canonical_etypes[0]), maps, strict=True)]
    for of, new, kinds in zip(("node", "edge"), maps, (graph.ntypes, graph.canonical_etypes), strict=True):
        np.save(folder / f"{of}_map.npy", np.concatenate([new[kind].numpy() for kind in kinds]))
    part_of = part_of_original(folder / f"{name}.json", maps[0])
    if not dataset.is_heterogeneous:
        check_no_empty_part(part_of[NODE_TYPE].numpy(), parts, method)
    return part_of
