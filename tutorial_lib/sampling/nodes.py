"""Mini-batches of nodes, in the same form from a DistGraph and from a plain DGLGraph.

In a graph with several types of nodes, every tensor of IDs or rows becomes a dictionary from type to tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.compat.generators import derive_seed, seed_dgl

FULL = -1  # fan-out that takes every neighbor


@dataclass
class Batch:
    """One mini-batch.

    Attributes:
        input_nodes: int64 tensor of shape (I,), the nodes whose features the batch needs. A type may have none.
        seeds: int64 tensor of shape (B,), the nodes to compute.
        blocks: message-flow graphs, outermost hop first.
        inputs: rows of the input nodes if the loader has fetched them.
        labels: labels of the seeds if the loader has fetched them.
        background: start (seconds since 1970) and duration in seconds of the phases "sampling" and "pull", for a batch
            that a background thread made.
        bytes_by_place: bytes of the rows that the loader fetched, from this machine and from others.
    """

    input_nodes: Any
    seeds: Any
    blocks: list[Any]
    inputs: Any = None
    labels: Tensor | None = None
    background: dict[str, tuple[float, float]] | None = None
    bytes_by_place: tuple[int, int] | None = None


def epoch_chunks(count: int, steps: int, seed: int, epoch: int, *, shuffle: bool) -> tuple[Tensor, ...]:
    """Split the positions of an epoch's examples into the batches of its steps.

    Args:
        count: number of examples of this rank.
        steps: number of batches. Their sizes differ by at most one.
        seed: seed of the loader. The order depends on ``seed`` and ``epoch`` alone and not on earlier epochs.
        epoch: number of the epoch.
        shuffle: shuffle the positions.

    Returns:
        One int64 tensor of positions per step.
    """
    if not steps:
        return ()
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
    return tuple(order.tensor_split(steps))


@dataclass
class NodeSampler:
    """Samples the batch of any step. Sampler processes have a copy of this object.

    Attributes:
        graph: ``DistGraph`` or ``DGLGraph``.
        seeds: int64 IDs of the nodes of this rank, or by type.
        fanouts: neighbors to sample per hop and edge type, outermost hop first.
        steps: number of batches in an epoch.
        shuffle: use another order of the seeds in each epoch.
        seed: seed of the loader.
    """

    graph: Any
    seeds: Any
    fanouts: Sequence[int]
    steps: int
    shuffle: bool
    seed: int
    _chunks: tuple[Any, ...] = (None,)

    def __post_init__(self) -> None:
        from dgl.dataloading import MultiLayerNeighborSampler

        self._sampler = MultiLayerNeighborSampler(list(self.fanouts))

    def sample(self, epoch: int, step: int) -> Batch:
        """Sample the batch of a step. The result depends on the seed, the epoch and the step alone."""
        if self._chunks[0] != epoch:
            count = sum(map(len, self._by_type()))
            self._chunks = epoch, epoch_chunks(count, self.steps, self.seed, epoch, shuffle=self.shuffle)
        seed_dgl(derive_seed(self.seed, epoch, step))
        return Batch(*self._sampler.sample_blocks(self.graph, self._ids(self._chunks[1][step])))

    def __call__(self, items: list[int]) -> tuple[int, Batch]:
        """Sample in a sampler process. ``DistDataLoader`` sends one number for each batch."""
        epoch, step = divmod(int(items[0]), self.steps)
        return step, self.sample(epoch, step)

    def _by_type(self) -> list[Tensor]:
        return [self.seeds] if isinstance(self.seeds, Tensor) else list(self.seeds.values())

    def _ids(self, positions: Tensor) -> Any:
        """Return the IDs at positions, which count the nodes of the types one type after the other."""
        if isinstance(self.seeds, Tensor):
            return self.seeds[positions]
        found, first = {}, 0
        for name, ids in self.seeds.items():
            inside = positions[(positions >= first) & (positions < first + len(ids))]
            if len(inside):
                found[name] = ids[inside - first]
            first += len(ids)
        return found


@dataclass
class BatchLoader:
    """Loads sampled mini-batches of seed nodes with DGL's sampler.

    Attributes:
        graph: ``DistGraph`` (also standalone) or ``DGLGraph``.
        seeds: int64 IDs of the nodes of this rank in the numbering of the graph, or by type with type-wise IDs.
        fanouts: neighbors to sample per hop and edge type, outermost hop first. ``FULL`` takes all neighbors.
        batch_size: largest number of seeds in a batch, all types together.
        steps: number of batches in an epoch, see ``trainer.comm.equal_steps``. None divides by ``batch_size``.
        shuffle: use another order of the seeds in each epoch.
        seed: seed of this rank's order and samples.
        threads: OpenMP threads that sample, or None for the setting of this process. With more than one, DGL numbers
            the nodes of a block in the order in which its threads find them, so that no two runs are equal.
    """

    graph: Any
    seeds: Tensor | Mapping[str, Tensor]
    fanouts: Sequence[int]
    batch_size: int
    _: KW_ONLY
    steps: int | None = None
    shuffle: bool = False
    seed: int = 0
    threads: int | None = None
    _processes: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        from dgl.distributed import DistDataLoader, DistGraph
        from dgl.distributed.dist_context import get_sampler_pool

        count = len(self.seeds) if isinstance(self.seeds, Tensor) else sum(map(len, self.seeds.values()))
        steps = -(-count // self.batch_size) if self.steps is None else self.steps
        self.sampler = NodeSampler(self.graph, self.seeds, self.fanouts, steps, self.shuffle, self.seed)
        if isinstance(self.graph, DistGraph) and steps and get_sampler_pool()[0] is not None:
            # Made once, because each sampler process receives a copy of the sampler.
            self._processes = DistDataLoader(torch.arange(steps), 1, collate_fn=self.sampler)

    def __len__(self) -> int:
        return self.sampler.steps

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield the steps of an epoch from ``start`` on, each with its batch."""
        if self._processes is not None:
            yield from self._from_processes(epoch, start)
            return
        for step in range(start, len(self)):
            with sampling_threads(self.threads):
                batch = self.sampler.sample(epoch, step)
            yield step, batch

    def _from_processes(self, epoch: int, start: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches of sampler processes in the order of the steps. They can arrive in another order."""
        loader, steps = self._processes, len(self)
        loader.dataset = torch.arange(epoch * steps + start, (epoch + 1) * steps)
        loader.data_idx, loader.expected_idxs = torch.arange(steps - start), steps - start
        arrived: dict[int, Batch] = {}
        batches = iter(loader)
        for step in range(start, steps):
            while step not in arrived:
                number, batch = next(batches)
                arrived[number] = batch
            yield step, arrived.pop(step)


def rows_of(store: Any, ids: Tensor) -> Tensor:
    """Return ``store[ids]``. Without IDs return no rows, because a DistTensor cannot be read with no IDs."""
    return store[ids] if len(ids) else torch.empty(0, *store.shape[1:], dtype=store.dtype)


@contextlib.contextmanager
def sampling_threads(count: int | None) -> Iterator[None]:
    """Run the body with this number of OpenMP threads. DGL and torch share the setting. None changes nothing."""
    from dgl.utils import get_num_threads, set_num_threads

    before = get_num_threads()
    if count is not None:
        set_num_threads(min(count, before))
    try:
        yield
    finally:
        set_num_threads(before)
