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
from tutorial_lib.files import replacing
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
    from tutorial_lib.cluster.findings import report
    from tutorial_lib.tools.doctor import examine

    if on is not None and (emulate is not None or ssh is not None):
        raise InputError("choose one of --emulate N, --on NAME and --ip_config FILE")
    findings = examine(emulate=emulate, on=on, part_config=part_config, real=ssh)
    if as_json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        report(findings)
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
    if loaded.is_heterogeneous:
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
    """Copy the results of an interrupted job with --copy_to from its machines, and verify every file."""
    from tutorial_lib.cluster.delivery import LIST, check_starts, read_starts
    from tutorial_lib.cluster.homecoming import command, fetch_left
    from tutorial_lib.job.folder import own_run_folder

    run = run.absolute()
    if not (run / LIST).is_file():
        raise InputError(
            f"{run} is not the folder of a run with --copy_to: it has no {LIST}",
            "Give the folder that train, launch or finale named as its --out.",
        )
    with own_run_folder(run):  # a job that runs there brings its results home itself
        if not (starts := read_starts(run)):
            print(f"{run}: nothing is left to fetch")
            return
        check_starts(run, starts, trust=trust)
        if problems := fetch_left(run, print):
            raise JobError(problems[0], "\n".join([*problems[1:], f"{command(run)}, again, continues"]))
    print(f"everything is in {run}")


@app.command
def trace(
    run: Annotated[Path, Parameter(help="Run folder; of a finale, its run/.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="File to write. (default: RUN/trace.json)")] = None,
) -> None:
    """Write the timeline of a job for Perfetto and chrome://tracing."""
    from tutorial_lib.job.trace import describe
    from tutorial_lib.job.trace_events import read_trace

    found = read_trace(run)
    out = out or run / "trace.json"
    if out.suffix == ".html":
        raise InputError(f"--out {out}: trace writes no page", "Name a .json file and open it in Perfetto.")
    if out.exists() and not out.is_file():
        raise InputError(f"--out {out}: not a plain file", "Name a file, which may exist or not.")
    try:
        with replacing(out, durable=False) as file:  # a link in the folder of a stranger is not followed
            file.write(json.dumps(found.to_json()).encode())
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}") from None
    print(f"{len(found.spans):,} spans on {len(found.tracks)} tracks")
    print("\n".join(describe(found)))
    print(f"{out}: open it in https://ui.perfetto.dev or chrome://tracing")


@app.command
def explain(
    paths: Annotated[list[Path], Parameter(help="Log files, or the folder of a run.")],
    /,
    *,
    as_json: JsonOption = False,
) -> None:
    """Print the meaning of the errors of a failed job, the first thing to check, and the lesson about them."""
    from tutorial_lib.tools import explain as tool

    logs = [log for path in paths for log in tool.logs_of(path)]
    found = [tool.advised(finding, paths[0]) for finding in tool.explain(logs)]
    if as_json:
        print(json.dumps([finding.to_dict() for finding in found], indent=2))
    for finding in () if as_json else found:
        signature, more = finding.signature, f", and {finding.times - 1} more" if finding.times > 1 else ""
        print(f"{signature.name}\n  {finding.path}:{finding.number}{more}\n    {printable(finding.text)}")
        print(f"  means: {signature.means}\n  look:  {signature.look}\n  lesson {signature.lesson:02d} is about it\n")
    if not found:
        names = f"{len(logs)} files" if len(logs) > 1 else str(logs[0])
        raise JobError(
            f"unknown: nothing in {names} is a failure that this command knows",
            "docs/debugging.md goes from symptoms to first commands.",
        )
