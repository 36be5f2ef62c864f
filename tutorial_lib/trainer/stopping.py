"""An epoch that ends in the middle: on which step the ranks agree, and what each of them needs to go on from there.

A job that is told to end has some seconds left. Its agents leave a file on each machine; a rank looks for it ten times
a second, which is all that this costs while nobody asks. Then all ranks must stop after the same step: else some would
have learned from a batch that others have not, and no resumed run could repeat that.

They agree in the store in which they have met, not in a collective: a rank that is out of batches is in ``Join``, which
answers no collectives but those of a step. A rank says there that it knows, or that it has no batches left. From then
on it looks after every step. The first that finds everybody's word, after its step s, puts down s + 2. Nobody misses
that: the all-reduce of the gradients keeps ranks in step. Who has done step s + 1 has seen the others enter its
backward pass; on a GPU, where the pass goes on behind the program, that is known one step later. Ranks that leave the
loop early end in ``Join`` as if they had run out of batches. So a mistake here could cost equal losses, and could not
hang the job.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from tutorial_lib.cluster.members import FINISH
from tutorial_lib.trainer.comm import alone

LOOK_SECONDS = 0.1
MARGIN = 2


class EpochStopped(Exception):
    """The ranks have stopped before the last epoch is done, or evaluated, and saved."""


@dataclass
class EpochPart:
    """What this rank has done of an epoch.

    Attributes:
        steps: batches that it has learned from.
        loss_sum, examples: their examples, and the sum of the losses of these.
        seconds: what that took, in all starts of the run.
        furthest: the steps of the rank that has made most of them.
        stopped: whether all ranks have left the epoch, and one of them has batches left.
        last: whether the run ends with this epoch in any case, because it was told to.
        generators: after those steps, states of torch's generators by kind of device; none at the start of an epoch.
    """

    steps: int = 0
    loss_sum: float = 0.0
    examples: int = 0
    seconds: float = 0.0
    furthest: int = 0
    stopped: bool = False
    last: bool = False
    generators: dict[str, Tensor] = field(default_factory=dict)

    def add(self, loss: float, examples: int) -> None:
        """A step is done; ``loss`` is the mean of its examples."""
        self.steps += 1
        self.loss_sum += loss * examples
        self.examples += examples

    def rest(self, batches: Any, pull: Callable[[Any], Any]) -> Iterator[Any]:
        """The batches of the epoch behind ``steps``, of a loader that starts with the epoch's seeds.

        The others are drawn once more, because DGL's generators go on from there and their states cannot be saved. DGL
        draws also when it pulls rows (the server that is to answer), from the generator that it samples with: so they
        are pulled, too, but from a loader with an ``after``, which samples by another one. Then torch's generators are
        set to what they were after the last step.
        """
        if not self.generators:
            yield from batches
            return
        left = batches.after(self.steps) if hasattr(batches, "after") else iter(batches)
        with torch.no_grad():  # learned rows do not note who has read them
            for batch in itertools.islice(left, 0 if hasattr(batches, "after") else self.steps):
                pull(batch)
        first = list(itertools.islice(left, 1))
        torch.set_rng_state(self.generators["cpu"])
        if "cuda" in self.generators:
            torch.cuda.set_rng_state(self.generators["cuda"])
        yield from first
        yield from left

    def keep_generators(self, device: torch.device) -> None:
        """Note their states; dropout draws on ``device``, where the model is."""
        self.generators = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            self.generators["cuda"] = torch.cuda.get_rng_state(device)

    def to_list(self) -> list[float]:
        """The numbers, for JSON."""
        return [self.steps, self.loss_sum, self.examples, self.seconds]

    def take(self, furthest: int, numbers: list[Any], generators: Mapping[str, Tensor]) -> None:
        """Inverse of ``to_list``, into this object."""
        self.furthest = furthest
        self.steps, self.loss_sum, self.examples, self.seconds = numbers
        self.generators = dict(generators)


class Stop:
    """Whether, and after which step, an epoch is to end early.

    ``asked`` says whether somebody wants it; other ranks may hear of it sooner or later. This one has ``heard``.
    """

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked, self.heard, self._next, self._told = asked, False, 0.0, -1

    @classmethod
    def of_job(cls) -> Stop:
        """In a trainer: asked by the machine's agent."""
        return cls(Path(os.environ["TUTORIAL_LOG_DIR"], FINISH).exists)

    def here(self, epoch: int, step: int) -> bool:
        """Whether this rank leaves the epoch, with so many steps done. Every rank calls it after each of its steps."""
        if not self.heard and time.monotonic() >= self._next:
            self._next, self.heard = time.monotonic() + LOOK_SECONDS, self._asked()
        if not self.heard or alone():
            return self.heard
        self.through(epoch)
        store = _store()
        if store.add(f"stop/{epoch}/ranks", 0) < dist.get_world_size():
            return False
        return step >= int(store.compare_set(f"stop/{epoch}/step", "", str(step + MARGIN)))  # the first value stays

    def through(self, epoch: int) -> None:
        """This rank knows, or it has no batches left: the others need not wait for its word."""
        if self._told != epoch and not alone():
            self._told = epoch
            _store().add(f"stop/{epoch}/ranks", 1)


def _store() -> Any:
    """In which the ranks have met."""
    return distributed_c10d._get_default_store()
