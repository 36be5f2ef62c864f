"""What a job will need, before it runs: every number with its source, and what to change first.

The estimate is job/estimate.py's, with hops drawn on a partition and a step measured here, where they can be.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Column, Table

from tutorial_lib.data import default_root
from tutorial_lib.errors import InputError
from tutorial_lib.files import graph_name_of
from tutorial_lib.job.display import human_bytes
from tutorial_lib.job.estimate import STORED, UNSHAPED, WAITING, Estimate, Speed, assumed_speed, estimate
from tutorial_lib.job.reach import ASSUMED, GIVEN, SAMPLED, Setting, assumed_hops
from tutorial_lib.job.sampled import calibrate, sample_hops
from tutorial_lib.job.source import DataSource
from tutorial_lib.partition import Partition, load_partition_folder

HELPS = 0.10  # of an epoch: what saves less is no help
MACHINES = tuple(2**k for k in range(9))  # numbers that are looked at
PUBLISHED = {
    "ogbn-products": {"nodes": 2_449_029, "edges": 123_718_280, "width": 100, "classes": 47}
    | {"train": 196_615, "val": 39_323},
    "ogbn-arxiv": {"nodes": 169_343, "edges": 2_315_598, "width": 128, "classes": 40}
    | {"train": 90_941, "val": 29_799},
}


def sizes_of(source: DataSource) -> dict[str, int]:
    """A data set's ``nodes`` to ``val`` of a ``Setting``; it is loaded only where nothing is known of its size.

    Raises:
        InputError: it cannot be loaded, or is not what this plans.
    """
    source.check()
    if source.name == "synthetic-products":  # imitates the other at any size, split included
        whole = PUBLISHED["ogbn-products"]
        return whole | {name: round(source.scale * whole[name]) for name in ("nodes", "edges", "train", "val")}
    if source.name in PUBLISHED:
        return PUBLISHED[source.name]
    dataset = source.load()
    if dataset.is_heterogeneous or not dataset.num_features:
        raise InputError(f"{source.name}: plan knows graphs with one type of nodes, which have features, and no others")
    split, graph = dataset.split_counts(), dataset.structure
    counts = {"nodes": graph.num_nodes(), "edges": graph.num_edges()}
    counts |= {"width": dataset.num_features, "classes": dataset.num_classes}
    return {**counts, "train": split["train_mask"], "val": split["val_mask"]}


def partition_there(source: DataSource, parts: int) -> Partition | None:
    """A partition of the data set into so many parts that an earlier command has left."""
    folder = (source.root or default_root()) / "partitions"
    for path in sorted(folder.glob(f"{graph_name_of(source.name)}-*-{parts}-*/manifest.json")):
        partition = load_partition_folder(path.parent, checksums=False)
        facts = partition.manifest["dataset"]
        same = all(facts.get(name, value) == value for name, value in (("scale", source.scale), ("seed", source.seed)))
        if same and partition.report.parts == parts and not partition.types:
            return partition
    return None


def plan(setting: Setting, partition: Partition | None = None, *, measure: bool = True, seed: int = 0) -> Estimate:
    """What a job will need.

    Args:
        partition: with as many parts as machines: batches are drawn on it, instead of assumed.
        measure: compute some steps here (some seconds); False: constants.

    Raises:
        InputError: the partition has another number of parts.
    """
    if partition is not None and partition.report.parts != setting.machines:
        parts = f"the partition has {partition.report.parts} parts, and each of {setting.machines} machines serves one"
        raise InputError(parts, "Partition again with as many parts, or leave the number of machines away.")
    hops = assumed_hops(setting) if partition is None else sample_hops(partition, setting, seed=seed)
    speed = calibrate(setting, hops, seed=seed) if measure else None
    return estimate(setting, hops, speed)


def moved_to(found: Estimate, setting: Setting) -> Estimate:
    """The same job in another setting: what was sampled or measured, changed as the assumptions change."""
    old, new = assumed_hops(found.setting), assumed_hops(setting)

    def scaled(value: Any, before: Any, after: Any) -> Any:
        if isinstance(value, tuple):
            if len(value) != len(after):
                return after
            return tuple(map(scaled, value, before, after))
        return value * after / before if before and value else after

    kept = {"part", "part_edges", "source"}
    changed = {
        name: scaled(value, getattr(old, name), getattr(new, name))
        for name, value in vars(found.hops).items()
        if name not in kept
    }
    hops = replace(found.hops, **{**changed, "pool": new.pool, "seconds": 0.0})
    before, after = assumed_speed(found.setting, found.hops), assumed_speed(setting, hops)
    ratios = (found.speed.computing / before.computing, found.speed.fetching / before.fetching)
    speed = Speed(after.computing * ratios[0], after.fetching * ratios[1], found.speed.source)
    return estimate(setting, hops, speed)


def of_their_own(setting: Setting, machines: int) -> Setting:
    """So many machines with memory and cores of their own: each with the cores that one has now."""
    cores = max(1, setting.cores // setting.machines) if setting.together else setting.cores
    return replace(setting, machines=machines, together=False, cores=cores)


def helpful(found: Estimate) -> int:
    """Machines, each a computer: the fewest of which no more save ``HELPS`` of an epoch, and all have whole batches."""
    setting = found.setting
    whole = setting.train / setting.trainers / setting.config.batch_size
    counts = [count for count in MACHINES if count <= max(1, whole)]
    epochs = [moved_to(found, of_their_own(setting, count)).epoch for count in counts]
    return next(k for k, own in zip(counts, epochs, strict=True) if min(epochs[counts.index(k) :]) > (1 - HELPS) * own)


def fitting(found: Estimate) -> int | None:
    """The smallest power of two of machines, each with this memory, on which the job fits; None: on none."""
    setting = found.setting
    counts = [count for count in MACHINES if setting.together or count >= setting.machines]
    return next((k for k in counts if moved_to(found, of_their_own(setting, k)).machine <= setting.memory), None)


LEARNS = "; it changes what is learned"


def changes(found: Estimate) -> list[tuple[str, Estimate]]:
    """What could be changed, and what would come of it. The best first, what changes the result last."""
    setting, config = found.setting, found.setting.config

    def other(**values: Any) -> Setting:
        return replace(setting, config=replace(config, **values))

    halved = (max(1, config.fanouts[0] // 2) if config.fanouts[0] > 0 else 10, *config.fanouts[1:])
    half = max(1, config.batch_size // 2)
    ideas: dict[str, Setting] = {}
    if not found.fits:
        if half < config.batch_size:
            ideas[f"--batch-size {half}{LEARNS}"] = other(batch_size=half)
        if setting.keeps:
            ideas["--cache 0"] = other(cache=0)
        if (count := fitting(found)) is not None:
            ideas[f"{count} computer(s) with as much memory each"] = of_their_own(setting, count)
    else:
        ideas[f"--fanouts {','.join(map(str, halved))}{LEARNS}"] = other(fanouts=halved)
        ideas[f"--batch-size {2 * config.batch_size}{LEARNS}"] = other(batch_size=2 * config.batch_size)
        room = math.ceil(1.1 * (found.hops.pool * STORED * setting.width + 2 * found.hops.lists) / 1e6)
        if setting.machines > 1 and config.loader != "dgl" and config.cache < room * 10**6:
            ideas[f"--cache {room}MB"] = other(cache=room * 10**6)
        if setting.machines > 1 and (setting.wire or UNSHAPED) < 1e10:
            ideas["a wire of 10 Gbit/s"] = replace(setting, wire=1e10)
        more = of_their_own(setting, 2 * setting.machines)
        if more.machines <= max(MACHINES) and more.train >= more.world * config.batch_size:  # whole batches for all
            cores = ", each with its share of the cores" if setting.together else ""
            ideas[f"{more.machines} computers{cores}"] = more
    tried = [(name, moved_to(found, then)) for name, then in ideas.items()]

    def rank(one: tuple[str, Estimate]) -> tuple[bool, bool, float]:
        name, then = one
        if not found.fits:
            return not then.fits, False, then.needed
        return not then.fits, LEARNS in name or then.epoch > (1 - HELPS) * found.epoch, then.epoch

    return sorted(tried, key=rank)


@dataclass(frozen=True)
class Figure:
    """One number of an estimate.

    Attributes:
        unit: bytes, seconds, rows, steps, machines, bits per second, share.
        source: given, sampled, measured (on this computer) or assumed; of several, the least sure.
        how: what else it rests on.
    """

    name: str
    value: float | None
    unit: str
    source: str
    how: str = ""

    @property
    def text(self) -> str:
        """The value as people write it."""
        if self.value is None:
            return "none"
        if self.unit == "bytes":
            return human_bytes(round(self.value))
        if self.unit == "bits per second":
            return f"{self.value / 1e6:,.0f} Mbit/s"
        if self.unit == "share":
            return f"{self.value:.1%}"
        return f"{self.value:.3g} s" if self.unit == "seconds" else f"{self.value:,.0f}"


def figures(found: Estimate) -> list[Figure]:
    """Every number with its unit and where it comes from; a sum is as sure as its least sure part."""
    setting, seconds, reach, pace = found.setting, found.seconds, found.hops.source, found.speed.source
    both = pace if pace == reach else ASSUMED if ASSUMED in (reach, pace) else f"{pace}, {reach}"
    rate = f"at {(setting.wire or UNSHAPED) / 1e6:,.0f} Mbit/s" + ("" if setting.wire else ", assumed")
    cache = f"{setting.config.cache / 1e6:,.0f} MB of cache" if setting.keeps else "no cache"
    whole = "this computer" if setting.together else "a machine"
    counted, how = (GIVEN, "") if reach == SAMPLED else (ASSUMED, "as METIS cuts")
    rows: list[tuple[str, float | None, str, str, str]] = [
        ("edges between parts", found.hops.cut, "share", counted, how),
        ("memory of a server", found.server, "bytes", ASSUMED, "bytes per edge and node, fitted"),
        ("memory of a trainer", found.trainer, "bytes", ASSUMED, f"the same; hops {reach}"),
        (f"memory of {whole}", found.needed, "bytes", ASSUMED, "shared pages once"),
        ("steps in an epoch", setting.steps, "steps", GIVEN, ""),
        ("input rows of a trainer's step", found.hops.rows, "rows", reach, ""),
        ("of them remote", found.rows, "rows", reach, ""),
        ("pulled in a step: first epoch", found.first, "rows", reach, cache),
        ("pulled in a step: later", found.later, "rows", reach, cache),
        ("sent by a machine in a step", found.step, "bytes", reach, "rows, questions, gradients"),
        ("sent by all in a later epoch", found.sent, "bytes", reach, "validation too"),
        ("sent by all in the job", found.job, "bytes", reach, "start and evaluation too"),
        ("first epoch", found.first_epoch, "seconds", both, ""),
        ("later epoch", found.epoch, "seconds", both, ""),
        ("  computing", seconds["computing"], "seconds", pace, ""),
        ("  drawing, reading rows", seconds["drawing and reading"], "seconds", both, ""),
        ("  wire, as far as not hidden", seconds["the wire, not hidden"], "seconds", both, rate),
        ("  gradients", seconds["gradients"], "seconds", ASSUMED, rate),
        ("  waiting for other ranks", seconds["waiting"], "seconds", ASSUMED, f"{WAITING:.0%} of the computing"),
        ("  memory that is new to it", seconds["memory held first"], "seconds", ASSUMED, "second epoch's, spread"),
        ("slowest wire that is hidden", found.enough, "bits per second", both, ""),
        ("machines that help", helpful(found), "machines", ASSUMED, f"more save below {HELPS:.0%}, or lack seeds"),
    ]
    return [Figure(*row) for row in rows]


def table(found: Estimate) -> Table:
    """For a terminal; a notebook shows it, too."""
    setting = found.setting
    size = f"{setting.nodes:,} nodes, {setting.edges:,} edges"
    where = f"{setting.machines} machine(s), {setting.trainers} trainer(s) on each"
    made = Table("", Column(justify="right"), "source", "", title=f"{size}; {where}", title_justify="left")
    for figure in figures(found):
        made.add_row(figure.name, figure.text, figure.source, figure.how)
    return made


def first_change(found: Estimate) -> str:
    """A sentence: what to change first, and what would come of it."""
    if not (known := changes(found)):
        return "nothing that is known here"
    name, then = known[0]
    if not found.fits:
        enough = "which fits" if then.fits else "which does not fit either"
        return f"{name}: then {human_bytes(round(then.needed))} are needed, {enough}"
    if then.epoch > (1 - HELPS) * found.epoch:
        return f"nothing: the best that is known ({name}) saves less than {HELPS:.0%} of an epoch"
    return f"{name}: then an epoch takes {then.epoch:.3g} s, and not {found.epoch:.3g} s"


def to_dict(found: Estimate) -> dict[str, Any]:
    """For a program."""
    what = {figure.name.strip(): asdict(figure) for figure in figures(found)}
    setting = asdict(found.setting)
    setting["memory"] = None if math.isinf(found.setting.memory) else found.setting.memory
    return {"setting": setting, "figures": what, "fits": found.fits, "first_change": first_change(found)}


def check_fits(found: Estimate) -> None:
    """Raises an InputError that says what would do, where memory does not suffice."""
    if not found.fits:
        setting = found.setting
        where = "all machines of this computer need" if setting.together else "a machine needs"
        have = f"{human_bytes(round(found.needed))} of memory, and there are {human_bytes(round(setting.memory))}"
        raise InputError(f"this does not fit: {where} about {have}", f"First {first_change(found)}.")
