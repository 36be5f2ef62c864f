"""What a trainer tells while it runs: JSON lines, one event each, picked up by the machine's agent.

Each event has ``kind``, ``time`` (seconds since 1970), ``rank`` and ``local_rank``. Kinds, with their fields:

    joined      machine
    split       train_nodes, val_nodes: this rank's share
    step        epoch, step, steps, loss, seconds of each phase, bytes_local, bytes_remote: see ``steps``
    progress    what (validation, evaluation), batches, of, in an evaluation also layer, layers
    epoch       epoch, loss, seconds, val_accuracy: of all ranks, from rank 0
    checkpoint  epochs: so many are saved, from rank 0
    resumed     epochs: so many came from the checkpoint, from rank 0
    kept        pipeline: what it holds of other machines, see ``Pipeline.describe``
    evaluating  from rank 0
    evaluation  val_accuracy, test_accuracy, and scores of the task: of all ranks, from rank 0
    failure     exception, message, traceback, and role where it was not the trainer but its sampler
    left        peak_rss (bytes)
    stopped     the user ended the job

Epochs, steps and layers are counted from 0.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

PHASES = ("sampling", "pull", "forward", "backward", "update", "waiting")  # of a step; described in ``steps``


class EventWriter:
    """Appends events to this trainer's file; does nothing outside a job."""

    def __init__(self) -> None:
        folder = os.environ.get("TUTORIAL_LOG_DIR")
        self.rank = int(os.environ.get("RANK", 0))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self._path = Path(folder) / f"events-{self.local_rank}.jsonl" if folder else None

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one event; whole lines only, so that a reader never sees half of one for long.

        Raises:
            OSError: it cannot be written; the file is named.
        """
        if self._path is not None:
            event = {"kind": kind, "time": time.time(), "rank": self.rank, "local_rank": self.local_rank, **fields}
            try:
                with self._path.open("a") as file:
                    file.write(json.dumps(event) + "\n")
            except OSError as error:  # of a full disk, Python does not say which file
                raise OSError(error.errno, error.strerror, str(self._path)) from None
