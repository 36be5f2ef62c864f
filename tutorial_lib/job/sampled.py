"""What an estimate is made of: a partition's numbers, hops drawn on it, and seconds of a step on this computer."""

from __future__ import annotations

import itertools
import math
import os
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import dgl
import torch
from torch import Tensor
from torch.nn import functional as F

from tutorial_lib.batches.neighbours import HereLists, most_used
from tutorial_lib.batches.nodes import sampling_threads
from tutorial_lib.batches.service import id_type, in_edges_of_part
from tutorial_lib.cluster.emulated import parse_wire
from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.errors import InputError
from tutorial_lib.job.estimate import DRAWN, THREADS, Estimate, Speed, estimate, fitting_cache
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.reach import ASSUMED, MEASURED, SAMPLED, Hops, Setting, mean_of, shape_of
from tutorial_lib.models.sage import FirstLayer
from tutorial_lib.partition import Partition
from tutorial_lib.partition.memory import memory_for_us
from tutorial_lib.trainer.config import TrainConfig

RANKS, BATCHES, EVALUATED = 4, 24, 3  # looked at: ranks, mini-batches in all, batches of each rank's evaluation
# A graph of so many edges, and so many bytes of features, is drawn on in no time; and so many batches.
QUICK_EDGES, QUICK_BYTES, QUICK_BATCHES = 5_000_000, 200_000_000, 8
TABLE = 400_000_000  # bytes, the most that is read from when reading is measured


