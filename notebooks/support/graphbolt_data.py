"""Our ``Dataset`` as a data set on disk that ``dgl.graphbolt.OnDiskDataset`` reads.

graphbolt_folder   Dataset -> a folder below data/cache, made once and then reused
load_graphbolt     that folder -> graph, features and the three item sets
graphbolt_has_cuda may GraphBolt's steps run on a GPU here
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_lib.data import Dataset, default_root
from tutorial_lib.errors import InputError
from tutorial_lib.files import alone_in, graph_name_of, new_folder, remove_new_folders

VERSION = 1  # part of the folder's name: raise it with every change of what is written
SETS = {"train_set": "train_mask", "validation_set": "val_mask", "test_set": "test_mask"}
SIZES = "sizes.json"


def graphbolt_folder(dataset: Dataset, *, root: str | Path | None = None) -> Path:
    """The folder of a data set in GraphBolt's format; made if it is not there.

    It is ``root/cache/graphbolt-<name>-<fingerprint>-v1``: equal content gives the same folder. It is written beside
    its place and renamed, so it is there whole or not at all, also when several processes ask at once. A folder in
    which a file is missing or has another size is made again.

    In it: ``metadata.yaml``, the arrays that it names (edges int64 (2, E), ``feat`` float32 (N, F), and per split the
    ids int64 (n,) and labels int64 (n,)), and ``preprocessed/``, which DGL makes of them: the graph in CSC form and ids
    as int32 where they fit. Both need about as much room as the data set.

    Args:
        dataset: with features.
        root: folder that holds caches; ``data/`` by default.

    Raises:
        InputError: no features, or the folder cannot be written.
    """
    if dataset.num_features == 0:
        raise InputError(f"{dataset.name}: has no node features, GraphBolt's feature store would be empty")
    cache = (Path(root).expanduser() if root is not None else default_root()) / "cache"
    name = f"graphbolt-{graph_name_of(dataset.name)}-{dataset.fingerprint()[:16]}-v{VERSION}"
    folder = cache / name
    if is_whole(folder):
        return folder
    try:
        with alone_in(cache) as alone:
            if alone:  # then a temporary folder is that of a killed process
                remove_new_folders(cache, f".{name}.tmp-")
            if not is_whole(folder):
                _make(dataset, folder)
    except OSError as error:
        raise InputError(
            f"cannot write {folder}: {error}", "Name a folder with root=... that can be written."
        ) from None
    return folder


def load_graphbolt(folder: str | Path, *, in_memory: bool = True) -> Any:
    """Open a folder of ``graphbolt_folder``; returns a loaded ``OnDiskDataset``.

    Its ``graph`` is a ``FusedCSCSamplingGraph``, its ``feature`` a feature store with ("node", None, "feat"), its
    only task has ``train_set``, ``validation_set`` and ``test_set`` with the names seed_nodes and labels.

    DGL's own check is left out: it compares checksums by path, preprocesses a folder again that was moved, and first
    deletes what other processes may be reading.

    Args:
        in_memory: False maps the features from their file, so that all processes that do so share one copy. Do not
            write to them then: that would change the file.

    Raises:
        InputError: no such folder, or not whole.
    """
    import dgl.graphbolt as gb

    folder = Path(folder)
    if not is_whole(folder):
        raise InputError(f"{folder} is not a whole GraphBolt data set", "Make it with graphbolt_folder(dataset).")
    with contextlib.redirect_stdout(io.StringIO()):  # "The dataset is already preprocessed."
        on_disk = gb.OnDiskDataset(str(folder), force_preprocess=False)
    for feature in on_disk.yaml_data["feature_data"]:
        feature["in_memory"] = in_memory
    return on_disk.load()


def graphbolt_has_cuda() -> bool:
    """Whether this GraphBolt can work on a GPU. The one on PyPI is built without CUDA and lacks the operators."""
    import dgl.graphbolt  # noqa: F401  (loads the operators)
    import torch

    return hasattr(torch.ops.graphbolt, "set_max_uva_threads")


def is_whole(folder: Path) -> bool:
    """Every file that was written is there with its size. (Content is not read.)"""
    try:
        sizes = json.loads((folder / SIZES).read_text())
        return {name: (folder / name).stat().st_size for name in sizes} == sizes
    except (OSError, ValueError, TypeError):
        return False


def _make(dataset: Dataset, folder: Path) -> None:
    """Write beside the folder, then rename; a damaged folder makes way."""
    temporary = new_folder(folder.parent, f".{folder.name}.tmp-")
    try:
        _write(dataset, temporary)
        if os.path.lexists(folder):
            os.rename(folder, temporary / "damaged")
        os.rename(temporary, folder)
        shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(dataset: Dataset, folder: Path) -> None:
    """The raw arrays and metadata.yaml, then what DGL makes of them, then the sizes."""
    import dgl.graphbolt as gb
    import yaml

    graph = dataset.graph
    np.save(folder / "edges.npy", np.stack([ends.numpy() for ends in graph.edges(order="eid")]))
    np.save(folder / "feat.npy", graph.ndata["feat"].numpy())
    task: dict[str, Any] = {"name": "node_classification", "num_classes": dataset.num_classes}
    for set_name, mask in SETS.items():
        ids = graph.ndata[mask].nonzero().flatten()
        task[set_name] = [{"data": []}]
        for item, values in (("seed_nodes", ids), ("labels", graph.ndata["label"][ids])):
            path = f"{set_name}-{item}.npy"
            np.save(folder / path, values.numpy())
            task[set_name][0]["data"].append({"name": item, "format": "numpy", "path": path})
    metadata = {
        "dataset_name": dataset.name,
        "graph": {"nodes": [{"num": graph.num_nodes()}], "edges": [{"format": "numpy", "path": "edges.npy"}]},
        "feature_data": [{"domain": "node", "name": "feat", "format": "numpy", "path": "feat.npy"}],
        "tasks": [task],
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata, sort_keys=False))
    with contextlib.redirect_stdout(io.StringIO()):
        gb.OnDiskDataset(str(folder))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    (folder / SIZES).write_text(json.dumps(sizes, indent=1) + "\n")
