"""Lesson 8: send a GraphBolt data set to a spawned rank, with both ways of sharing tensors.

``python -m support.lessons.graphbolt_sharing FOLDER``
"""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Any

import torch.multiprocessing

from support.graphbolt_data import load_graphbolt

mp: Any = torch.multiprocessing  # its hints lack spawn and the errors of spawn


def hold(rank: int, dataset: Any) -> None:
    """A rank that only looks at what it got."""
    print("  the graph arrived; in shared memory:", dataset.graph.indices.is_shared(), flush=True)


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies. multiprocessing's tracker then removes our semaphores."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def main(folder: str) -> None:
    """One rank with each strategy."""
    dataset = load_graphbolt(folder)
    for strategy in ("file_descriptor", "file_system"):
        mp.set_sharing_strategy(strategy)
        print(strategy, flush=True)
        try:
            mp.spawn(hold, args=(dataset,), nprocs=1, join=True)
        except mp.ProcessExitedException as error:
            print("  ProcessExitedException:", error, flush=True)


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1])
