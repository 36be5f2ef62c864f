"""What the ranks of lesson 6 run: the multi-GPU node classification tutorial, on CPU ranks or on GPUs.

train
  ├─ join_group          unless whoever started the rank has made the process group
  ├─ init_model          the same first weights on every rank, wrapped in DistributedDataParallel
  ├─ create_dataloader   this rank's share of the nodes, a new share in each epoch
  ├─ train_one_epoch     the steps, under Join
  └─ validate_on_...     rank_0 alone while the others wait, or all_ranks with counts summed; rank 0 keeps the best
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dgl
import psutil
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from support.multi_process import hush_dgl, save_best, share_of
from tutorial_lib.batches.nodes import Batch
from tutorial_lib.data import Dataset
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.trainer.exchange import sum_over_ranks
from tutorial_lib.trainer.loop import EpochResult
from tutorial_lib.trainer.seeding import seed_rank


@dataclass
class Data:
    """What every rank needs. ``features`` float32 (N, F), ``labels`` int64 (N,), ids int64."""

    graph: dgl.DGLGraph
    features: Tensor
    labels: Tensor
    train_ids: Tensor
    val_ids: Tensor
    test_ids: Tensor
    num_classes: int

    @classmethod
    def of(cls, dataset: Dataset) -> Data:
        """The parts of a data set."""
        columns = dataset.graph.ndata
        train, val, test = (columns[f"{name}_mask"].nonzero().flatten() for name in ("train", "val", "test"))
        return cls(dataset.graph, columns["feat"], columns["label"], train, val, test, dataset.num_classes)


@dataclass(frozen=True)
class Job:
    """How to train.

    Attributes:
        devices, backend: of rank 0, 1, ...; "gloo" or "nccl".
        fanouts, batch_size: neighbours per hop, outermost first; seed nodes of one step, over all ranks.
        validate: "rank 0" or "all ranks".
        init_method, model_path: where the ranks meet (None: they have), and where rank 0 saves the best model.
    """

    devices: tuple[torch.device, ...] = (torch.device("cpu"),)
    backend: str = "gloo"
    epochs: int = 8
    fanouts: tuple[int, ...] = (4, 4, 4)
    batch_size: int = 256
    hidden_size: int = 64
    learning_rate: float = 0.01
    dropout: float = 0.0
    seed: int = 0
    validate: str = "all ranks"
    init_method: str | None = None
    model_path: str | None = None


@dataclass
class Report:
    """What one rank brings home, one entry per epoch.

    Attributes:
        losses: mean over the seed nodes of all ranks.
        val: (correct, number of nodes); None on a rank that did not validate.
        visited: the seed nodes that this rank trained on.
        spans: (what, start, end) in seconds of the system's clock.
    """

    losses: list[float] = field(default_factory=list)
    val: list[tuple[int, int] | None] = field(default_factory=list)
    visited: list[Tensor] = field(default_factory=list)
    spans: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def epochs(self) -> list[EpochResult]:
        """The same as other ways to train tell it; for a rank that validated."""
        seconds = [end - start for what, start, end in self.spans if what == "train"]
        rows = enumerate(zip(self.losses, seconds, self.val, strict=True))
        return [EpochResult(epoch, loss, took, val[0] / val[1]) for epoch, (loss, took, val) in rows if val]

    @contextlib.contextmanager
    def span(self, what: str) -> Iterator[None]:
        """Take the time of the body."""
        start = time.monotonic()
        yield
        self.spans.append((what, start, time.monotonic()))


class FrontierSampler(dgl.dataloading.BlockSampler):
    """Blocks, hop by hop; a subclass says in ``sample_frontier`` which edges take part in a layer."""

    def __init__(self, fanouts: Iterable[int]) -> None:
        super().__init__()
        self.fanouts = list(fanouts)

    def sample_frontier(self, layer: int, graph: Any, seeds: Tensor) -> Any:
        """A graph with the nodes of ``graph`` and only the edges that send messages to ``seeds``."""
        raise NotImplementedError

    def sample_blocks(self, g: Any, seed_nodes: Tensor, exclude_eids: Any = None) -> Any:  # noqa: ARG002
        """Input nodes, output nodes, blocks."""
        nodes, blocks = seed_nodes, []
        for layer in reversed(range(len(self.fanouts))):
            frontier = self.sample_frontier(layer, g, nodes)
            block = dgl.to_block(frontier, nodes)
            if dgl.EID in frontier.edata:  # ids in the whole graph, not in the frontier
                block.edata[dgl.EID] = frontier.edata[dgl.EID][block.edata[dgl.EID]]
            nodes = block.srcdata[dgl.NID]
            blocks.insert(0, block)
        return nodes, seed_nodes, blocks


class UniformSampler(FrontierSampler):
    """Every neighbour is equally likely."""

    def sample_frontier(self, layer: int, graph: Any, seeds: Tensor) -> Any:
        """Up to ``fanouts[layer]`` incoming edges of each seed."""
        return dgl.sampling.sample_neighbors(graph, seeds, self.fanouts[layer])


def create_dataloader(
    rank: int, world_size: int, data: Data, nids: Tensor, job: Job, *, seed: int | None = None
) -> dgl.dataloading.DataLoader:
    """Batches of this rank's share of ``nids``; with a seed, shuffled over all ranks first."""
    hush_dgl()  # no advice on CPU affinity
    nids = share_of(nids, rank, world_size, seed=seed)
    sampler = UniformSampler(job.fanouts)
    batch_size = max(1, job.batch_size // world_size)
    return dgl.dataloading.DataLoader(
        data.graph, nids, sampler, batch_size=batch_size, shuffle=False, drop_last=False, num_workers=0
    )


def new_model(data: Data, job: Job) -> GraphSAGE:
    """First weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        sizes = data.features.shape[1], job.hidden_size, data.num_classes
        return GraphSAGE(*sizes, num_layers=len(job.fanouts), dropout=job.dropout)


def init_model(rank: int, data: Data, job: Job) -> DistributedDataParallel:
    """The model on this rank's device, its gradients averaged over all ranks."""
    device = job.devices[rank]
    model = new_model(data, job).to(device)
    if device.type == "cpu":
        return DistributedDataParallel(model)
    return DistributedDataParallel(model, device_ids=[device], output_device=device)


def loss_of(model: nn.Module, batch: Batch, data: Data, device: torch.device) -> Tensor:
    """Mean loss over the seed nodes of a batch."""
    blocks = [block.to(device) for block in batch.blocks]
    inputs = data.features[batch.input_nodes].to(device)
    labels = data.labels[batch.seeds].to(device)
    return F.cross_entropy(model(blocks, inputs), labels)


def train_one_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], data: Data, device: torch.device
) -> float:
    """One pass over this rank's batches; the mean loss over the seed nodes of all ranks."""
    model.train()
    loss_sum, count = 0.0, 0
    with Join([model]) if isinstance(model, Joinable) else contextlib.nullcontext():
        for batch in batches:
            loss = loss_of(model, batch, data, device)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(batch.seeds)
            count += len(batch.seeds)
    total, nodes = sum_over_ranks([loss_sum, count])
    return total / nodes


