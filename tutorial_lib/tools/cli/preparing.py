"""Commands before a job (``doctor``, ``data``, ``partition``, ``plan``) and after a job."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from tutorial_lib.data import NAMES, check_arguments, load_dataset
from tutorial_lib.errors import InputError, JobError, printable, to_stderr
from tutorial_lib.job.folder import own_run_folder
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.remote_files import LIST, fetch_results
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.backends.emulated import parse_wire
from tutorial_lib.tools.cli import options as cli
from tutorial_lib.tools.cli.options import JsonOption, about, app, flatten
from tutorial_lib.tools.doctor import examine
from tutorial_lib.tools.explain import explain as find_causes
from tutorial_lib.tools.explain import find_logs
from tutorial_lib.tools.trace import write_trace
from tutorial_lib.trainer.config import TrainConfig

DatasetOption = Annotated[str, about("Name or path, as for the command data.", "Data")]
PartConfigOption = Annotated[Path | None, about("DGL's description of a partition (JSON).", name="--part_config")]
OF_SSH = flatten("Machines over ssh", "copy_to", cli.dgl_option_name, show_default=False)
NOT_IN_PLAN = "seed fanouts cache learning_rate task embedding_size embedding_learning_rate"


def show(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print facts as JSON, or one fact per line."""
    width = max(15, *map(len, facts))
    print(json.dumps(facts, indent=2) if as_json else "\n".join(f"{key:{width}} {facts[key]}" for key in facts))


@app.command
def doctor(
    *,
    emulate: Annotated[int | None, about("Also start this many emulated machines and check them.")] = None,
    on: Annotated[str | None, about("Also check running emulated machines of this name.")] = None,
    ssh: Annotated[RealMachines | None, OF_SSH] = None,
    part_config: PartConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this computer, and machines, for all requirements of a job. Each problem has a remedy."""
    if sum(place is not None for place in (emulate, on, ssh)) > 1:
        raise InputError("choose one of --emulate N, --on NAME and --ip_config FILE")
    findings = examine(Layout(emulate, on=on, real=ssh), part_config)
    if as_json:
        print(json.dumps(findings, indent=2, default=asdict))
    else:
        print(repr(findings))
    sys.exit(1 if findings.failed else 0)


@app.command
def data(
    dataset: Annotated[str, about(f"One of {', '.join(NAMES)}, or the path of a graph of your own.")],
    /,
    *,
    source: Annotated[DataSource, flatten("Data", "name method")] = DataSource(),
    graph_only: Annotated[bool, about("Load without node features.")] = False,
    download: Annotated[bool, about("Allow a download.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Load, generate or download a data set, check it, and print its sizes."""
    check_arguments(dataset, source.scale, source.seed)  # before torch is imported
    from tutorial_lib.partition.folder import type_counts

    options = {"scale": source.scale, "seed": source.seed, "root": source.root, "both_ways": source.both_ways}
    loaded = load_dataset(dataset, features=not graph_only, download=download, **options)
    facts = {
        "dataset": loaded.name,
        "nodes": loaded.structure.num_nodes(),
        "directed_edges": loaded.structure.num_edges(),
        "features": loaded.num_features,
        "classes": loaded.num_classes,
        **{name.replace("_mask", "_nodes"): count for name, count in loaded.split_counts().items()},
    }
    if not loaded.structure.is_homogeneous:
        facts |= {f"{of}_of": counts for of, counts in type_counts(loaded).items()} | {"target": loaded.target}
    show(facts | loaded.info, as_json=as_json)


@app.command
def partition(
    *,
    dataset: DatasetOption,
    source: Annotated[DataSource, flatten("Data", "name")] = DataSource(),
    parts: Annotated[int, about("Number of parts, one per machine.")],
    out: Annotated[Path, about("Folder to write. A folder with the same partition is reused.")],
    as_json: JsonOption = False,
) -> None:
    """Cut a data set into parts that DGL's servers load, and report the counted cut."""
    source = replace(source, name=dataset)
    done = source.partition(source.load(), parts, to_stderr, out)
    facts = {**asdict(done.report), "part_config": str(done.config)}
    if as_json:
        facts["reused"] = done.reused
    else:
        facts = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in facts.items()}
    show(facts, as_json=as_json)


