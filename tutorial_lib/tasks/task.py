"""The interface of a task, the part of a graph that one process computes, and exact inference over all neighbors."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from dgl.distributed import DistTensor, edge_split, node_split
from torch import Tensor, nn

from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.models.graphsage import Block, FirstLayer, SAGEConv
from tutorial_lib.partition import Partition
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.loader import ALL_NEIGHBORS, Batch, BatchLoader, BatchType, Loader, Store, read_rows
from tutorial_lib.sampling.pipeline import Pipeline, prefetch
from tutorial_lib.trainer.comm import barrier, gather_by_original_id, mean_or_nan, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, OnBatch, ProgressReporter, local_and_remote_bytes, no_events
from tutorial_lib.trainer.loop import ROWS_PER_READ, TrainResult
from tutorial_lib.trainer.placement import CPU, Placement
from tutorial_lib.trainer.session import Session

TRAIN, VAL, TEST = 0, 1, 2  # splits of the edges
SPLITS = ("train", "val", "test")
EDGES_AT_ONCE = 1_000_000  # edges whose split is computed at a time


class LocalShard:
    """The whole graph, for a process that trains alone. ``target`` is the type of the nodes with labels and masks."""

    rank, world_size, distributed = 0, 1, False

    def __init__(self, dataset: Dataset, placement: Placement = CPU, emit: Emit = no_events) -> None:
        self.graph, self.target, self.data = dataset.graph, dataset.target, dataset.target_data
        self.num_classes = dataset.num_classes
        self.placement, self.emit = placement, emit

    def nodes(self, mask: str) -> Tensor:
        """Return the int64 IDs of this process's share of the nodes of a mask. The shares differ by a few nodes."""
        return self.data[mask].nonzero().flatten()

    def local_nodes(self, ntype: str) -> Tensor:
        """Return the IDs of the nodes of a type whose rows this process computes and its machine stores."""
        return self.graph.nodes(ntype)

    def edges(self, split_of_edges: Callable[..., Tensor]) -> dict[str, Tensor]:
        """Return this process's share of the edge IDs in each split. ``split_of_edges`` takes their two nodes."""
        splits = split_of_edges(*self.graph.edges(order="eid"))
        return {name: (splits == number).nonzero().flatten() for number, name in enumerate(SPLITS)}

    def new_store(self, _name: str, width: int, ntype: str) -> Tensor:
        """Return an uninitialized float32 store of shape (N, width). Every process calls this in the same order."""
        return torch.empty(self.graph.num_nodes(ntype), width)

    def original_nodes(self, ntype: str) -> np.ndarray:
        """Return the ID in the data set of each node of a type."""
        return np.arange(self.graph.num_nodes(ntype))

    def original_edges(self) -> np.ndarray:
        return np.arange(self.graph.num_edges())


