"""Commands before a job (``doctor``, ``data``, ``partition``) and after it (``trace``, ``fetch``, ``explain``)."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tutorial_lib.data import NAMES, check_arguments
from tutorial_lib.errors import InputError, JobError, printable, to_stderr
from tutorial_lib.job.layout import RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.cli.options import JsonOption, app, dgl_option_name, flatten


def show(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print facts as JSON, or one fact per line."""
    width = max(15, *map(len, facts))
    print(json.dumps(facts, indent=2) if as_json else "\n".join(f"{key:{width}} {facts[key]}" for key in facts))


@app.command
def doctor(
    *,
    emulate: Annotated[int | None, Parameter(help="Also start this many emulated machines and check them.")] = None,
    on: Annotated[str | None, Parameter(help="Also check running emulated machines of this name.")] = None,
    ssh: Annotated[RealMachines | None, flatten("Machines over ssh", "copy_to", dgl_option_name)] = None,
    part_config: Annotated[
        Path | None,
        Parameter(name="--part_config", help="DGL's partition description. Each machine checks its part."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this computer, and machines, for all requirements of a job. Each problem has a remedy."""
    from tutorial_lib.job.layout import Layout
    from tutorial_lib.tools.doctor import examine

    if sum(place is not None for place in (emulate, on, ssh)) > 1:
        raise InputError("choose one of --emulate N, --on NAME and --ip_config FILE")
    findings = examine(Layout(emulate, on=on, real=ssh), part_config)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print(repr(findings))
    if findings.failed:
        sys.exit(1)


@app.command
def data(
    dataset: Annotated[str, Parameter(help=f"One of {', '.join(NAMES)}, or the path of a graph of your own.")],
    /,
    *,
    source: Annotated[DataSource, flatten("Data", "name method")] = DataSource(),
    graph_only: Annotated[bool, Parameter(help="Load without node features.")] = False,
    download: Annotated[bool, Parameter(help="Allow a download.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Load, generate or download a data set, check it, and print its sizes."""
    check_arguments(dataset, source.scale, source.seed)
    from tutorial_lib.data import load_dataset
    from tutorial_lib.partition.folder import type_counts

    options = {"scale": source.scale, "seed": source.seed, "root": source.root, "both_ways": source.both_ways}
    loaded = load_dataset(dataset, features=not graph_only, download=download, **options)
    types: dict[str, Any] = {}
    if not loaded.structure.is_homogeneous:
        types = {f"{of}_of": counts for of, counts in type_counts(loaded).items()} | {"target": loaded.target}
    facts = {
        "dataset": loaded.name,
        "nodes": loaded.structure.num_nodes(),
        "directed_edges": loaded.structure.num_edges(),
        "features": loaded.num_features,
        "classes": loaded.num_classes,
        **{name.replace("_mask", "_nodes"): count for name, count in loaded.split_counts().items()},
        **types,
        **loaded.info,
    }
    show(facts, as_json=as_json)


@app.command
def partition(
    *,
    dataset: Annotated[str, Parameter(help="As of the command data.")],
    source: Annotated[DataSource, flatten("Data", "name")] = DataSource(),
    parts: Annotated[int, Parameter(help="Number of parts, one per machine.")],
    out: Annotated[Path, Parameter(help="Folder to write; reused when it holds the same partition.")],
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


@app.command
def fetch(
    run: Annotated[Path, Parameter(help="Run folder of a job that was started with --copy_to.")],
    /,
    *,
    trust: Annotated[
        bool, Parameter(help="Connect to the machines that the run folder names, without a question.")
    ] = False,
) -> None:
    """Download the results that an interrupted job with --copy_to has left on its machines, and verify them."""
    from tutorial_lib.job.folder import own_run_folder
    from tutorial_lib.job.remote_files import LIST, check_delivery, fetch_results, read_delivery

    run = run.absolute()
    if not (run / LIST).is_file():
        raise InputError(
            f"{run} is not the folder of a run with --copy_to: it has no {LIST}",
            "Give the folder that train, launch or finale named as its --out.",
        )
    with own_run_folder(run):  # a running job downloads its results itself
        left = read_delivery(run)
        if left is None:
            print(f"{run}: nothing is left to fetch")
            return
        check_delivery(run, left, trust=trust)
        if problems := fetch_results(run, left, print):
            raise JobError(problems[0], "\n".join(problems[1:]))
    print(f"everything is in {run}")


@app.command
def trace(
    run: Annotated[Path, Parameter(help="Run folder; of a finale, its run/.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="File to write. (default: RUN/trace.json)")] = None,
) -> None:
    """Write the timeline of a job for Perfetto and chrome://tracing."""
    from tutorial_lib.tools.trace import write_trace

    print("\n".join(write_trace(run, out or run / "trace.json")))


@app.command
def explain(
    paths: Annotated[list[Path], Parameter(help="Log files, or the folder of a run.")],
    /,
    *,
    as_json: JsonOption = False,
) -> None:
    """Print the meaning of the errors of a failed job, the first thing to check, and the lesson about them."""
    from tutorial_lib.tools import explain as tool

    logs = [log for path in paths for log in tool.find_logs(path)]
    found = tool.explain(paths[0], logs)
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    for one in () if as_json else found:
        more = f", and {one.times - 1} more" if one.times > 1 else ""
        print(f"{one.name}\n  {printable(one.file)}:{one.line}{more}\n    {printable(one.text)}")
        print(f"  means: {one.means}\n  look:  {one.look}\n  lesson: {one.lesson:02d}\n")
    if not found:
        names = f"{len(logs)} files" if len(logs) > 1 else str(logs[0])
        raise JobError(
            f"unknown: nothing in {names} is a failure that this command knows",
            "docs/debugging.md goes from symptoms to first commands.",
        )
