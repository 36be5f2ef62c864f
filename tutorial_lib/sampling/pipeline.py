"""Batches for node classification that a thread samples and fetches ahead of their use.

A process has one sampling thread because DGL's connection to the servers serves one caller at a time, and because DGL
gives every thread a random generator. With one thread, equal seeds sample equal batches. DGL releases the interpreter
lock while it waits for a server, so the main thread computes meanwhile.

The loader computes the neighbor means of the first layer of GraphSAGE while it reads the rows, so it neither makes the
nodes of the outermost hop unique nor copies their rows. At scale 0.16, copied rows cost 10 % more processor time. If
features are wider than the hidden layer, the model multiplies first, and the loader returns rows.
"""

import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import dgl
import torch
from dgl.distributed import DistGraph, DistTensor
from dgl.utils import set_num_threads
from torch import Tensor

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.models.graphsage import FirstLayer
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.loader import Batch, Loader, read_rows
from tutorial_lib.sampling.neighbors import NeighborSampler

Item = TypeVar("Item")
CLOSE_SECONDS = 10


@lru_cache
def batch_executor() -> ThreadPoolExecutor:
    # One OpenMP thread, because a new thread starts with the default and would take cores from the training.
    return ThreadPoolExecutor(1, "batches", initializer=lambda: (torch.set_num_threads(1), set_num_threads(1)))


def prefetch(items: Generator[Item, None, None], ahead: int) -> Generator[Item, None, None]:
    """Yield the items of a generator, which the sampling thread runs up to ``ahead`` items ahead of the caller."""
    sentinel = object()
    submit: Any = partial(batch_executor().submit, next, items, sentinel)
    pending = deque([submit()])
    try:
        while (item := pending.popleft().result()) is not sentinel:
            pending.extend(submit() for _ in range(ahead - len(pending)))  # the thread starts before the item is used
            yield item
            if not pending:
                pending.append(submit())
    finally:
        for future in pending:
            future.cancel()
        # The caller may use the connection to the servers as soon as this returns. At exit no thread can be started.
        with suppress(RuntimeError):
            wait([*pending, batch_executor().submit(items.close)], CLOSE_SECONDS)


@dataclass
class Pipeline:
    """Sampler, feature cache and labels that the loaders of one trainer share."""

    sampler: NeighborSampler
    cache: FeatureCache
    labels: DistTensor  # labels of all nodes of a homogeneous ``DistGraph``, whose servers ran ``serve_if_server``
    ahead: int = 2  # number of batches that are made ahead of their use

    @classmethod
    def from_graph(
        cls, graph: DistGraph, features: DistTensor, labels: DistTensor, *, budget: int, hops: int, ahead: int = 2
    ) -> "Pipeline":
        """Return a pipeline with copied remote adjacency, at most half of ``budget`` bytes, and a cache in the rest."""
        sampler = NeighborSampler(graph, budget // 2, hops)
        cache_budget = budget - sampler.remote_bytes
        return cls(sampler, FeatureCache(features, sampler.book, cache_budget, scratch=sampler.scratch), labels, ahead)


@dataclass
class PipelineLoader(Loader[Pipeline, Batch]):
    """Loads batches of a ``Pipeline`` with their inputs and labels. End an iteration before the next one starts."""

    means: bool = True  # compute the first layer's neighbor means here. Otherwise, batches contain its block and rows

    def batches(self, epoch: int, start: int = 0) -> Generator[tuple[int, Batch], None, None]:
        return prefetch(self._make(epoch, start), self.source.ahead)

    @cached_property
    def _labels(self) -> Tensor:
        return read_rows(self.source.labels, self.examples)  # one request for all labels

    def _make(self, epoch: int, start: int) -> Generator[tuple[int, Batch], None, None]:
        cache, sampler = self.source.cache, self.source.sampler
        positions, labels = self.positions(epoch), self._labels
        steps = iter(range(start, len(positions)))
        sampled, requested = deque(), deque()  # steps and results of _sample

        def request_rows() -> None:
            """Keep two requests in flight, so that a server can start on one when it has answered the other."""
            if sampled and len(requested) < 2:
                requested.append(sampled.popleft())
                cache.request()

        try:
            while True:
                request_rows()
                for _ in range(2):  # more at once would delay the first batch
                    if len(sampled) <= cache.look_ahead and (step := next(steps, None)) is not None:
                        # DGL chooses the server of each pull with the same generator, so every batch is seeded.
                        sampler.seed(derive_seed(self.seed, epoch, step))
                        sampled.append((step, self._sample(self.examples[positions[step]], labels[positions[step]])))
                        request_rows()
                if not requested:
                    return
                step, batch = requested.popleft()
                yield step, self._fill(*batch)
        except GeneratorExit:
            cache.cancel()  # the caller may use the connection to the servers
            raise

    def _sample(self, seeds: Tensor, labels: Tensor) -> tuple[Batch, Tensor | None]:
        """Return a batch without inputs and, with means, the index pointer of the outermost hop."""
        start = time.time()
        sampler = self.source.sampler
        nodes, blocks = seeds.to(sampler.dtype), []
        for fanout in reversed(self.fanouts[int(self.means) :]):
            pointer, sources = sampler.sample(nodes, fanout)
            all_nodes, indices = sampler.compact(sources, nodes)
            csc = (pointer, indices, torch.empty(0, dtype=indices.dtype))  # without edge IDs
            blocks.insert(0, dgl.create_block(("csc", csc), num_src_nodes=len(all_nodes), num_dst_nodes=len(nodes)))
            nodes = all_nodes
        row_ids, indptr = nodes, None
        if self.means:
            indptr, sources = sampler.sample(nodes, self.fanouts[0])
            row_ids = torch.cat([nodes, sources])  # a node may occur more than once
        self.source.cache.announce(row_ids)
        return Batch(nodes, seeds, blocks, None, labels, {"sampling": (start, time.time() - start)}), indptr

    def _fill(self, batch: Batch, indptr: Tensor | None) -> Batch:
        start = time.time()
        cache = self.source.cache
        slots, sources = cache.receive_rows().tensor_split([len(batch.input_nodes)])
        rows = inputs = cache.read(slots)
        if indptr is not None:
            inputs = FirstLayer(rows, cache.mean(sources, indptr))
        local, remote = (count * cache.row_bytes for count in cache.last_batch_counts)
        background = {**(batch.background or {}), "pull": (start, time.time() - start)}
        return replace(batch, inputs=inputs, background=background, local_and_remote_bytes=(local, remote))
