"""``plan`` estimates the needs of a job before it starts."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tutorial_lib.errors import InputError
from tutorial_lib.job.display import human_bytes
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli.options import CacheOption, FanoutsOption, JsonOption, app, flatten, parse_fanouts
from tutorial_lib.trainer.config import TrainConfig, check_loader

if TYPE_CHECKING:
    from tutorial_lib.tools.plan import Estimate, Job


def _number(text: str, group: str = "Graph") -> Parameter:
    return Parameter(help=text, group=group)


@app.command(
    help_epilogue="For example: plan --dataset ogbn-products --machines 4 --wire 10gbit --memory 64GB; "
    "plan --nodes 111000000 --edges 3200000000 --feature-width 128 --train-nodes 1200000 --machines 16."
)
def plan(
    *,
    dataset: Annotated[str | None, Parameter(help="As of the command data.", group="Data")] = None,
    source: Annotated[DataSource, flatten("Data", "name method both_ways")] = DataSource(),
    config: Annotated[
        TrainConfig,
        flatten("Training", "seed fanouts cache learning_rate task embedding_size embedding_learning_rate"),
    ] = TrainConfig(),
    fanouts: FanoutsOption = "15,10,5",
    cache: CacheOption = "256MB",
    part_config: Annotated[
        Path | None, Parameter(name="--part_config", help="DGL's description of a partition.", group="Graph")
    ] = None,
    nodes: Annotated[int | None, _number("Of a graph that is not here.")] = None,
    edges: Annotated[int | None, _number("Its edges, both directions counted.")] = None,
    feature_width: Annotated[int, _number("Numbers in a node's features.")] = 100,
    classes: Annotated[int, _number("Classes of its nodes.")] = 47,
    train_nodes: Annotated[int | None, _number("Its training nodes.")] = None,
    val_nodes: Annotated[int, _number("Its validation nodes.")] = 0,
    emulate: Annotated[int | None, _number("Number of emulated machines. (default: 2)", "Machines")] = None,
    machines: Annotated[int | None, _number("Machines that are computers of their own.", "Machines")] = None,
    trainers: Annotated[int, _number("Trainers on each.", "Machines")] = 1,
    servers: Annotated[int, _number("DGL servers on each.", "Machines")] = 1,
    wire: Annotated[
        str | None, _number("Of each machine, like 1gbit. (default: 10gbit; emulated: none)", "Machines")
    ] = None,
    memory: Annotated[
        str | None,
        _number("Of each machine; with --emulate, of all. (default: no limit; its own)", "Machines"),
    ] = None,
    cores: Annotated[
        int | None,
        _number("Of each machine; with --emulate, of all. (default: as this computer)", "Machines"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the memory, the traffic and the seconds of an epoch of a job before you start it."""
    bytes_of_cache = check_loader(config.loader, 0, cache)
    config = replace(config, seed=source.seed, fanouts=parse_fanouts(fanouts), cache=bytes_of_cache)
    if emulate is not None and machines is not None:
        raise InputError("choose one of --emulate N and --machines N")
    if sum(one is not None for one in (dataset, part_config, nodes)) != 1:
        raise InputError(
            "choose one of --dataset NAME, --part_config FILE and --nodes N",
            "With --nodes go --edges, --train-nodes and --feature-width.",
        )
    numbers = {"edges": edges, "train-nodes": train_nodes}
    if nodes is None and (useless := [name for name, given_one in numbers.items() if given_one is not None]):
        raise InputError(f"--{useless[0]} goes with --nodes: a data set or a partition has its own")
    for name, count in (("emulate", emulate), ("machines", machines), ("cores", cores)):
        if count is not None and count < 1:
            raise InputError(f"--{name} {count}: a job has at least one")
    from tutorial_lib.cluster.emulated import parse_wire
    from tutorial_lib.partition import load_partition_folder
    from tutorial_lib.partition.memory import memory_for_us, parse_memory
    from tutorial_lib.tools import plan as tool

    together = machines is None
    count = machines or emulate or 2
    sizes: dict[str, Any]
    if part_config is not None:
        partition = load_partition_folder(part_config.parent, checksums=False)
        parts = partition.report.parts
        count = parts if machines is emulate is None else count
        if parts != count:
            raise InputError(
                f"the partition has {parts} parts, and each of {count} machines serves one",
                "Partition again with as many parts, or omit the number of machines.",
            )
        sizes = tool.sizes_of_partition(partition)
    elif dataset is not None:
        sizes = tool.sizes_of(replace(source, name=dataset))
    else:
        if edges is None or train_nodes is None:
            raise InputError("--nodes needs --edges and --train-nodes")
        sizes = {"nodes": nodes, "edges": edges, "width": feature_width, "classes": classes}
        sizes |= {"train": train_nodes, "val": val_nodes}
    rate = parse_wire(wire or (None if together else "10gbit"), shaped=together)
    limit = parse_memory(memory) or memory_for_us()
    job = tool.Job(
        **sizes,
        machines=count,
        trainers=trainers,
        servers=servers,
        config=config,
        together=together,
        wire=None if rate is None else 8.0 * rate,
        cores=cores or len(os.sched_getaffinity(0)),
        memory=math.inf if not together and memory is None else limit,
    )
    found = tool.estimate(job)
    if as_json:
        facts = {**asdict(job), "memory": None if math.isinf(job.memory) else job.memory, "steps": job.steps}
        print(json.dumps({"job": facts, "estimate": {**asdict(found), "epoch": found.epoch}}, indent=2))
    else:
        print(_report(job, found))
    tool.check_fits(job, found)


def _report(job: Job, found: Estimate) -> str:
    """Return the lines for a terminal."""
    size = f"{job.nodes:,} nodes, {job.edges:,} edges; {job.machines} machine(s), {job.trainers} trainer(s) on each"
    rows = {
        "memory of a server": human_bytes(round(found.server)),
        "memory of a trainer": human_bytes(round(found.trainer)),
        "memory of " + ("this computer" if job.together else "a machine"): human_bytes(
            round(found.total if job.together else found.machine)
        ),
        "steps of an epoch": f"{job.steps:,}",
        "input rows of a step": f"{found.input_rows:,.0f}",
        "remote rows of a step": f"{found.remote_rows:,.0f}",
        "  fetched in the first epoch": f"{found.first:,.0f}",
        "  fetched later": f"{found.later:,.0f}",
        "sent in an epoch": human_bytes(round(found.epoch_bytes)),
        "sent in the job": human_bytes(round(found.job_bytes)),
        "seconds of the first epoch": f"{found.first_epoch:.2g}",
        "seconds of a later epoch": f"{found.epoch:.2g}",
        **{f"  {name}": f"{seconds:.2g}" for name, seconds in found.seconds.items()},
    }
    if job.machines > 1 and job.config.loader != "dgl":
        rows["cache for all remote rows"] = f"--cache {max(1, math.ceil(found.cache / 1e6))}MB"
    return "\n".join([size, *(f"{name:32}{value:>16}" for name, value in rows.items())])