@app.command(
    help_epilogue="For example: plan --dataset ogbn-products --machines 4 --wire 10gbit; "
    "plan --nodes 111000000 --edges 3200000000 --feature-width 128 --train-nodes 1200000 --machines 16."
)
def plan(
    *,
    dataset: DatasetOption | None = None,
    source: Annotated[DataSource, flatten("Data", "name method both_ways")] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", NOT_IN_PLAN)] = TrainConfig(),
    fanouts: cli.FanoutsOption = "15,10,5",
    cache: cli.CacheOption = "256MB",
    nodes: Annotated[int | None, about("Number of nodes, without a data set.", "Graph")] = None,
    edges: Annotated[int | None, about("Number of edges. Both directions of an edge count.", "Graph")] = None,
    feature_width: Annotated[int, about("Number of features of a node.", "Graph")] = 100,
    classes: Annotated[int, about("Number of classes.", "Graph")] = 47,
    train_nodes: Annotated[int | None, about("Number of training nodes. (default: 10 % of all)", "Graph")] = None,
    val_nodes: Annotated[int, about("Number of validation nodes.", "Graph")] = 0,
    cut: Annotated[float | None, about("Share of the edges between parts, as partition prints it.", "Graph")] = None,
    emulate: Annotated[int | None, about("Number of emulated machines. (default: 2)", "Machines")] = None,
    machines: Annotated[int | None, about("Number of separate computers.", "Machines")] = None,
    trainers: Annotated[int, about("Trainers per machine.", "Machines")] = 1,
    wire: Annotated[str | None, about("Bandwidth per machine. (default: 10gbit; emulated: none)", "Machines")] = None,
    cores: Annotated[int | None, about("Cores per machine; with --emulate, of all.", "Machines")] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the memory, the traffic and the seconds of an epoch of a job before you start it."""
    if (dataset is None) == (nodes is None) or (nodes is None) != (edges is None):
        raise InputError("choose one of --dataset NAME, and --nodes N with --edges N")
    config = cli.complete_config(config, source.seed, fanouts, cache)
    from tutorial_lib.tools.plan import Job, describe, estimate, sizes_of

    sizes = {"nodes": nodes, "edges": edges, "width": feature_width, "classes": classes, "val": val_nodes}
    sizes["train"] = max(1, (nodes or 0) // 10) if train_nodes is None else train_nodes
    rate = parse_wire(wire or (None if machines is None else "10gbit"))
    job = Job(
        **(sizes if dataset is None else sizes_of(replace(source, name=dataset))),
        machines=next((count for count in (emulate, machines) if count is not None), 2),
        trainers=trainers,
        config=config,
        wire=rate and 8.0 * rate,
        together=machines is None,
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
        cut=cut,
    )
    found = estimate(job)
    print(json.dumps({"job": asdict(job), "estimate": asdict(found)}, indent=2) if as_json else describe(job, found))


@app.command
def fetch(
    run: Annotated[Path, about("Run folder of a job that was started with --copy_to.")],
    /,
    *,
    trust: Annotated[bool, about("Connect to the machines that the folder names, without a question.")] = False,
) -> None:
    """Download the results that an interrupted job with --copy_to has left on its machines, and verify them."""
    run = run.absolute()
    if not (run / LIST).is_file() and not (run / "events.jsonl").is_file():
        raise InputError(f"{run} is not the folder of a run with --copy_to: it has no {LIST}")
    with own_run_folder(run):  # a running job downloads its results itself
        if not (run / LIST).is_file():
            print(f"{run}: nothing is left to fetch")
            return
        if problems := fetch_results(run, print, trust=trust):
            raise JobError(problems[0], "\n".join(problems[1:]))
    print(f"everything is in {run}")


@app.command
def trace(
    run: Annotated[Path, about("Run folder, or the folder run/ of a finale.")],
    /,
    *,
    out: Annotated[Path | None, about("File to write. (default: RUN/trace.json)")] = None,
) -> None:
    """Write the timeline of a job for Perfetto and chrome://tracing."""
    print("\n".join(write_trace(run, out or run / "trace.json")))


@app.command
def explain(
    paths: Annotated[list[Path], about("Log files, or the folder of a run.")], /, *, as_json: JsonOption = False
) -> None:
    """Print the meaning of the errors of a failed job, the first thing to check, and the lesson about them."""
    logs = [log for path in paths for log in find_logs(path)]
    found = find_causes(paths[0], logs)
    if as_json:
        print(json.dumps(found, indent=2, default=asdict))
    for one in () if as_json else found:
        place = f"{one.file}:{one.line}{f', and {one.times - 1} more' if one.times > 1 else ''}"
        print(printable(f"{one.name}\n  {place}\n    {one.text}\n  means: {one.means}\n  look:  {one.look}"))
        print(f"  lesson: {one.lesson:02d}\n")
    if not found:
        remedy = "docs/debugging.md goes from symptoms to first commands."
        raise JobError(f"unknown: nothing in {logs[0]} is a failure that this command knows", remedy)
