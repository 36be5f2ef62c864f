"""Where a rank is now: its Python stack, written by ``faulthandler`` at the C level, so also out of a stuck call."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from tutorial_lib.processes.starting import Started, read_all

PATIENCE = 2.0  # seconds for a stack to be written
OWN = re.compile(r'File ".*/tutorial_lib/processes/(child|openmp)\.py"')
STDLIB_THREAD = re.compile(r'File ".*/threading\.py"')


def ask_for_stacks(ranks: list[Started]) -> dict[int, str]:
    """Stacks of ranks that still run, innermost call first; of a rank that is not that far, a word why not."""
    asked = [rank for rank in ranks if rank.ready and rank.poll() is None]
    for rank in asked:
        with contextlib.suppress(OSError):
            os.kill(rank.pid, signal.SIGUSR1)
    end = time.monotonic() + PATIENCE
    sizes: list[int] = []
    while time.monotonic() < end:
        time.sleep(0.1)
        before, sizes = sizes, [os.fstat(rank.stacks.fileno()).st_size for rank in asked]
        if all(sizes) and sizes == before:
            break
    none = "  (it had not started Python code of ours yet)"
    return {rank.rank: shorten(read_all(rank.stacks)) or none for rank in ranks}


def shorten(text: str) -> str:
    """Drop what lies outside the user's function: our frames and, in a forked rank, those of the parent's program."""
    threads = []
    for block in text.strip().split("\n\n"):
        heading, *frames = block.splitlines()
        kept = []
        for frame in frames:
            if OWN.search(frame):
                break
            kept.append(frame)
        if any(not STDLIB_THREAD.search(frame) for frame in kept):
            threads.append("\n".join([f"  {heading}", *(f"  {frame}" for frame in kept)]))
    return "\n".join(threads)