def sizes_of_partition(partition: Partition) -> dict[str, int]:
    """``nodes`` to ``val`` of a ``Setting``, of what was cut.

    Its validation nodes are not written down: a fifth of the training nodes, as products.

    Raises:
        InputError: it is not what is planned here.
    """
    facts = partition.manifest["dataset"]
    if partition.types or not facts["num_features"]:
        text = "only graphs with one type of nodes, which have features, can be planned"
        raise InputError(f"{partition.folder}: {text}")
    report = partition.report
    nodes, train = sum(report.nodes), sum(report.train_nodes)
    counts = {"nodes": nodes, "edges": sum(report.edges), "train": train, "val": min(train // 5, nodes - train)}
    return {**counts, "width": facts["num_features"], "classes": facts["num_classes"]}


def setting_of(
    sizes: dict[str, int], layout: Layout, machines: int, config: TrainConfig, memory: float = math.inf
) -> Setting:
    """A job of so many machines on a graph of these ``sizes``. All are taken to have this computer's cores.

    Args:
        memory: bytes of each machine; where they share this computer, of that.
    """
    wire = parse_wire(layout.wire)
    return Setting(
        **sizes,
        **{"machines": machines, "trainers": layout.trainers, "servers": layout.servers, "config": config},
        wire=8.0 * wire if wire else None,
        together=not layout.elsewhere,
        cores=len(os.sched_getaffinity(0)),
        memory=memory,
    )


def forecast(
    partition: Partition, layout: Layout, machines: int, config: TrainConfig, *, fit_cache: bool = False
) -> Estimate | None:
    """For ``train``, in less than a second: hops are drawn on small graphs only, and nothing is measured.

    None where it is not known: for other tasks than classes of nodes, on GPUs, with labor.

    Args:
        fit_cache: with `fitting_cache` of the memory that is free here; ``config`` as it is otherwise.
    """
    if config.task != "node" or layout.device != "cpu" or config.sampler != "neighbor":
        return None
    config = replace(config, loader="dgl") if layout.samplers else config
    memory = math.inf if layout.elsewhere else memory_for_us()
    setting = setting_of(sizes_of_partition(partition), layout, machines, config, memory)
    if fit_cache:
        setting = replace(setting, config=replace(setting.config, cache=fitting_cache(setting)))
    quick = setting.edges < QUICK_EDGES and 4 * setting.nodes * setting.width < QUICK_BYTES
    return estimate(setting, sample_hops(partition, setting, batches=QUICK_BATCHES) if quick else None)


def sample_hops(partition: Partition, setting: Setting, *, batches: int = BATCHES, seed: int = 0) -> Hops:
    """Draw mini-batches on the partition, as the trainers of a job would, and count what is remote.

    Args:
        setting: its machines are the parts of the partition.
        batches: of all ranks together.
    """
    # One thread, as in a trainer; more would draw other numbers each time.
    with sampling_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        indptr, sources, train, first = _whole_graph(partition)
        n, config = len(indptr) - 1, setting.config
        lists = HereLists(indptr, sources, n, graphbolt=graphbolt_problem() is None)  # list k is node k's
        lists.seed(seed)
        bounds = [round(rank * len(train) / setting.world) for rank in range(setting.world + 1)]
        shares = [train[begin:end] for begin, end in pairwise(bounds)]
        busy = [rank for rank, share in enumerate(shares) if len(share)]  # there may be more ranks than seeds
        ranks = sorted({busy[round(k * (len(busy) - 1) / (RANKS - 1))] for k in range(RANKS)})
        found = []
        for rank in ranks:
            part = rank // setting.trainers
            own = slice(int(first[part]), int(first[part + 1]))
            count = min(max(2, batches // len(ranks)), setting.steps * config.epochs)
            found.append(_of_rank(lists, shares[rank], own, setting, count, max(1, n - (own.stop - own.start))))
    report, parts = partition.report, setting.machines
    return replace(
        mean_of(found),
        halo=sum(report.halo_nodes) / parts,
        cut=report.edge_cut_share,
        part=max(report.nodes) * parts / n,
        part_edges=max(report.edges) * parts / sum(report.edges),
        source=SAMPLED,
    )


def _of_rank(lists: HereLists, seeds: Tensor, own: slice, setting: Setting, count: int, pool: int) -> Hops:
    """The same of one rank, whose machine has the nodes ``own``."""
    config, n = setting.config, len(lists.indptr) - 1
    known = torch.zeros(n, dtype=torch.bool)
    known[own] = True
    travelled = 0

    def take(ids: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal travelled
        whole = lists.whole_lists(ids)
        travelled += whole.sources.nbytes + 12 * len(ids)  # and the question, and how many each has
        return whole.indptr.diff().long(), whole.sources

    lists_bytes = 0
    if setting.keeps:
        mine = lists.sources[int(lists.indptr[own.start]) : int(lists.indptr[own.stop])]
        budget = setting.trainers * config.cache // 2
        kept = most_used(take, range(own.start, own.stop), mine, len(config.fanouts) - 1, budget)
        for ids, _, _ in kept:
            known[ids] = True
        lists_bytes = sum(theirs.nbytes for _, _, theirs in kept)
    sizes, edges = [0.0] * len(config.fanouts), [0.0] * len(config.fanouts)
    rows = remote = asked = answered = seconds = 0.0
    seen = torch.zeros(n, dtype=torch.int32)
    epochs = (torch.randperm(len(seeds)).split(config.batch_size) for _ in range(-(-count // setting.steps)))
    for chosen in itertools.islice(itertools.chain.from_iterable(epochs), count):
        start = time.thread_time()
        nodes = seeds[chosen].to(lists.dtype)
        for hop, fanout in enumerate(reversed(config.fanouts)):
            drawn = lists.draw_here(nodes, fanout)
            sizes[hop] += len(nodes) / count
            edges[hop] += len(drawn.sources) / count
            strange = ~known[nodes.long()]
            asked += int(strange.sum()) / count
            answered += int(drawn.indptr.diff()[strange].sum()) / count
            nodes, _ = lists.compact(drawn, nodes)
        seconds += (time.thread_time() - start) / count
        seen[nodes.long()] += 1
        inside = int(((nodes >= own.start) & (nodes < own.stop)).sum())
        rows, remote = rows + len(nodes) / count, remote + (len(nodes) - inside) / count
    seen[own] = 0
    shape = shape_of(pool, remote, count, int((seen > 0).sum()))
    looked_at = torch.arange(own.start, own.stop).split(config.eval_batch_size)[:EVALUATED]
    near = [lists.whole_lists(ids).sources.unique() for ids in looked_at]
    evaluated = sum(int(((ids < own.start) | (ids >= own.stop)).sum()) for ids in near) / len(near)
    return Hops(
        tuple(sizes), tuple(edges), rows, remote, pool, shape, asked, answered, lists_bytes, travelled,
        evaluated, seconds=seconds,
    )  # fmt: skip


def _whole_graph(partition: Partition) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """In-neighbours of all nodes in new ids: indptr int64 (N + 1,), sources; training nodes; where each part begins."""
    report = partition.report
    first = [0, *torch.tensor(report.nodes).cumsum(0).tolist()]
    counts, sources, train = [], [], []
    for part, inner in enumerate(report.nodes):
        folder = partition.folder / f"part{part}"
        graph = dgl.load_graphs(str(folder / "graph.dgl"))[0][0]
        indptr, indices, ids = in_edges_of_part(graph, inner)
        counts.append(indptr.diff().long())
        sources.append(ids.to(id_type(first[-1]))[indices.long()])
        del graph
        mask = dgl.data.utils.load_tensors(str(folder / "node_feat.dgl"))["_N/train_mask"]
        train.append(mask.bool().nonzero().flatten() + first[part])
    indptr = torch.zeros(first[-1] + 1, dtype=torch.int64)
    indptr[1:] = torch.cat(counts).cumsum(0)
    return indptr, torch.cat(sources), torch.cat(train), first


def calibrate(setting: Setting, hops: Hops, *, repeats: int = 3, seed: int = 0) -> Speed:
    """Compute steps with the layers and the sizes of a job on this computer, one trainer alone, and read their rows.

    Processor seconds count, divided by the threads: other programs that run here disturb them little.
    """
    config, threads = setting.config, min(setting.threads, len(os.sched_getaffinity(0)))
    generator = torch.Generator().manual_seed(seed)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = config.model(setting.width, max(1, setting.classes))
        optimizer = torch.optim.Adam(model.parameters())
        sizes = [max(1, round(size)) for size in hops.sizes]
        blocks: list[Any] = []
        for hop, (inside, outside) in enumerate(pairwise(sizes)):
            indices = torch.randint(outside, (round(hops.edges[hop]),), generator=generator)
            ends = torch.linspace(0, len(indices), inside + 1).long()
            parts = (ends, indices, torch.empty(0, dtype=torch.int64))
            blocks.insert(0, dgl.create_block(("csc", parts), num_src_nodes=outside, num_dst_nodes=inside))
        draws = round(hops.edges[-1])
        # As many rows as a part has; of wide or many ones fewer, which are as far from the processor.
        rows = max(1, min(setting.nodes // setting.machines, TABLE // (4 * setting.width)))
        table = torch.rand(rows, setting.width, generator=generator)
        places = torch.randint(rows, (draws,), generator=generator, dtype=torch.int32)
        ends = torch.linspace(0, draws, sizes[-1] + 1).int()
        labels = torch.zeros(sizes[0], dtype=torch.int64)
        computing, reading = [], []
        for _ in range(repeats + 1):
            start = time.process_time()
            own = table[places[: sizes[-1]].long()] if draws >= sizes[-1] else torch.rand(sizes[-1], setting.width)
            mean = F.embedding_bag(places, table, ends, mode="mean", include_last_offset=True)
            half_way = time.process_time()
            loss = F.cross_entropy(model(blocks, FirstLayer(own, mean)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            reading.append(half_way - start)
            computing.append((time.process_time() - half_way) / threads)
    finally:
        torch.set_num_threads(before)
    drawing = hops.seconds or sum(hops.edges) / DRAWN
    faster = (1 + THREADS * (setting.threads - 1)) / (1 + THREADS * (threads - 1))  # where there are more than here
    source = MEASURED if faster == 1 else ASSUMED
    return Speed(min(computing[1:]) / faster, drawing + min(reading[1:]), source)
