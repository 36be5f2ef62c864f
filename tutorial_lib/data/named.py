"""Original node IDs of a graph of your own, and predictions with these IDs."""

from pathlib import Path
from typing import Any

import numpy as np

IDS = "node_ids.parquet"


def write_ids(folder: Path, ids: Any) -> None:
    """Write the pyarrow array ``ids``, which is in the order of the data set, into a partition folder."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"id": ids}), folder / IDS)


def read_ids(folder: Path) -> Any:
    """Return the array that ``write_ids`` wrote, or None if the folder has no such file."""
    from pyarrow import parquet

    return parquet.read_table(folder / IDS)["id"].combine_chunks() if (folder / IDS).exists() else None


def write_named_predictions(out: Path, ids: Any, classes: list[str]) -> None:
    """Write ``predictions.npy`` as ``predictions.csv``, with IDs, and with names of classes if there are any."""
    import pyarrow as pa
    from pyarrow import csv

    predictions = pa.array(np.load(out / "predictions.npy"))
    values = pa.array(classes).take(predictions) if classes else predictions
    csv.write_csv(pa.table({"id": ids, "prediction": values}), out / "predictions.csv")
