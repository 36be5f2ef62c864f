"""Wide features are sparse until here; DGL's servers load dense ones, so that is what each part gets, one at a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from tutorial_lib.data.base import Dataset
from tutorial_lib.partition.types import taken_apart, type_counts


def add_wide(dataset: Dataset, folder: Path, name: str) -> None:
    """Put them into the files of the nodes' features, as ``feat`` of their type."""
    from dgl.data.utils import load_tensors, save_tensors

    description = json.loads((folder / f"{name}.json").read_text())
    maps = taken_apart(np.load(folder / "node_map.npy"), type_counts(dataset.structure)["nodes"])
    for part in range(description["num_parts"]):
        file = str(folder / description[f"part-{part}"]["node_feats"])
        tensors = load_tensors(file)
        for kind, matrix in dataset.wide.items():
            sizes = np.diff(description["node_map"][kind]).flatten()  # new ids of a type are stretches, part by part
            first = int(sizes[:part].sum())
            tensors[f"{kind}/feat"] = torch.from_numpy(matrix[maps[kind][first : first + sizes[part]]].toarray())
        save_tensors(file, tensors)
