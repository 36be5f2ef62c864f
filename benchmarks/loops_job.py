"""The program of each process of a benchmark. It runs one epoch of each loop in every round.

    python benchmarks/loops_job.py SETTINGS     (started by bench.py, growth.py and scale.py on every machine)

Every loop has its own model and optimizer, and all loops read from the same servers over the same link. The time of an
epoch is the time between two barriers, and its bytes are those that the network interface sent in this time.

    guide            guide_loop.py
    ours             the loop of train, trainer.loop.train_epoch with batches from the pipeline
    ours, ...        the same loop with the changes that its name lists. With "first come", the rows that filled the
                     cache first stay in it
    alone            the guide's forward, backward and step on batches in memory. The steps use the first IN_MEMORY
                     batches in turn, because the batches of a large graph do not all fit
    ours alone       the same with our batches
"""

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import guide_loop
import torch
import torch.distributed as dist
import torch.nn.functional as F

from support.lessons.bandwidth import set_bandwidth
from tutorial_lib.compat.settings import keep_freed_memory
from tutorial_lib.models.graphsage import build_graphsage
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.loader import BatchLoader
from tutorial_lib.sampling.neighbors import NeighborSampler
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader
from tutorial_lib.tasks.node import NodeTask
from tutorial_lib.tasks.task import DistShard, layerwise_inference, make_adjacency_source
from tutorial_lib.trainer.checkpoint import TrainState
from tutorial_lib.trainer.comm import equal_steps, mean_or_nan, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import check_finite, train_epoch
from tutorial_lib.trainer.manifest import EpochResult
from tutorial_lib.trainer.placement import CPU
from tutorial_lib.trainer.session import Session, open_session, serve_if_server

Loop = Callable[[], Any]
IN_MEMORY = 8  # batches


