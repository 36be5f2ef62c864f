"""A graph of eight nodes, files of graphs, and real data outside the repository.

A test that needs real data skips without it.
"""

import os
from pathlib import Path

import dgl
import numpy as np
import pytest
import torch

from tutorial_lib.data import Dataset


def shared_data(*parts: str) -> Path:
    """Return a file or folder of the shared test data, or skip the calling test if the data are missing.

    The data are in the folder TUTORIAL_SHARED_DATA, by default ``shared/data`` next to the repository. They can be
    read-only, so copy them for loaders that write into their folder.
    """
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("TUTORIAL_SHARED_DATA") or beside).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {path}, which is not on this machine (set TUTORIAL_SHARED_DATA to the data folder)")
    return path


def write_files(folder: Path, files: dict[str, str | np.ndarray]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if isinstance(content, str):
            (folder / name).write_text(content)
        else:
            np.save(folder / name, content)


def tiny_dataset() -> Dataset:
    """Two squares joined by one edge, so that the best cut is known: one edge, two directions."""
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4)]
    src, dst = torch.tensor(pairs + [(b, a) for a, b in pairs]).T
    graph = dgl.graph((src, dst))
    graph.ndata["feat"] = torch.arange(16.0).reshape(8, 2)
    graph.ndata["label"] = torch.arange(8) % 2
    for k, name in enumerate(("train_mask", "val_mask", "test_mask")):
        graph.ndata[name] = torch.arange(8) % 3 == k
    return Dataset("tiny", graph, 2)