class DistShard:
    """The part of a ``DistGraph`` that one rank computes, with the interface of ``LocalShard``."""

    distributed = True

    def __init__(self, session: Session, partition: Partition, placement: Placement = CPU) -> None:
        self.graph, self.rank, self.world_size = session.graph, session.rank, session.world_size
        self.partition, self.placement, self.emit = partition, placement, session.events.emit
        facts = partition.manifest["dataset"]
        self.target = facts.get("target", self.graph.ntypes[0])
        self.num_classes = facts["num_classes"]
        self.data, self.book = self.graph.nodes[self.target].data, self.graph.get_partition_book()

    def nodes(self, mask: str) -> Tensor:
        return node_split(self.data[mask], self.book, ntype=self.target, force_even=True).long()

    def local_nodes(self, ntype: str) -> Tensor:
        all_nodes = torch.ones(self.graph.num_nodes(ntype), dtype=torch.bool)
        return node_split(all_nodes, self.book, ntype=ntype, force_even=False).long()

    def edges(self, split_of_edges: Callable[..., Tensor]) -> dict[str, Tensor]:
        # The first trainer of a machine marks the edges of its own part in one mask for each split, which needs no
        # other machine. The ranks share the training edges evenly. Other edges stay on their machine.
        graph, book, policy = self.graph, self.book, self.graph.get_edge_partition_policy("_E")
        masks = [DistTensor((graph.num_edges(),), torch.uint8, f"side-{k}", part_policy=policy) for k in SPLITS]
        if self.rank % (self.world_size // book.num_partitions()) == 0:
            for ids in book.partid2eids(book.partid).split(EDGES_AT_ONCE):
                splits = split_of_edges(*graph.find_edges(ids))
                for number, mask in enumerate(masks):
                    mask[ids] = (splits == number).to(torch.uint8)
        barrier()
        return {name: edge_split(masks[k], book, force_even=k == TRAIN).long() for k, name in enumerate(SPLITS)}

    def new_store(self, name: str, width: int, ntype: str) -> DistTensor:
        policy, shape = self.graph.get_node_partition_policy(ntype), (self.graph.num_nodes(ntype), width)
        return DistTensor(shape, torch.float32, f"{name}-{ntype}", part_policy=policy)

    def original_nodes(self, ntype: str) -> np.ndarray:
        node_map = self.partition.node_map
        return node_map[ntype] if isinstance(node_map, Mapping) else node_map

    def original_edges(self) -> np.ndarray:
        return cast(np.ndarray, self.partition.edge_map)


Shard = LocalShard | DistShard
Inputs = TypeVar("Inputs", bound=tuple[Any, ...])  # blocks, rows and more on the device of the model


class Task(ABC, Generic[BatchType, Inputs]):
    """A model with the same initial weights on all ranks, its batches, its loss and its exact evaluation."""

    name: ClassVar[str]  # value of --task
    score_name: ClassVar[str] = "accuracy"  # meaning of the scores of ``score`` and ``evaluate``
    supports_gpu: ClassVar[bool] = True  # whether the model can run on a GPU

    model: nn.Module  # without DistributedDataParallel
    train_loader: Loader  # training batches of this rank
    val_loader: Loader  # validation batches of this rank
    split: dict[str, int]  # numbers of nodes or edges of this rank, for its event ``split``
    embeddings: Mapping[str, Any] = {}  # learnable embeddings of DGL by name, saved with the weights
    sparse_optimizers: Sequence[Any] = ()  # DGL's optimizers of the embeddings

    def __init__(self, shard: Shard, config: TrainConfig) -> None:
        if shard.placement.on_gpu and not self.supports_gpu:
            raise InputError(f"--task {self.name} runs only on the CPU", "Use --device cpu.")
        self.shard, self.config, self.placement = shard, config, shard.placement

    @abstractmethod
    def inputs(self, batch: BatchType) -> Inputs:
        """Read the rows of a batch. Return its blocks, rows and other tensors on the device of the model."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, int]:
        """Return the mean loss over the examples of a batch, and their number."""

    @abstractmethod
    def score(self, model: nn.Module, inputs: Inputs) -> tuple[float, int]:
        """Return the sum of the scores of the examples of a batch, each between 0 and 1, and their number."""

    @abstractmethod
    def evaluate(self) -> TrainResult:
        """Return the exact scores of ``model`` over all ranks. Every rank calls this method."""

    def traffic(self, batch: Batch, inputs: Inputs) -> tuple[int, int]:
        """Return the bytes of rows that came from this machine and from other machines."""
        return batch.local_and_remote_bytes or local_and_remote_bytes(self.shard.graph, batch.input_nodes, inputs[1])

    @torch.no_grad()
    def validate(self, model: nn.Module, on_batch: OnBatch = no_events, *, epoch: int = 0) -> float:
        """Return the mean score over all ranks with sampled neighbors, which is a little below the exact score."""
        model.eval()
        total = count = 0.0
        for step, batch in self.val_loader.batches(epoch):
            score, examples = self.score(model, self.inputs(batch))
            total, count = total + score, count + examples
            on_batch(step + 1, len(self.val_loader))
        return mean_or_nan(*sum_over_ranks([total, count]))


def score_nodes(shard: Shard, outputs: Store, labels: Store, compare: Callable) -> tuple[float, float, Tensor]:
    """Return the accuracy on the validation and the test nodes of all ranks, and on rank 0 all predictions in order."""
    nodes, scores = shard.local_nodes(shard.target), []
    compared = [compare(read_rows(outputs, ids), read_rows(labels, ids)) for ids in nodes.split(ROWS_PER_READ)]
    predictions, correct = (torch.cat(parts) for parts in zip(*compared, strict=True))
    for mask in ("val_mask", "test_mask"):
        in_split = read_rows(shard.data[mask], nodes).bool()  # a uint8 mask, as DGL returns it, would index
        scores.append(mean_or_nan(*sum_over_ranks([float((correct & in_split).sum()), float(in_split.sum())])))
    return scores[0], scores[1], gather_by_original_id(nodes, predictions, shard.original_nodes(shard.target))[1]


# Takes a shard, a store, IDs and a batch size, and yields the IDs, the block and the input rows of each batch
BatchSource = Callable[[Shard, Any, Any, int], Iterator[tuple[Any, Block | None, Any]]]


@torch.no_grad()
def layerwise_inference(
    model: Any, source: BatchSource, features: Any, shard: Shard, batch_size: int, *, last: Callable = lambda h: h
) -> Store:
    """Return the outputs of the model for all nodes of the type ``shard.target``, a store of shape (N, outputs).

    Each layer is computed for all nodes. Batches of all hops would compute a popular node once for each batch. Each
    process computes rows of its own machine, because a write to another machine can be in transit after a barrier.
    ``last`` is applied to the output of the last layer.
    """
    x, y = features, dict[str, Store]()  # inputs and outputs of a layer
    typed, layers = isinstance(features, Mapping), len(model.layers)
    report_progress = ProgressReporter(shard.emit, "evaluation")
    model.eval()
    for depth, width in enumerate(model.sizes[1:]):
        types = model.types[depth + 1] if typed else [shard.target]
        y = {ntype: shard.new_store(f"inference-{depth}", width, ntype) for ntype in types}
        for ntype, store in y.items():
            nodes = shard.local_nodes(ntype)
            batches = source(shard, x, {ntype: nodes} if typed else nodes, batch_size)
            for number, (ids, block, rows) in enumerate(batches, start=1):
                h = model.layer(depth, block, rows)
                ids, h = (ids[ntype], h[ntype]) if typed else (ids, h)
                store[ids] = (last(h) if depth == layers - 1 else h).cpu()
                report_progress(number, -(-len(nodes) // batch_size), layer=depth, layers=layers)
        barrier()
        x = y if typed else y[shard.target]
    return y[shard.target]


def graph_batches(shard: Shard, x: Any, ids: Any, size: int) -> Iterator[tuple[Any, Block, Any]]:
    """Yield batches of DGL's loader. The store, the IDs and the rows are dictionaries in a graph with several types."""
    for _step, batch in BatchLoader(shard.graph, ids, [ALL_NEIGHBORS], size).batches(0):
        nodes = batch.input_nodes
        rows: Any = {t: read_rows(x[t], nodes[t]) for t in x} if isinstance(x, Mapping) else x[nodes]
        (block,), rows = shard.placement.to_device(batch.blocks, rows)
        yield batch.seeds, block, rows


def make_adjacency_source(pipeline: Pipeline, model: nn.Module, budget: int) -> BatchSource:
    """Return a source of batches from the adjacency of this machine, with ``budget`` bytes for remote rows."""
    layers = (module for module in model.modules() if isinstance(module, SAGEConv))
    features, sampler = pipeline.cache, pipeline.sampler

    def read(own: Tensor, store: DistTensor, parts: tuple[Tensor, ...]) -> Generator[tuple[Tensor, ...], None, None]:
        cache = features if store is features.store else FeatureCache(store, sampler.book, budget)
        requested = deque[tuple[Tensor, Tensor]]()
        for ids in (*parts, None):
            if ids is not None:
                indptr, sources = sampler.sample(ids, ALL_NEIGHBORS)
                cache.announce(torch.cat([ids.to(sampler.dtype), sources]))
                cache.request()
                requested.append((ids, indptr))
            if len(requested) == 2 or (ids is None and requested):  # two requests are in flight
                ids, indptr = requested.popleft()
                own_slots, slots = cache.receive_rows().tensor_split([len(ids)])
                yield ids, own[own_slots.long()], cache.mean(slots, indptr)

    def source(shard: Shard, x: DistTensor, ids: Tensor, size: int) -> Iterator[tuple[Tensor, None, FirstLayer]]:
        parts = ids.split(size) if len(ids) else ()
        multiply, store = next(layers).fc_neigh, x
        multiplied = x is not features.store and multiply.out_features < multiply.in_features
        if multiplied:  # the machines then exchange shorter rows
            store = shard.new_store("multiplied", multiply.out_features, shard.target)
            for part in parts:
                store[part] = multiply(x[part].to(shard.placement.device)).cpu()
            barrier()
        for part, *rows in prefetch(read(x.local_partition, store, parts), 1):
            yield part, None, FirstLayer(*shard.placement.to_device([], *rows)[1:], multiplied=multiplied)

    return source
