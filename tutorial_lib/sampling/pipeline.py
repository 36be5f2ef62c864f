"""Batches for node classification that a thread samples and fetches ahead of their use.

The loader computes the neighbor means of the first layer of GraphSAGE while it reads the rows, so it neither makes the
nodes of the outermost hop unique nor copies their rows. At scale 0.16, copied rows cost 10 % more processor time. If
features are wider than the hidden layer, the model multiplies first, and the loader returns rows.
"""

import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dgl
import torch
from torch import Tensor

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.models.graphsage import FirstLayer
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.neighbor_sampler import NeighborSampler
from tutorial_lib.sampling.nodes import Batch, Loader, rows_of
from tutorial_lib.sampling.prefetch import prefetch, run


@dataclass
class Pipeline:
    """Sampler, feature cache and labels that the loaders of one trainer share."""

    sampler: NeighborSampler  # used by the sampling thread only, as is the cache
    cache: FeatureCache
    labels: Any  # ``DistTensor`` of all nodes of a homogeneous ``DistGraph``, whose servers ran ``serve_if_server``
    depth: int = 2  # number of batches that are made ahead of their use
    turn: object = None  # the iteration that uses the cache

    @classmethod
    def of(cls, graph: Any, features: Any, labels: Any, *, budget: int, hops: int, depth: int = 2) -> "Pipeline":
        """Copy adjacency of remote nodes, at most half of ``budget`` bytes, and allocate the cache for their rows."""

        def make() -> Pipeline:
            sampler = NeighborSampler(graph, budget // 2, hops)
            left = budget - sampler.remote_bytes
            return cls(sampler, FeatureCache(features, sampler.book, left, scratch=sampler.scratch), labels, depth)

        return run(make, "neighbors of remote nodes")


@dataclass
class PipelineLoader(Loader):
    """Loads batches of a ``Pipeline`` with their inputs and labels, ahead of their use in a background thread.

    One iteration uses the pipeline at a time. A new one ends the one before it.
    """

    means: bool = True  # compute the means of the first layer here. Else a batch has a block and the rows of its nodes

    def batches(self, epoch: int, start: int = 0) -> Generator[tuple[int, Batch], None, None]:
        return prefetch(lambda: self._make(epoch, start), self.source.depth, "the next batch")

    @cached_property
    def _labels(self) -> Tensor:
        return rows_of(self.source.labels, self.examples).long()  # one request for all labels

    def _make(self, epoch: int, start: int) -> Generator[tuple[int, Batch], None, None]:
        pipeline, cache, sampler = self.source, self.source.cache, self.source.sampler
        pipeline.turn = turn = object()
        cache.cancel()  # requests of an earlier iteration
        parts, labels = self.positions(epoch), self._labels
        steps, sampled, requested = iter(range(start, len(parts))), deque(), deque()

        def request_rows() -> None:
            """Keep two requests in flight, so that a server can start on one when it has answered the other."""
            if sampled and len(requested) < 2:
                requested.append(sampled.popleft())
                cache.request()

        try:
            while pipeline.turn is turn:
                request_rows()
                for _ in range(2):  # more at once would delay the first batch
                    if len(sampled) <= cache.look_ahead and (step := next(steps, None)) is not None:
                        # DGL chooses the server of each pull with the same generator, so every batch is seeded.
                        sampler.seed(derive_seed(self.seed, epoch, step))
                        sampled.append((step, self._sample(self.examples[parts[step]], labels[parts[step]])))
                        request_rows()
                if not requested:
                    return
                step, batch = requested.popleft()
                yield step, self._fill(batch)
        except GeneratorExit:
            if pipeline.turn is turn:  # the caller may use the connection to the servers
                cache.cancel()
            raise
        raise RuntimeError("A newer iteration of a loader uses this pipeline. End an iteration before the next starts.")

    def _sample(self, seeds: Tensor, labels: Tensor) -> Batch:
        """Return a batch without rows. With means, ``inputs`` is the index pointer of the outermost hop."""
        start, sampler, indptr = time.time(), self.source.sampler, None
        nodes, blocks = seeds.to(sampler.dtype), []
        for fanout in reversed(self.fanouts[int(self.means) :]):
            sampled = sampler.sample(nodes, fanout)
            every, indices = sampler.compact(sampled.sources, nodes)
            csc = (sampled.indptr, indices, torch.empty(0, dtype=indices.dtype))  # without edge IDs
            blocks.insert(0, dgl.create_block(("csc", csc), num_src_nodes=len(every), num_dst_nodes=len(nodes)))
            nodes = every
        needed = nodes
        if self.means:
            indptr, sources = sampler.sample(nodes, self.fanouts[0])
            needed = torch.cat([nodes, sources])  # a node may occur more than once
        self.source.cache.announce(needed)
        return Batch(nodes, seeds, blocks, indptr, labels, {"sampling": (start, time.time() - start)})

    def _fill(self, batch: Batch) -> Batch:
        start, cache = time.time(), self.source.cache
        own, sources = cache.slots().tensor_split([len(batch.input_nodes)])
        inputs: Any = cache.read(own)
        if batch.inputs is not None:
            inputs = FirstLayer(inputs, cache.mean(sources, batch.inputs))
        local, pulled = (rows * cache.row_bytes for rows in cache.count)
        background = {**(batch.background or {}), "pull": (start, time.time() - start)}
        return replace(batch, inputs=inputs, background=background, bytes_by_place=(local, pulled))
