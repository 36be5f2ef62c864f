"""``plan``: estimate the needs of a job before anything is created or started."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from tutorial_lib.errors import InputError
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli.options import CacheOption, FanoutsOption, JsonOption, app, flatten, parse_fanouts
from tutorial_lib.trainer.config import TrainConfig, check_loader


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
    nodes: Annotated[int | None, _number("Number of nodes of any other graph.")] = None,
    edges: Annotated[int | None, _number("Number of its edges. Both directions of an edge count.")] = None,
    feature_width: Annotated[int, _number("Number of features of a node.")] = 100,
    classes: Annotated[int, _number("Number of classes.")] = 47,
    train_nodes: Annotated[int | None, _number("Number of training nodes. (default: 10 % of the nodes)")] = None,
    val_nodes: Annotated[int, _number("Number of validation nodes.")] = 0,
    cut: Annotated[
        float | None,
        _number("Share of the edges between parts, as partition prints it. (default: an estimate)"),
        Parameter(validator=Number(gte=0, lte=1)),
    ] = None,
    emulate: Annotated[int | None, _number("Number of emulated machines. (default: 2)", "Machines")] = None,
    machines: Annotated[int | None, _number("Machines that are computers of their own.", "Machines")] = None,
    trainers: Annotated[int, _number("Trainers on each.", "Machines")] = 1,
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
    if (dataset is None) == (nodes is None) or (nodes is None) != (edges is None):
        raise InputError(
            "choose one of --dataset NAME, and --nodes N with --edges N",
            "With --nodes you can also give --train-nodes, --val-nodes, --feature-width and --classes.",
        )
    if nodes is None and train_nodes is not None:
        raise InputError("--train-nodes needs --nodes: data sets have their own training nodes")
    from tutorial_lib.tools.plan import check_fits, describe, estimate, make_job, sizes_of

    sizes = {"nodes": nodes, "edges": edges, "width": feature_width, "classes": classes}
    sizes |= {"train": train_nodes, "val": val_nodes}
    given = emulate if machines is None else machines
    job = make_job(
        sizes if dataset is None else sizes_of(replace(source, name=dataset)),
        wire,
        memory,
        together=machines is None,
        config=config,
        machines=2 if given is None else given,
        trainers=trainers,
        cut=cut,
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
    )
    found = estimate(job)
    if as_json:
        facts = {**asdict(job), "memory": None if math.isinf(job.memory) else job.memory}
        print(json.dumps({"job": facts, "estimate": asdict(found)}, indent=2))
    else:
        print(describe(job, found))
    check_fits(job, found)