@torch.no_grad()
def count_correct(model: nn.Module, loader: Iterable[Any], data: Data, device: torch.device) -> tuple[int, int]:
    """How many nodes of the loader are classified right, and how many there are."""
    model.eval()
    correct = count = 0
    for input_nodes, output_nodes, blocks in loader:
        logits = model([block.to(device) for block in blocks], data.features[input_nodes].to(device))
        correct += int((logits.argmax(1).cpu() == data.labels[output_nodes]).sum())
        count += len(output_nodes)
    return correct, count


def validate_on_rank_0(
    rank: int, _world_size: int, model: nn.Module, data: Data, job: Job, report: Report
) -> tuple[int, int] | None:
    """Rank 0 looks at all validation nodes, the others wait for it."""
    found = None
    if rank == 0:
        with report.span("validate"):
            loader = create_dataloader(0, 1, data, data.val_ids, job)
            found = count_correct(model, loader, data, job.devices[rank])
    with report.span("wait"):
        dist.barrier()
    return found


def validate_on_all_ranks(
    rank: int, world_size: int, model: nn.Module, data: Data, job: Job, report: Report
) -> tuple[int, int]:
    """Each rank looks at its share; the counts are summed, so that every rank knows the result."""
    with report.span("validate"):
        loader = create_dataloader(rank, world_size, data, data.val_ids, job)
        found = count_correct(model, loader, data, job.devices[rank])
    with report.span("wait"):
        correct, count = sum_over_ranks(list(found))
    return int(correct), int(count)


