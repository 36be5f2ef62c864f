"""``plan``: estimate the needs of a job before anything is created or started."""

from __future__ import annotations

import json
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
    help_epilogue="For example: plan --dataset ogbn-products --machines 4 --wire 10gbit; "
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
    from tutorial_lib.launcher.backends.emulated import parse_wire
    from tutorial_lib.tools.plan import Job, describe, estimate, sizes_of

    if nodes is None:
        sizes = sizes_of(replace(source, name=dataset))
    else:
        train = max(1, nodes // 10) if train_nodes is None else train_nodes
        sizes = {"nodes": nodes, "edges": edges, "width": feature_width, "classes": classes}
        sizes |= {"train": train, "val": val_nodes}
    count = emulate if machines is None else machines
    rate = parse_wire(wire or (None if machines is None else "10gbit"), shaped=machines is None)
    job = Job(
        **sizes,
        machines=2 if count is None else count,
        trainers=trainers,
        config=config,
        wire=rate and 8.0 * rate,
        together=machines is None,
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
        cut=cut,
    )
    found = estimate(job)
    print(json.dumps({"job": asdict(job), "estimate": asdict(found)}, indent=2) if as_json else describe(job, found))
