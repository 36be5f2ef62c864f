"""The pipeline's options, checked before anything starts."""

from __future__ import annotations

from tutorial_lib.errors import InputError
from tutorial_lib.partition.memory import parse_memory

LOADERS = ("auto", "pipeline", "dgl")


def check_loader(loader: str, samplers: int, cache: str) -> int:
    """Bytes of ``cache`` ("256MB", "0"); ``samplers`` is the number of sampler processes per trainer.

    Raises:
        InputError: an unknown loader, a pipeline with sampler processes, or no amount of memory.
    """
    if loader not in LOADERS:
        raise InputError(f"there is no loader {loader!r}", f"Known: {', '.join(LOADERS)}.")
    if loader == "pipeline" and samplers:
        raise InputError(
            f"--loader pipeline draws in a thread of the trainer and has no use for --samplers {samplers}",
            "Leave one of the two away.",
        )
    return 0 if cache.strip() == "0" else parse_memory(cache) or 0