def join_group(rank: int, world_size: int, job: Job) -> None:
    """Make the process group where nobody else has."""
    if job.init_method is not None:
        backend = "cpu:gloo,cuda:nccl" if job.backend == "nccl" else job.backend  # counts are summed on the CPU
        dist.init_process_group(backend, init_method=job.init_method, world_size=world_size, rank=rank)
    if job.devices[rank].type == "cuda":
        torch.cuda.set_device(job.devices[rank])


def noted(loader: Iterable[Any], seeds: list[Tensor]) -> Iterator[Batch]:
    """The batches of a loader; their seed nodes go into a list."""
    for drawn in loader:
        batch = Batch(*drawn)
        seeds.append(batch.seeds)
        yield batch


def train(rank: int, world_size: int, data: Data, job: Job) -> Report:
    """The whole training of one rank."""
    join_group(rank, world_size, job)
    seed_rank(job.seed, rank)
    device = job.devices[rank]
    model = init_model(rank, data, job)
    optimizer = torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    validate = validate_on_rank_0 if job.validate == "rank 0" else validate_on_all_ranks
    report, best = Report(), 0
    for epoch in range(job.epochs):
        loader = create_dataloader(rank, world_size, data, data.train_ids, job, seed=job.seed * 1000 + epoch)
        seeds: list[Tensor] = []
        with report.span("train"):
            report.losses.append(train_one_epoch(model, optimizer, noted(loader, seeds), data, device))
        found = validate(rank, world_size, model.module, data, job, report)
        report.val.append(found)
        report.visited.append(torch.cat(seeds))
        if rank == 0 and job.model_path and found and found[0] > best:
            best = found[0]
            save_best(model.module, Path(job.model_path))
    return report


def train_and_write(rank: int, world_size: int, data: Data, job: Job, folder: str) -> None:
    """``train`` for a process that can return nothing: the report goes into a file."""
    torch.set_num_threads(1)
    report = train(rank, world_size, data, job)
    lines = {"losses": report.losses, "val": report.val, "visited": [ids.tolist() for ids in report.visited]}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(lines))


def pss_of() -> dict[str, int]:
    """Memory of this process in bytes.

    Returns:
        ``rss``: every resident page, shared ones in full. ``pss``: each shared page divided by the number of processes
        that map it, so that the sum over processes is what they use together. ``private``: pages of this process
        alone. ``shared``: the rest.
    """
    memory: Any = psutil.Process().memory_full_info()
    return {"rss": memory.rss, "pss": memory.pss, "private": memory.uss, "shared": memory.rss - memory.uss}


def memory_in_use(_rank: int, _world_size: int, graph: Any = None) -> dict[str, int]:
    """Do what a rank does with the graph, then look at the memory, in bytes, while all ranks are there.

    Without a graph: what a rank costs that does nothing.
    """
    if graph is not None:
        graph.ndata["feat"].sum()  # reads every page of the features
        dgl.sampling.sample_neighbors(graph, torch.arange(100), 5)
    dist.barrier()
    memory = pss_of()
    dist.barrier()
    return memory
