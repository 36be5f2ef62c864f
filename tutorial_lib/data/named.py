"""What the user calls each node, kept with a partition, and predictions under these names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

IDS = "node_ids.parquet"


def write_ids(folder: Path, ids: Any) -> None:
    """``ids``: a pyarrow array, in the data set's order."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"id": ids}), folder / IDS)


def read_ids(folder: Path) -> Any:
    """What ``write_ids`` has written; None where nothing was."""
    from pyarrow import parquet

    return parquet.read_table(folder / IDS)["id"].combine_chunks() if (folder / IDS).exists() else None


def write_named_predictions(out: Path, ids: Any, classes: list[str]) -> None:
    """``predictions.csv`` beside ``predictions.npy``: a row ``id,prediction`` for each node.

    Args:
        classes: names of the classes; empty: their numbers.
    """
    import pyarrow as pa
    from pyarrow import csv

    predictions = np.load(out / "predictions.npy")
    values = pa.array(predictions) if not classes else pa.array(classes).take(pa.array(predictions))
    csv.write_csv(pa.table({"id": ids, "prediction": values}), out / "predictions.csv")
