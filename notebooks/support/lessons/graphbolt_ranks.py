"""What the ranks of lesson 8 run: multi-GPU node classification with GraphBolt, on CPU ranks or on GPUs.

run
  ├─ to_device           on a GPU: pin graph and features; on the CPU: nothing
  ├─ train
  │    ├─ reshuffled         one new order of all items for each epoch, the same on every rank
  │    ├─ create_dataloader  this rank's items -> seeds -> neighbours -> features
  │    ├─ one_pass           the steps, under Join
  │    └─ evaluate           on all ranks; weighted_reduce brings the parts together on rank 0
  └─ evaluate            on the test set
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dgl.graphbolt as gb
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchmetrics.functional as MF
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm

from support.graphbolt_data import load_graphbolt
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import EpochResult
from tutorial_lib.trainer.seeding import seed_rank


@dataclass(frozen=True)
class Choices:
    """What the lesson varies; the tutorial it follows has the values given in brackets.

    Attributes:
        drop: leave out what does not fill a batch on every rank (True).
        data_loader: wrap the pipeline in ``gb.DataLoader`` (True); False iterates over the pipeline itself.
        progress: a progress bar on rank 0 (True).
    """

    drop: bool = False
    data_loader: bool = True
    progress: bool = False


@dataclass
class Report:
    """What one rank brings home.

    Attributes:
        epochs: loss and accuracy are those of all ranks together on rank 0, and of no use elsewhere.
        visited: per epoch, int64 ids of the seed nodes that this rank trained on.
    """

    epochs: list[EpochResult] = field(default_factory=list)
    test_accuracy: float = float("nan")
    visited: list[Tensor] = field(default_factory=list, repr=False)


def create_dataloader(
    graph: Any,
    features: Any,
    itemset: gb.ItemSet,
    config: TrainConfig,
    device: torch.device,
    *,
    drop: bool = False,
    data_loader: bool = True,
) -> Iterable[gb.MiniBatch]:
    """This rank's mini-batches; the items have been shuffled before."""
    datapipe = gb.DistributedItemSampler(
        item_set=itemset, batch_size=config.batch_size, shuffle=False, drop_last=drop, drop_uneven_inputs=drop
    )
    # Without extra_attrs the seed nodes would stay on the CPU, and so would the sampling.
    datapipe = datapipe.copy_to(device, extra_attrs=["seed_nodes"])
    datapipe = datapipe.sample_neighbor(graph, list(config.fanouts))
    datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
    if not data_loader:
        return datapipe
    return gb.DataLoader(datapipe, overlap_feature_fetch=device.type == "cuda")


def reshuffled(itemset: gb.ItemSet, seed: int) -> gb.ItemSet:
    """The same items in an order that depends on the seed alone."""
    order = torch.randperm(len(itemset), generator=torch.Generator().manual_seed(seed))
    return gb.ItemSet(tuple(column[order] for column in itemset[:]), names=itemset.names)


def weighted_reduce(total: Tensor, weight: int, dst: int = 0) -> Tensor:
    """Sum of ``total`` over all ranks divided by the sum of ``weight``; right on rank ``dst`` alone."""
    total = total.clone()  # reduce works in place
    weights = torch.tensor(float(weight), device=total.device)
    dist.reduce(total, dst)
    dist.reduce(weights, dst)
    return total / weights


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[gb.MiniBatch], num_classes: int) -> tuple[Tensor, int]:
    """Accuracy on this rank's share of the items, and how many they are; (0, 0) on a rank without any."""
    model.eval()
    y, y_hats = [], []
    for data in batches:
        y.append(data.labels)
        y_hats.append(model(data.blocks, data.node_features["feat"]))
    if not y:
        return next(model.parameters()).new_zeros(()), 0
    y, y_hats = torch.cat(y), torch.cat(y_hats)
    return MF.accuracy(y_hats, y, task="multiclass", num_classes=num_classes), len(y)


def one_pass(
    model: DDP, optimizer: torch.optim.Optimizer, batches: Iterable[gb.MiniBatch], device: torch.device
) -> tuple[Tensor, int, Tensor]:
    """Train on this rank's batches; sum of the losses, number of items, and which nodes they were."""
    model.train()
    total_loss, visited = torch.zeros((), device=device), []
    with Join([model]):
        for data in batches:
            y_hat = model(data.blocks, data.node_features["feat"])
            loss = F.cross_entropy(y_hat, data.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.detach() * len(data.labels)
            visited.append(data.seed_nodes.long().cpu())
    seen = torch.cat(visited) if visited else torch.empty(0, dtype=torch.int64)
    return total_loss, len(seen), seen


def train(
    rank: int,
    model: DDP,
    dataset: Any,
    graph: Any,
    features: Any,
    config: TrainConfig,
    device: torch.device,
    how: Choices,
) -> Report:
    """All epochs, each followed by validation on all ranks."""
    report, task = Report(), dataset.tasks[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    for epoch in range(config.epochs):
        items = reshuffled(task.train_set, config.seed * 100_003 + epoch)
        loader = create_dataloader(graph, features, items, config, device, drop=how.drop, data_loader=how.data_loader)
        start = time.perf_counter()
        bar = tqdm(loader, disable=rank > 0 or not how.progress)
        total_loss, count, visited = one_pass(model, optimizer, bar, device)
        if device.type == "cuda":
            torch.cuda.synchronize()  # or the time would end before the work
        seconds = time.perf_counter() - start
        loss = weighted_reduce(total_loss, count)
        accuracy = share_right(model.module, graph, features, task.validation_set, config, device, how)
        report.epochs.append(EpochResult(epoch, loss.item(), seconds, accuracy))
        report.visited.append(visited)
    return report


def share_right(
    model: nn.Module,
    graph: Any,
    features: Any,
    itemset: gb.ItemSet,
    config: TrainConfig,
    device: torch.device,
    how: Choices,
) -> float:
    """Accuracy over all ranks, on rank 0; every rank must take part."""
    loader = create_dataloader(graph, features, itemset, config, device, data_loader=how.data_loader)
    accuracy, count = evaluate(model, loader, model.sizes[-1])
    return weighted_reduce(accuracy * count, count).item()


def to_device(dataset: Any, device: torch.device) -> tuple[Any, Any]:
    """Graph and features where the steps on this device can read them: pinned in place for a GPU."""
    if device.type != "cuda":
        return dataset.graph, dataset.feature
    torch.cuda.set_device(device)
    return dataset.graph.pin_memory_(), dataset.feature.pin_memory_()


def run(
    rank: int, world_size: int, devices: Sequence[torch.device], folder: str, config: TrainConfig, how: Choices
) -> Report:
    """The whole training of one rank. Its process group is there already."""
    device = devices[rank]
    dataset = load_graphbolt(folder, in_memory=device.type == "cuda")
    graph, features = to_device(dataset, device)
    seed_rank(config.seed, rank)  # dropout
    gb.seed(config.seed * 1000 + rank)  # neighbours: GraphBolt has a generator of its own
    in_size = features.size("node", None, "feat")[0]
    model = config.model(in_size, dataset.tasks[0].metadata["num_classes"]).to(device)
    model = DDP(model)
    report = train(rank, model, dataset, graph, features, config, device, how)
    test_set = dataset.tasks[0].test_set
    report.test_accuracy = share_right(model.module, graph, features, test_set, config, device, how)
    return report
