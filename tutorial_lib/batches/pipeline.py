"""Batches for node classification, drawn and fetched ahead of their use, with the first layer's sums already made.

The first layer of GraphSAGE takes the mean of the neighbours' features. No weight is involved, so it is made where
the rows are read: of the outermost hop, by far the largest, neither are the nodes made unique nor are their rows
copied. Features wider than the hidden layer are left as they are: there the layer multiplies first, and means of short
rows cost less.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.batches.background import ahead, run
from tutorial_lib.batches.neighbours import Drawn, NeighbourLists
from tutorial_lib.batches.nodes import Batch, epoch_chunks
from tutorial_lib.batches.pieces import piece
from tutorial_lib.batches.table import RowTable
from tutorial_lib.compat.generators import derive_seed
from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.models.sage import FirstLayer


@dataclass
class Pipeline:
    """What the loaders of one trainer share.

    Attributes:
        depth: batches that are made ahead of their use.
        turn: of which iteration the table has been told last.
    """

    lists: NeighbourLists
    table: RowTable
    labels: Any
    depth: int = 2
    turn: object = None

    @classmethod
    def of(
        cls,
        graph: Any,
        features: Any,
        labels: Any,
        *,
        budget: int,
        hops: int,
        depth: int = 2,
    ) -> Pipeline:
        """Take over the lists of remote nodes and make room for their rows.

        Args:
            graph: homogeneous ``DistGraph`` of a running job, whose servers were started by ``serve_if_server``.
            features, labels: ``DistTensor``s of its nodes.
            budget: bytes of this trainer for what comes from other machines; lists get at most half of them.
        """

        def make() -> Pipeline:
            graphbolt = graphbolt_problem() is None
            lists = NeighbourLists(graph, budget // 2, hops, graphbolt=graphbolt)
            left = budget - lists.remote_bytes
            table = RowTable(features, lists.book, left, scratch=lists.scratch)
            return cls(lists, table, labels, depth)

        return run(make, "lists of neighbours")

    def describe(self) -> dict[str, int]:
        """For ``result.json``: what is kept, and how often it was of use."""
        return {
            "lists_kept": self.lists.remote_nodes,
            "lists_bytes": self.lists.remote_bytes,
            "rows_kept": self.table.used,
            "rows_bytes": self.table.used * self.table.row_bytes,
            "rows_asked": self.table.asked,
            "rows_found": self.table.hits,
        }


@dataclass
class PipelineLoader:
    """Loads batches like ``BatchLoader``, with their inputs and labels, ahead of their use in a background thread.

    Attributes:
        pipeline: adjacency and feature cache of this trainer.
        seeds: int64 IDs of this trainer's nodes.
        fanouts: neighbors per hop, outermost first.
        batch_size: largest number of seeds in a batch.
        steps: number of batches in an epoch, see ``trainer.comm.equal_steps``. None divides by ``batch_size``.
        shuffle: use another order of the seeds in each epoch.
        seed: seed of this rank's order and samples.
        means: compute the means of the first layer here. False yields a block and the rows of its nodes instead.
    """

    pipeline: Pipeline
    seeds: Tensor
    fanouts: Sequence[int]
    batch_size: int
    _: KW_ONLY
    steps: int | None = None
    shuffle: bool = False
    seed: int = 0
    means: bool = True
    _labels: Tensor | None = None

    def __len__(self) -> int:
        return -(-len(self.seeds) // self.batch_size) if self.steps is None else self.steps

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield the steps of an epoch from ``start`` on, each with its batch. Earlier batches are not sampled."""
        return ahead(lambda: self._make(epoch, start), self.pipeline.depth, "the next batch")

    def _make(self, epoch: int, start: int) -> Generator[tuple[int, Batch], None, None]:
        """Sample and fetch in the background thread."""
        table, self.pipeline.turn = self.pipeline.table, (turn := object())
        table.expect_nothing()  # of an iteration before this one
        if self._labels is None and len(self.seeds):  # all of them in one request
            self._labels = self.pipeline.labels[self.seeds].long()
        labels: Any = self._labels
        parts = epoch_chunks(len(self.seeds), len(self), self.seed, epoch, shuffle=self.shuffle)

        def drawn(step: int) -> Batch:
            self.pipeline.lists.seed(derive_seed(self.seed, epoch, step))
            return self._drawn(self.seeds[parts[step]], labels[parts[step]])

        numbers, waiting, asked = iter(range(start, len(parts))), deque[Batch](), deque[tuple[Batch, Tensor]]()
        steps = iter(range(start, len(parts)))

        def ask() -> None:
            """For the rows of two batches: a machine can begin to answer when it has answered."""
            if waiting and len(asked) < 2:
                batch = waiting.popleft()
                asked.append((batch, _needed(batch.input_nodes, batch.inputs)))
                table.ask(asked[-1][1])

        try:
            while True:
                with piece("batch"):
                    ask()
                    for _ in range(2):  # not as many as are wanted at once: the first batch is waited for
                        if len(waiting) <= table.look_ahead and (number := next(numbers, None)) is not None:
                            waiting.append(drawn(number))
                            ask()
                    if not asked:
                        return
                    batch = self._filled(*asked.popleft())
                yield next(steps), batch
        except GeneratorExit:
            if self.pipeline.turn is turn:  # who comes next may use the connection to the servers
                table.expect_nothing()
            raise

    def _drawn(self, seeds: Tensor, labels: Tensor) -> Batch:
        """A batch whose ``inputs`` are still what they will be made from: edges into its input nodes, or None."""
        start = time.perf_counter()
        lists = self.pipeline.lists
        nodes, blocks = seeds.to(lists.dtype), []

        for hop in reversed(range(int(self.means), len(self.fanouts))):
            with piece("sampling", nodes=len(nodes), fanout=self.fanouts[hop]):
                drawn = lists.draw(nodes, self.fanouts[hop])
                every, indices = lists.compact(drawn, nodes)
            parts = (drawn.indptr, indices, torch.empty(0, dtype=indices.dtype))  # no edge ids
            block = dgl.create_block(("csc", parts), num_src_nodes=len(every), num_dst_nodes=len(nodes))
            blocks.insert(0, block)
            nodes = every
        with piece("sampling", nodes=len(nodes), fanout=self.fanouts[0]):
            outermost = lists.draw(nodes, self.fanouts[0]) if self.means else None
        self.pipeline.table.expect(_needed(nodes, outermost))
        return Batch(nodes, seeds, blocks, outermost, labels, {"sampling": time.perf_counter() - start})

    def _filled(self, batch: Batch, needed: Tensor) -> Batch:
        """With rows of its input nodes, or inputs of the first layer; and where their bytes came from."""
        start, table = time.perf_counter(), self.pipeline.table
        with piece("pull") as facts:
            slots = table.slots(needed)
            own, sources = slots.split([len(batch.input_nodes), len(slots) - len(batch.input_nodes)])
            inputs: Any = torch.index_select(table.rows, 0, own)
            if batch.inputs is not None:
                indptr = batch.inputs.indptr
                with torch.no_grad():
                    mean = F.embedding_bag(sources, table.rows, indptr, mode="mean", include_last_offset=True)
                inputs = FirstLayer(inputs, mean)
            here, pulled = table.count()
            facts["bytes_local"], facts["bytes_remote"] = places = here * table.row_bytes, pulled * table.row_bytes
        seconds = {**(batch.seconds or {}), "pull": time.perf_counter() - start}
        return replace(batch, inputs=inputs, seconds=seconds, bytes_by_place=places)


def _needed(nodes: Tensor, drawn: Drawn | None) -> Tensor:
    """The nodes whose rows are read, some of them more than once."""
    return nodes if drawn is None else torch.cat([nodes, drawn.sources])
