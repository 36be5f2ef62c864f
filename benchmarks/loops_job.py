"""What each process of a benchmark's job runs: epochs of several loops, one after the other, round after round.

    python benchmarks/loops_job.py SETTINGS     (started by bench.py and growth.py on every machine)

Every loop has its own model and optimizer, and all read the same servers over the same wire. An epoch is timed from a
barrier before it to a barrier after it; the bytes are those that left this machine's interface meanwhile.

    guide            guide_loop.py
    ours             what ``train`` does: trainer.loop.train_epoch with batches from the pipeline
    ours, ...        the same with one thing changed; "..., first come": the rows that come first stay for ever;
    alone            the guide's forward, backward and step over its batches, in memory before: as many steps, but of
                     the first IN_MEMORY batches in turns, for all of a large graph do not fit
    ours alone       the same of our batches
"""

import json
import math
import os
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
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader
from tutorial_lib.sampling.rpc import NeighborSampler
from tutorial_lib.tasks.node import NodeTask
from tutorial_lib.tasks.task import DistShard, layerwise_inference, make_adjacency_source
from tutorial_lib.trainer.checkpoint import TrainState
from tutorial_lib.trainer.comm import accuracy, equal_steps, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import check_finite, train_epoch
from tutorial_lib.trainer.manifest import EpochResult
from tutorial_lib.trainer.placement import CPU
from tutorial_lib.trainer.session import Session, open_session, serve_if_server

Loop = Callable[[], Any]
IN_MEMORY = 8