class Loops:
    """The loops of one trainer, created at their first use."""

    def __init__(self, session: Session, settings: dict[str, Any]) -> None:
        self.session, self.graph = session, session.graph
        self.config = TrainConfig.from_dict(settings["config"])
        self.classes = settings["num_classes"]
        partition = load_partition_folder(Path(os.environ["DGL_CONF_PATH"]).parent, checksums=False)
        self.shard = DistShard(session, partition)
        self.features, self.labels = self.graph.ndata["feat"], self.graph.ndata["label"]
        self.train = self.shard.nodes("train_mask")
        self.loops: dict[str, Loop] = {}
        self.models: dict[str, torch.nn.Module] = {}
        self.pipelines: dict[str, Pipeline] = {}

    def __getitem__(self, name: str) -> Loop:
        if name not in self.loops:
            self.loops[name] = self._create(name)
        return self.loops[name]

    def reset(self) -> None:
        """Discard all loops, so that the next ones start with new weights."""
        self.loops.clear()

    def _create_model(self, name: str, *, guide: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        config, width = self.config, self.features.shape[1]
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            if guide:
                layers = len(config.fanouts)
                model = guide_loop.GraphSAGE(width, config.hidden_size, self.classes, layers, config.dropout)
            else:
                model = build_graphsage(config, width, self.classes)
        self.models[name] = model
        wrapped = CPU.wrap(model)
        return wrapped, torch.optim.Adam(wrapped.parameters(), lr=config.learning_rate)

    def _create(self, name: str) -> Loop:
        model, optimizer = self._create_model(name, guide=name in ("guide", "alone"))
        steps = math.ceil(len(self.train) / self.config.batch_size)
        if name in ("guide", "alone"):
            loader = guide_loop.make_loader(self.graph, self.train, list(self.config.fanouts), self.config.batch_size)
            if name == "guide":
                return lambda: guide_loop.train_epoch(self.graph, model, optimizer, loader)
            features, labels = self.features, self.labels
            # DGL's loader forgets its sampler when it is deleted, so no batch may remain in the sampler process.
            first = [batch for number, batch in enumerate(loader) if number < IN_MEMORY]
            batches = [(blocks, features[nodes], labels[seeds].long()) for nodes, seeds, blocks in first]
            return lambda: train_from_memory(model, optimizer, batches, steps)
        if name == "ours alone":
            first = islice(self.create_loader("ours").batches(0), IN_MEMORY)
            ours_in_memory = [(batch.blocks, batch.inputs, batch.labels) for _step, batch in first]
            return lambda: train_from_memory(model, optimizer, ours_in_memory, steps)
        task, state = NodeTask(self.shard, replace(self.config, loader="dgl")), TrainState()
        task.train_loader = self.create_loader(name)

        def train_ours() -> None:
            train_epoch(model, optimizer, task, state, emit=self.session.events.emit)
            state.step = 0
            state.epochs.append(EpochResult(state.epoch, 0.0, 0.0, 0.0))

        return train_ours

    def create_loader(self, name: str) -> PipelineLoader | BatchLoader:
        """Return the training batches of one of our loops."""
        config = self.config
        steps, seed = equal_steps(len(self.train), config.batch_size), self.session.rank
        common: Any = {"steps": steps, "seed": seed, "shuffle": True}
        if name == "ours, DGL's loader":
            return BatchLoader(self.graph, self.train, config.fanouts, config.batch_size, threads=1, **common)
        if name not in self.pipelines:
            self.pipelines[name] = self.create_pipeline(name)
        means = name != "ours, rows copied, means in the model"
        pipeline = self.pipelines[name]
        return PipelineLoader(pipeline, self.train, config.fanouts, config.batch_size, means=means, **common)

    def create_pipeline(self, name: str) -> Pipeline:
        """Return the pipeline of one of our loops, with empty caches."""
        changes = name.split(", ")[1:]
        adjacency_bytes = 0 if {"no cached adjacency", "no cache"} & set(changes) else self.config.cache // 2
        row_bytes = 0 if {"no cached rows", "no cache"} & set(changes) else self.config.cache // 2
        for change in changes:
            if share := re.fullmatch(r"([\d.]+)% of the remote rows cached", change):
                remote = self.graph.num_nodes() - len(self.features.local_partition)
                row_bytes = int(remote * self.features.shape[1] * 4 * float(share[1]) / 100)
                adjacency_bytes = 8 * self.graph.num_edges()  # all, because only the rows are compared
        sampler = NeighborSampler(self.graph, adjacency_bytes, len(self.config.fanouts))
        cache_class = FirstComeCache if "first come" in changes else FeatureCache
        cache = cache_class(self.features, self.graph.get_partition_book(), row_bytes)
        return Pipeline(sampler, cache, self.labels, 0 if "no batches ahead" in changes else self.config.ahead)


class FirstComeCache(FeatureCache):
    """A cache that evicts no row, because it does not look ahead."""

    look_ahead = 0


def train_from_memory(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list, steps: int) -> None:
    """Train on batches in memory, including the all-reduce of gradients."""
    model.train()
    with model.join():
        for number in range(steps):
            blocks, inputs, labels = batches[number % len(batches)]
            loss = F.cross_entropy(model(blocks, inputs), labels)
            check_finite(loss.item(), 0, number)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def count_sent_bytes() -> int:
    """Return the bytes that this machine has sent over all interfaces except the loopback interface."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if not line.strip().startswith("lo:"))


def measure_epoch(loop: Loop) -> dict[str, float]:
    """Return the seconds between the barriers, this trainer's processor seconds, and the bytes sent by this machine."""
    dist.barrier()
    start, cpu, sent = time.perf_counter(), time.process_time(), count_sent_bytes()
    loop()
    dist.barrier()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "sent": count_sent_bytes() - sent,
    }


def measure_seconds(session: Session, settings: dict[str, Any]) -> None:
    """Run every loop in warm-up rounds, and then in measured rounds, at each bandwidth."""
    loops = Loops(session, settings)
    for bandwidth in settings["bandwidths"]:
        if settings["emulated"]:
            set_bandwidth(bandwidth)
        for number in range(-settings["warm"], settings["rounds"]):
            for name in settings["loops"]:
                measured = measure_epoch(loops[name])
                pipeline = loops.pipelines.get(name)
                cache = {"requested": pipeline.cache.num_requested, "hits": pipeline.cache.hits} if pipeline else {}
                session.events.emit("timed", bandwidth=bandwidth, round=number, loop=name, cache=cache, **measured)


