"""Lesson 11: a trainer with a mistake that no message tells. Each of two ranks waits for the other, for ever.

``python -m support.lessons.hanging GRAPH FILE``, started by an agent as server and trainer.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tutorial_lib.trainer.session import Session, join, serve_if_server


def wait_for_file(path: Path) -> None:
    """Rank 0 writes the file, so it must come soon."""
    while not path.exists():
        time.sleep(0.1)


def train(session: Session, done: Path) -> None:
    """Rank 1 waits for a file. Rank 0 writes it after a sum over all ranks, and that waits for rank 1."""
    count = torch.tensor([session.graph.num_nodes()])
    if session.rank == 1:
        wait_for_file(done)
    dist.all_reduce(count)
    if session.rank == 0:
        done.write_text(str(int(count)))


def main() -> None:
    """Serve or train, as the environment says."""
    serve_if_server()
    with join(sys.argv[1]) as session:
        train(session, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