class Loops:
    """The loops of one trainer, made when they are first asked for."""

    def __init__(self, session: Session, settings: dict[str, Any]) -> None:
        self.session, self.graph = session, session.graph
        self.config = TrainConfig.from_dict(settings["config"])
        self.classes = settings["num_classes"]
        partition = load_partition_folder(Path(os.environ["DGL_CONF_PATH"]).parent, checksums=False)
        self.shard = DistShard(session, partition)
        self.features, self.labels = self.graph.ndata["feat"], self.graph.ndata["label"]
        self.train = self.shard.nodes("train_mask")
        self.made: dict[str, Loop] = {}
        self.models: dict[str, torch.nn.Module] = {}
        self.pipelines: dict[str, Pipeline] = {}

    def __getitem__(self, name: str) -> Loop:
        if name not in self.made:
            self.made[name] = self._make(name)
        return self.made[name]

    def forget(self) -> None:
        """Begin anew, with other weights."""
        self.made.clear()

    def _learner(self, name: str, *, guide: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        config, width = self.config, self.features.shape[1]
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            if guide:
                layers = len(config.fanouts)
                plain = guide_loop.GraphSAGE(width, config.hidden_size, self.classes, layers, config.dropout)
            else:
                plain = build_graphsage(config, width, self.classes)
        self.models[name] = plain
        model = CPU.wrap(plain)
        return model, torch.optim.Adam(model.parameters(), lr=config.learning_rate)

    def _make(self, name: str) -> Loop:
        model, optimizer = self._learner(name, guide=name in ("guide", "alone"))
        steps = math.ceil(len(self.train) / self.config.batch_size)
        if name in ("guide", "alone"):
            loader = guide_loop.loader_of(self.graph, self.train, list(self.config.fanouts), self.config.batch_size)
            if name == "guide":
                return lambda: guide_loop.epoch(self.graph, model, optimizer, loader)
            read, labels = self.features, self.labels
            first = islice(loader, IN_MEMORY)
            batches = [(blocks, read[nodes], labels[seeds].long()) for nodes, seeds, blocks in first]
            return lambda: from_memory(model, optimizer, batches, steps)
        if name == "ours alone":
            loader = self._loader("ours")
            saved = [
                (batch.blocks, batch.inputs, batch.labels) for _step, batch in islice(loader.batches(0), IN_MEMORY)
            ]
            return lambda: from_memory(model, optimizer, saved, steps)
        task, state = NodeTask(self.shard, replace(self.config, loader="dgl")), TrainState()
        task.train_loader = self._loader(name)

        def ours() -> None:
            train_epoch(model, optimizer, task, state, emit=self.session.events.emit)
            state.step = 0
            state.epochs.append(EpochResult(state.epoch, 0.0, 0.0, 0.0))

        return ours

    def _loader(self, name: str) -> PipelineLoader | BatchLoader:
        config = self.config
        steps, seed = equal_steps(len(self.train), config.batch_size), self.session.rank
        common: Any = {"steps": steps, "seed": seed, "shuffle": True}
        if name == "ours, DGL's loader":
            return BatchLoader(self.graph, self.train, config.fanouts, config.batch_size, threads=1, **common)
        if name not in self.pipelines:
            self.pipelines[name] = self._pipeline(name)
        means = name != "ours, rows copied, means in the model"
        pipeline = self.pipelines[name]
        return PipelineLoader(pipeline, self.train, config.fanouts, config.batch_size, means=means, **common)

    def _pipeline(self, name: str) -> Pipeline:
        hops = len(self.config.fanouts)
        lists = 0 if "no lists kept" in name or "nothing kept" in name else self.config.cache // 2
        rows = 0 if "no rows kept" in name or "nothing kept" in name else self.config.cache // 2
        if "% of the remote rows kept" in name:
            remote = self.graph.num_nodes() - len(self.features.local_partition)
            rows = int(remote * self.features.shape[1] * 4 * float(name.split()[1].rstrip("%")) / 100)
            lists = 8 * self.graph.num_edges()  # all: the question is what rows are worth
        made = NeighborSampler(self.graph, lists, hops)
        book = self.graph.get_partition_book()
        table = (FirstCome if name.endswith("first come") else FeatureCache)(self.features, book, rows)
        return Pipeline(made, table, self.labels, 0 if "nothing ahead" in name else self.config.ahead)


class FirstCome(FeatureCache):
    """Without a look-ahead, no row is evicted."""

    look_ahead = 0


def from_memory(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list, steps: int) -> None:
    """The computing alone, exchange of gradients included."""
    model.train()
    with model.join():
        for number in range(steps):
            blocks, inputs, labels = batches[number % len(batches)]
            loss = F.cross_entropy(model(blocks, inputs), labels)
            check_finite(loss.item(), 0, number)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def sent_bytes() -> int:
    """Bytes that left this machine so far, over every interface but the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if not line.strip().startswith("lo:"))


def timed(loop: Loop) -> dict[str, float]:
    """Seconds between the barriers, processor seconds of this trainer, bytes that this machine sent."""
    dist.barrier()
    start, cpu, sent = time.perf_counter(), time.process_time(), sent_bytes()
    loop()
    dist.barrier()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "sent": sent_bytes() - sent,
    }


def compare(session: Session, settings: dict[str, Any]) -> None:
    """Every loop once, not measured; then round after round, at each speed of the wire."""
    loops = Loops(session, settings)
    for speed in settings["speeds"]:
        if settings["emulated"]:
            set_bandwidth(speed)
        for number in range(-settings["warm"], settings["rounds"]):
            for name in settings["loops"]:
                found = timed(loops[name])
                cache = loops.pipelines[name].cache if name in loops.pipelines else None
                kept = {"rows_asked": cache.num_requested, "rows_found": cache.hits} if cache else {}
                session.events.emit("timed", wire=speed, round=number, loop=name, pipeline=kept, **found)


class Recorder(FeatureCache):
    """Notes which remote rows each batch needs, and how long its window into the next batches is."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.needed: list[torch.Tensor] = []
        self.windows: list[int] = []

    def announce(self, ids: torch.Tensor) -> None:
        super().announce(ids)
        self.needed.append(self._announced[-1][0])
        self.windows.append(self.look_ahead)


def rows(session: Session, settings: dict[str, Any]) -> None:
    """Epochs of batches that nobody learns from, the same for every loop: how many remote rows are pulled for them."""
    loops = Loops(session, settings)
    for name in settings["loops"]:
        pipeline = loops._pipeline(name)
        table: Any = pipeline.cache
        if not name.endswith("first come"):
            pipeline.cache = table = Recorder(loops.features, pipeline.sampler.book, table.capacity * table.row_bytes)
        loops.pipelines[name] = pipeline
        torch.manual_seed(loops.config.seed * 1000 + session.rank)
        batches, pulled = 0, [0]
        for _ in range(settings["rounds"] + 1):
            batches = sum(1 for _ in loops._loader(name))
            pulled.append(table.num_requested - table.hits)
        first = len(getattr(table, "needed", [])) and len(table.needed) - batches * settings["rounds"]
        more = {}
        if first:
            fewest = fewest_pulls(table.needed, table.capacity, len(table.slot_of))
            more = {"fewest": sum(fewest[first:]), "window": max(table.windows)}
        asked = table.num_requested * settings["rounds"] // (settings["rounds"] + 1)
        session.events.emit("rows", loop=name, asked=asked, pulled=pulled[-1] - pulled[1], batches=batches, **more)
        dist.barrier()


def fewest_pulls(needed: list[torch.Tensor], capacity: int, n: int) -> list[int]:
    """Rows that each batch pulls where all batches are known, and the row goes that is needed last (Belady)."""
    last = len(needed)
    following = torch.full((n,), last)
    after: list[torch.Tensor] = []  # of each batch, when its rows are needed next
    for number in reversed(range(last)):
        after.append(following[needed[number]])
        following[needed[number]] = number
    here = torch.zeros(n, dtype=torch.bool)
    when = torch.full((n,), last)
    pulls = []
    for ids, times in zip(needed, reversed(after), strict=True):
        pulls.append(int((~here[ids]).sum()))
        here[ids] = True
        when[ids] = times
        kept = here.nonzero().flatten()
        here[kept[torch.argsort(when[kept], stable=True)[capacity:]]] = False
    return pulls


def learn(session: Session, settings: dict[str, Any]) -> None:
    """Accuracy over all test nodes after some epochs of each loop, for each seed."""
    loops = Loops(session, settings)
    graph, n = session.graph, session.graph.num_nodes()
    nodes = loops.shard.local_nodes("_N")
    test = graph.ndata["test_mask"][nodes].bool()
    labels = graph.ndata["label"][nodes]
    lists = NeighborSampler(graph, 0, 3)
    for seed in settings["seeds"]:
        loops.config = TrainConfig.from_dict({**settings["config"], "seed": seed})
        loops.forget()
        torch.manual_seed(seed * 1000 + session.rank)
        for name in settings["loops"]:
            for _ in range(settings["epochs"]):
                loops[name]()
            plain = our_model(loops, name)
            where = f"{name}-{seed}".replace(" ", "-")
            shard = loops.shard
            shard.new_store = lambda k, width, _ntype, where=where: store(n, width, f"{where}-{k}")
            source = make_adjacency_source(lists, loops.config.cache)
            logits = layerwise_inference(plain, source, loops.features, shard, 5000)
            right = float((logits[nodes].argmax(1) == labels)[test].sum())
            found = accuracy(*sum_over_ranks([right, float(test.sum())]))
            session.events.emit("learned", seed=seed, loop=name, test_accuracy=found)


def store(n: int, width: int, name: str) -> Any:
    """A new DistTensor."""
    import dgl

    return dgl.distributed.DistTensor((n, width), torch.float32, name=name)


def our_model(loops: Loops, name: str) -> torch.nn.Module:
    """The weights of a loop's model in ``models.GraphSAGE``; the names of the weights are the same."""
    model = build_graphsage(loops.config, loops.features.shape[1], loops.classes)
    model.load_state_dict(loops.models[name].state_dict())
    return model


if __name__ == "__main__":
    serve_if_server()
    plan = json.loads(Path(sys.argv[1]).read_text())
    if plan["keep_freed_memory"]:
        keep_freed_memory()
    with open_session(plan["graph_name"], seed=0) as job:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
        {"learn": learn, "compare": compare, "rows": rows}[plan.get("what", "compare")](job, plan)
        if dist.get_rank() == 0:
            job.events.emit("finished")
