"""``plan``: estimate the needs of a job before anything is created or started."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.errors import InputError
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli.options import OF_TRAIN, Given, JsonOption, app, filling
from tutorial_lib.trainer.config import TrainConfig, check_loader

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
    nodes: Annotated[int | None, _number("Number of nodes of any other graph.")] = None,
    edges: Annotated[int | None, _number("Number of its edges. Both directions of an edge count.")] = None,
    feature_width: Annotated[int, _number("Number of features of a node.")] = 100,
    classes: Annotated[int, _number("Number of classes.")] = 47,
    train_nodes: Annotated[int | None, _number("Number of training nodes. (default: 10 % of the nodes)")] = None,
    val_nodes: Annotated[int, _number("Number of validation nodes.")] = 0,
    emulate: Annotated[int | None, _number("Emulated machines, on this computer. (default: 2)", PLACE)] = None,
    machines: Annotated[int | None, _number("Machines that are computers of their own.", PLACE)] = None,
    trainers: Annotated[int, _number("Trainers on each machine.", PLACE)] = 1,
    servers: Annotated[int, _number("DGL servers on each machine.", PLACE)] = 1,
    wire: Annotated[
        str | None, _number("Of each machine, like 1gbit. (default: 10gbit; emulated: none)", PLACE)
    ] = None,
    memory: Annotated[
        str | None, _number("Of each machine; with --emulate, of this computer. (default: no limit; its own)", PLACE)
    ] = None,
    cores: Annotated[
        int | None, _number("Of each machine; with --emulate, of this computer. (default: as this computer)", PLACE)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the memory, the traffic and the seconds of an epoch of a job before you start it."""
    config = given.make(TrainConfig, cache=check_loader(given.loader, 0, given.cache))
    if emulate is not None and machines is not None:
        raise InputError("choose one of --emulate N and --machines N")
    if sum(one is not None for one in (given.dataset, part_config, nodes)) != 1 or (nodes is None) != (edges is None):
        raise InputError(
            "choose one of --dataset NAME, --part_config FILE, and --nodes N with --edges N",
            "With --nodes you can also give --train-nodes, --val-nodes, --feature-width and --classes.",
        )
    if nodes is None and train_nodes is not None:
        raise InputError("--train-nodes needs --nodes: data sets and partitions have their own training nodes")
    from tutorial_lib.partition import load_partition_folder
    from tutorial_lib.tools.plan import check_fits, describe, estimate, make_job

    sizes = {"nodes": nodes, "edges": edges, "width": feature_width, "classes": classes}
    sizes |= {"train": train_nodes, "val": val_nodes}
    source = given.make(DataSource) if given.dataset is not None else sizes
    job = make_job(
        source if part_config is None else load_partition_folder(part_config.parent, checksums=False),
        emulate if machines is None else machines,
        wire,
        memory,
        config=config,
        together=machines is None,
        trainers=trainers,
        servers=servers,
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
    )
    found = estimate(job)
    if as_json:
        facts = {**asdict(job), "memory": None if math.isinf(job.memory) else job.memory, "steps": job.steps}
        print(json.dumps({"job": facts, "estimate": {**asdict(found), "epoch": found.epoch}}, indent=2))
    else:
        print(describe(job, found))
    check_fits(job, found)
