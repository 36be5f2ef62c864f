"""Memory that the trainers of one machine have in common: one of them makes it, the others map it.

It is in files without a name (memfd_create), which the kernel frees with the last process that has them: whatever ends
the trainers, nothing is left. The others open such a file as ``/proc/PID/fd/N`` of the trainer that made it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mates:
    """The trainers of this machine.

    Attributes:
        machine: its number.
        place, count: which of them this one is, from 0; how many they are, as on every machine of the job.
        gather: gives each trainer of the job the values (as JSON has them) of all.
    """

    machine: int
    place: int
    count: int
    gather: Callable[[Any], list[Any]]

    def common(self, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Tensors that trainer 0 of this machine makes; each trainer of the machine may read and write them.

        All trainers of the job must call it. Where the system does not let them share files, each makes its own.
        """
        made = make() if self.place == 0 else None
        told: dict[str, Any] | None = {}
        try:
            for name, tensor in (made or {}).items():
                told[name] = _file(tensor.nbytes), str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
                _mapped(*told[name]).copy_(tensor)
        except OSError:
            told = None
        told = self._of_first(told)
        with contextlib.suppress(OSError):
            if told is not None:
                return {name: _mapped(*facts) for name, facts in told.items()}
        return make() if made is None else made

    def room(self, size: int) -> Path | None:
        """A file of so many zeros for the trainers of this machine; what nobody writes to takes no memory.

        All trainers of the job must call it; what trainer 0 of the machine says is done. None: 0 bytes, or the system
        does not let them share a file.
        """
        file = None
        with contextlib.suppress(OSError):
            file = _file(size) if size and self.place == 0 else None
        told = self._of_first(file)
        return Path(told) if told and os.access(told, os.R_OK | os.W_OK) else None

    def _of_first(self, value: Any) -> Any:
        """What trainer 0 of this machine has given."""
        everyone = self.gather([self.machine, self.place, value])
        return next(found for machine, place, found in everyone if (machine, place) == (self.machine, 0))


def _file(size: int) -> str:
    """A file without a name, as other processes find it; it stays open for them as long as this process lives."""
    number = os.memfd_create("trainers", os.MFD_CLOEXEC)
    os.ftruncate(number, size)
    return f"/proc/{os.getpid()}/fd/{number}"


def _mapped(path: str, dtype: str, shape: list[int]) -> Tensor:
    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=kind).view(shape)