class RecordingCache(FeatureCache):
    """Records the remote rows that each batch needs, and its number of announced batches."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.needed: list[torch.Tensor] = []
        self.look_aheads: list[int] = []

    def announce(self, ids: torch.Tensor) -> None:
        super().announce(ids)
        self.needed.append(self._announced[-1][0])
        self.look_aheads.append(self.look_ahead)


def count_rows(session: Session, settings: dict[str, Any]) -> None:
    """Count the pulled remote rows in epochs without training. Every loop reads the same batches."""
    loops = Loops(session, settings)
    for name in settings["loops"]:
        pipeline = loops.create_pipeline(name)
        cache: Any = pipeline.cache
        if not isinstance(cache, FirstComeCache):
            budget = cache.capacity * cache.row_bytes
            pipeline.cache = cache = RecordingCache(loops.features, pipeline.sampler.book, budget)
        loops.pipelines[name] = pipeline
        torch.manual_seed(loops.config.seed * 1000 + session.rank)
        loader, batches, pulled = loops.create_loader(name), 0, [0]
        for epoch in range(settings["rounds"] + 1):
            batches = sum(1 for _ in loader.batches(epoch))
            pulled.append(cache.num_requested - cache.hits)
        more = {}
        if isinstance(cache, RecordingCache):
            first = len(cache.needed) - batches * settings["rounds"]  # after the epoch that fills the cache
            fewest = fewest_pulls(cache.needed, cache.capacity, len(cache.slot_of))
            more = {"fewest": sum(fewest[first:]), "look_ahead": max(cache.look_aheads)}
        needed = cache.num_requested * settings["rounds"] // (settings["rounds"] + 1)
        session.events.emit("rows", loop=name, needed=needed, pulled=pulled[-1] - pulled[1], batches=batches, **more)
        dist.barrier()


def fewest_pulls(needed: list[torch.Tensor], capacity: int, n: int) -> list[int]:
    """Return the rows that each batch pulls under Belady's rule, which knows all batches."""
    never = len(needed)
    next_use = torch.full((n,), never)  # the number of the next batch that needs a row
    next_uses: list[torch.Tensor] = []  # of the rows of each batch after it, the last batch first
    for number in reversed(range(len(needed))):
        next_uses.append(next_use[needed[number]])
        next_use[needed[number]] = number
    is_cached = torch.zeros(n, dtype=torch.bool)
    next_use = torch.full((n,), never)
    pulls = []
    for ids, batches in zip(needed, reversed(next_uses), strict=True):
        pulls.append(int((~is_cached[ids]).sum()))
        is_cached[ids] = True
        next_use[ids] = batches
        cached = is_cached.nonzero().flatten()
        is_cached[cached[torch.argsort(next_use[cached], stable=True)[capacity:]]] = False
    return pulls


def measure_accuracy(session: Session, settings: dict[str, Any]) -> None:
    """Measure the accuracy over all test nodes after the epochs of each loop, for each seed."""
    loops = Loops(session, settings)
    graph, n = session.graph, session.graph.num_nodes()
    nodes = loops.shard.local_nodes("_N")
    test = graph.ndata["test_mask"][nodes].bool()
    labels = graph.ndata["label"][nodes]
    sampler = NeighborSampler(graph, 0, 3)
    for seed in settings["seeds"]:
        loops.config = TrainConfig.from_dict({**settings["config"], "seed": seed})
        loops.reset()
        torch.manual_seed(seed * 1000 + session.rank)
        for name in settings["loops"]:
            for _ in range(settings["epochs"]):
                loops[name]()
            model = copy_to_our_model(loops, name)
            prefix = f"{name}-{seed}".replace(" ", "-")
            shard = loops.shard
            shard.new_store = lambda layer, width, _ntype, prefix=prefix: new_store(n, width, f"{prefix}-{layer}")
            cache = FeatureCache(loops.features, sampler.book, loops.config.cache)
            source = make_adjacency_source(Pipeline(sampler, cache, loops.labels), model, loops.config.cache)
            logits = layerwise_inference(model, source, loops.features, shard, 5000)
            correct = float((logits[nodes].argmax(1) == labels)[test].sum())
            test_accuracy = mean_or_nan(*sum_over_ranks([correct, float(test.sum())]))
            session.events.emit("learned", seed=seed, loop=name, test_accuracy=test_accuracy)


def new_store(n: int, width: int, name: str) -> Any:
    """Return a new DistTensor."""
    import dgl

    return dgl.distributed.DistTensor((n, width), torch.float32, name=name)


def copy_to_our_model(loops: Loops, name: str) -> torch.nn.Module:
    """Copy the weights of a loop's model into a new model of tutorial_lib, whose weights have the same names."""
    model = build_graphsage(loops.config, loops.features.shape[1], loops.classes)
    model.load_state_dict(loops.models[name].state_dict())
    return model


if __name__ == "__main__":
    serve_if_server()
    settings = json.loads(Path(sys.argv[1]).read_text())
    if settings["keep_freed_memory"]:
        keep_freed_memory()
    measurements = {"seconds": measure_seconds, "rows": count_rows, "accuracy": measure_accuracy}
    with open_session(settings["graph_name"], seed=0) as session:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
        measurements[settings["measurement"]](session, settings)
        if dist.get_rank() == 0:
            session.events.emit("finished")
