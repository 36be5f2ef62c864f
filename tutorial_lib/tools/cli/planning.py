"""``plan``: what a job will need, before anything is made or started."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.errors import InputError
from tutorial_lib.job.display import own_console
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli.options import OF_TRAIN, Given, JsonOption, app, filling
from tutorial_lib.trainer.config import AUTO, TrainConfig, check_loader

GRAPH, PLACE = "Graph", "Machines"


def _number(text: str, panel: str = GRAPH) -> typer.models.OptionInfo:
    return typer.Option(help=text, rich_help_panel=panel)


@app.command(
    epilog="For example: plan --dataset ogbn-products --machines 4 --wire 10gbit --memory 64GB; "
    "plan --nodes 111000000 --edges 3200000000 --feature-width 128 --train-nodes 1200000 --machines 16."
)
@filling(
    *(DataSource, TrainConfig),
    without=["method", "both_ways", "learning_rate", *OF_TRAIN],
    dataset=None,
)
def plan(
    given: Given,
    part_config: Annotated[Path | None, typer.Option("--part_config", help="DGL's description of a partition.")] = None,
    nodes: Annotated[int | None, _number("Of a graph that is not here.")] = None,
    edges: Annotated[int | None, _number("Its edges, both directions counted.")] = None,
    feature_width: Annotated[int, _number("Numbers in a node's features.")] = 100,
    classes: Annotated[int, _number("Classes of its nodes.")] = 47,
    train_nodes: Annotated[int | None, _number("Its training nodes.")] = None,
    val_nodes: Annotated[int, _number("Its validation nodes.")] = 0,
    emulate: Annotated[int | None, _number("Emulated machines, on this computer. (default: 2)", PLACE)] = None,
    machines: Annotated[int | None, _number("Machines that are computers of their own.", PLACE)] = None,
    trainers: Annotated[int, _number("Trainers on each.", PLACE)] = 1,
    servers: Annotated[int, _number("DGL servers on each.", PLACE)] = 1,
    wire: Annotated[
        str | None, _number("Of each machine, like 1gbit. (default: 10gbit; emulated: none)", PLACE)
    ] = None,
    memory: Annotated[
        str | None, _number("Of each machine; with --emulate, of this computer. (default: no limit; its own)", PLACE)
    ] = None,
    cores: Annotated[
        int | None, _number("Of each machine; with --emulate, of this computer. (default: as this computer)", PLACE)
    ] = None,
    layers: Annotated[int | None, _number("Of the model: one for each fan-out.", "Training")] = None,
    measure: Annotated[bool, typer.Option("--calibrate/--no-calibrate", help="Compute some steps here.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Say what a job will need: memory, bytes on the wire, seconds of an epoch; where each number comes from."""
    config = given.make(TrainConfig, cache=check_loader(given.loader, 0, given.cache))
    if layers is not None and layers != len(config.fanouts):
        raise InputError(f"--layers {layers}, and --fanouts has {len(config.fanouts)}", "A layer is a hop: one each.")
    if emulate is not None and machines is not None:
        raise InputError("choose one of --emulate N and --machines N")
    if sum(one is not None for one in (given.dataset, part_config, nodes)) != 1:
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
    from tutorial_lib.job.estimate import fitting_cache
    from tutorial_lib.job.reach import Setting
    from tutorial_lib.job.sampled import sizes_of_partition
    from tutorial_lib.partition import load_partition_folder, parse_memory
    from tutorial_lib.partition.memory import memory_for_us
    from tutorial_lib.tools import plan as tool

    together = machines is None
    count, partition = machines or emulate or 2, None
    if part_config is not None:
        partition = load_partition_folder(part_config.parent, checksums=False)
        count = partition.report.parts if machines is emulate is None else count
        sizes = sizes_of_partition(partition)
    elif given.dataset is not None:
        source = given.make(DataSource)
        sizes, partition = tool.sizes_of(source), tool.partition_there(source, count)
    else:
        if edges is None or train_nodes is None:
            raise InputError("--nodes needs --edges and --train-nodes")
        sizes = {"nodes": nodes, "edges": edges, "width": feature_width, "classes": classes}
        sizes |= {"train": train_nodes, "val": val_nodes}
    rate = parse_wire(wire or (None if together else "10gbit"), shaped=together)
    limit = parse_memory(memory) or memory_for_us()
    setting = Setting(
        **sizes,
        **{"machines": count, "trainers": trainers, "servers": servers, "config": config, "together": together},
        wire=None if rate is None else 8.0 * rate,
        cores=cores or len(os.sched_getaffinity(0)),
        memory=math.inf if not together and memory is None else limit,
    )
    if given.cache == AUTO:
        setting = replace(setting, config=replace(config, cache=fitting_cache(setting)))
    found = tool.plan(setting, partition, measure=measure, seed=given.seed)
    if as_json:
        print(json.dumps(tool.to_dict(found), indent=2))
    else:
        console = own_console()
        if partition is not None:
            console.print(f"partition: {partition.folder}", soft_wrap=True)
        console.print(tool.table(found))
        console.print(f"change first: {tool.first_change(found)}", soft_wrap=True)
    tool.check_fits(found)
