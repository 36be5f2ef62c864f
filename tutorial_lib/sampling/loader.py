"""Mini-batches of nodes, in the same form from a DistGraph and from a plain DGLGraph."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import torch
from dgl import DGLGraph
from dgl.dataloading import MultiLayerNeighborSampler
from dgl.distributed import DistDataLoader, DistGraph, DistTensor
from dgl.distributed.dist_context import get_sampler_pool
from dgl.utils import get_num_threads, set_num_threads
from torch import Tensor

from tutorial_lib.compat.settings import derive_seed, seed_dgl
from tutorial_lib.models.graphsage import Block

ALL_NEIGHBORS = -1  # fan-out that takes every neighbor
SELECTION_STEP = 2**31 - 1  # replaces the step in the seed that selects the examples of an epoch
Store = Tensor | DistTensor
Source = TypeVar("Source")
BatchType = TypeVar("BatchType")


@dataclass
class Batch:
    """One mini-batch. In a graph with several types of nodes, IDs and rows are dictionaries from type to tensor."""

    input_nodes: Any  # int64 (I,), the nodes whose features the batch needs
    seeds: Any  # int64 (B,), the nodes to compute
    blocks: list[Block]  # message-flow graphs, outermost hop first
    inputs: Any = None  # rows of the input nodes if the loader has fetched them
    labels: Tensor | None = None  # labels of the seeds if the loader has fetched them
    background: dict[str, tuple[float, float]] | None = None  # (start, seconds) of "sampling" and "pull" in the thread
    local_and_remote_bytes: tuple[int, int] | None = None  # bytes of the rows if the loader has fetched them


@lru_cache(maxsize=2)
def epoch_chunks(
    count: int, steps: int, seed: int, epoch: int, *, shuffle: bool, limit: int | None = None
) -> tuple[Tensor, ...]:
    """Return the positions of the examples of each batch of an epoch. The batch sizes differ by at most one."""
    order = torch.arange(count)[:limit]
    if shuffle and limit is not None:  # each epoch selects other examples
        generator = torch.Generator().manual_seed(derive_seed(seed, epoch, SELECTION_STEP))
        order = torch.randperm(count, generator=generator)[:limit]
    if shuffle:
        generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
        order = order[torch.randperm(len(order), generator=generator)]
    return tuple(order.tensor_split(steps)) if steps else ()


@dataclass
class Loader(Generic[Source, BatchType]):
    """Base of the loaders. A batch depends on the seed, the epoch and the step alone."""

    source: Source  # graph or pipeline to sample from
    examples: Any  # int64 IDs of this rank's nodes or edges
    fanouts: Sequence[int]  # neighbors per hop and edge type, outermost hop first. ``ALL_NEIGHBORS`` takes all
    batch_size: int  # largest number of examples in a batch
    _: KW_ONLY
    steps: int | None = None  # batches in an epoch, see ``trainer.comm.equal_steps``. None divides by ``batch_size``
    shuffle: bool = False  # use another order of the examples in each epoch
    seed: int = 0  # seed of this rank's order and samples
    threads: int | None = None  # OpenMP threads that sample. With more than one, runs differ. None keeps the setting
    per_epoch: int | None = None  # largest number of examples in an epoch, which are selected at random if shuffled

    def sample(self, examples: Tensor, seed: int) -> BatchType:
        raise NotImplementedError  # subclasses return the batch of these examples

    def __len__(self) -> int:
        return -(-len(self.examples[: self.per_epoch]) // self.batch_size) if self.steps is None else self.steps

    def positions(self, epoch: int) -> tuple[Tensor, ...]:
        """Return the positions in ``examples`` of each batch."""
        return epoch_chunks(len(self.examples), len(self), self.seed, epoch, shuffle=self.shuffle, limit=self.per_epoch)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[int, BatchType]]:
        """Yield the steps of an epoch from ``start`` on, each with its batch."""
        for step in range(start, len(self)):
            with use_openmp_threads(self.threads):
                batch = self.batch(epoch, step)
            yield step, batch

    def batch(self, epoch: int, step: int) -> BatchType:
        batch_seed = derive_seed(self.seed, epoch, step)
        seed_dgl(batch_seed)
        return self.sample(self.examples[self.positions(epoch)[step]], batch_seed)


@dataclass
class BatchLoader(Loader[DGLGraph, Batch]):
    """Loads batches of nodes of a ``DistGraph`` or ``DGLGraph``. ``examples`` can be ``{type: IDs}`` with one type."""

    def __post_init__(self) -> None:
        self._type = self._processes = None
        if isinstance(self.examples, Mapping):
            ((self._type, self.examples),) = self.examples.items()
        self._sampler = MultiLayerNeighborSampler(list(self.fanouts))
        if isinstance(self.source, DistGraph) and len(self) and get_sampler_pool()[0] is not None:
            # Made once, because each sampler process receives a copy of this loader.
            self._processes = DistDataLoader(torch.arange(len(self)), 1, collate_fn=copy(self))

    def sample(self, examples: Tensor, seed: int) -> Batch:  # noqa: ARG002
        return Batch(*self._sampler.sample_blocks(self.source, {self._type: examples} if self._type else examples))

    def __call__(self, items: list[int]) -> tuple[int, Batch]:
        """Sample in a sampler process. ``DistDataLoader`` sends one number for each batch."""
        epoch, step = divmod(int(items[0]), len(self))
        return step, self.batch(epoch, step)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield the steps of an epoch from ``start`` on. Batches of sampler processes can arrive in another order."""
        if self._processes is None:
            yield from super().batches(epoch, start)
            return
        steps = len(self)
        self._processes.dataset = torch.arange(epoch * steps + start, (epoch + 1) * steps)
        batches, arrived = iter(self._processes), {}
        for step in range(start, steps):
            while step not in arrived:
                arrived |= [next(batches)]
            yield step, arrived.pop(step)


def read_rows(store: Store, ids: Tensor) -> Tensor:
    """Return ``store[ids]``. Without IDs return no rows, because a DistTensor cannot be read with no IDs."""
    return store[ids] if len(ids) else torch.empty(0, *store.shape[1:], dtype=store.dtype)


@contextlib.contextmanager
def use_openmp_threads(count: int | None) -> Iterator[None]:
    """Run the body with this number of OpenMP threads. DGL and torch share the setting. None changes nothing."""
    previous = get_num_threads()
    set_num_threads(previous if count is None else min(count, previous))
    try:
        yield
    finally:
        set_num_threads(previous)
