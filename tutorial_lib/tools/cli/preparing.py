"""``doctor``, ``data`` and ``partition``: what comes before a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tutorial_lib.data import DEFAULT_SCALE, NAMES, Dataset, load_dataset
from tutorial_lib.tools.cli.app import app
from tutorial_lib.tools.cli.options import (
    DatasetOption,
    JsonOption,
    MaxMemoryOption,
    PublicOption,
    RemotePythonOption,
    RootOption,
    ScaleOption,
    SeedOption,
    SshPortOption,
    SshUserOption,
)


def note(text: str) -> None:
    """A line for people, beside an output that a program may read."""
    print(text, file=sys.stderr, flush=True)


@app.command()
def doctor(
    emulate: Annotated[int | None, typer.Option(help="Also start this many emulated machines and check them.")] = None,
    ip_config: Annotated[
        Path | None, typer.Option("--ip_config", help="Also check the machines of this file, over ssh.")
    ] = None,
    part_config: Annotated[
        Path | None, typer.Option("--part_config", help="DGL's partition description: each machine checks its part.")
    ] = None,
    ssh_port: SshPortOption = None,
    ssh_username: SshUserOption = None,
    remote_python: RemotePythonOption = sys.executable,
    allow_public: PublicOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check this computer, and machines, for everything a job needs; each problem comes with its remedy."""
    from tutorial_lib.tools.doctor import examine, report

    findings = examine(
        emulate=emulate,
        ip_config=ip_config,
        part_config=part_config,
        ssh_port=ssh_port,
        ssh_username=ssh_username,
        remote_python=remote_python,
        allow_public=allow_public,
    )
    if as_json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        report(findings)
    if findings.failed:
        raise typer.Exit(1)


@app.command()
def data(
    dataset: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}, or the path of an .npz file.")],
    scale: ScaleOption = DEFAULT_SCALE,
    seed: SeedOption = 0,
    root: RootOption = None,
    graph_only: Annotated[bool, typer.Option("--graph-only", help="Load without node features.")] = False,
    download: Annotated[bool, typer.Option("--download", help="Allow a download.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Load (or generate, or download) a data set, check it, and print what it holds."""
    loaded = load_dataset(dataset, scale=scale, seed=seed, root=root, features=not graph_only, download=download)
    description = describe(loaded)
    if as_json:
        print(json.dumps(description, indent=2))
    else:
        for key, value in description.items():
            print(f"{key:15} {value}")


def describe(dataset: Dataset) -> dict[str, Any]:
    """Counts of a data set, for people and programs."""
    return {
        "dataset": dataset.name,
        "nodes": dataset.graph.num_nodes(),
        "directed_edges": dataset.graph.num_edges(),
        "features": dataset.num_features,
        "classes": dataset.num_classes,
        **{name.replace("_mask", "_nodes"): count for name, count in dataset.split_counts().items()},
        **dataset.info,
    }


@app.command()
def partition(
    dataset: DatasetOption,
    parts: Annotated[int, typer.Option(help="Number of parts, one per machine.")],
    out: Annotated[Path, typer.Option(help="Folder to write; reused when it holds the same partition.")],
    method: Annotated[str, typer.Option(help="auto, metis, multilevel, streaming or random.")] = "auto",
    max_memory: MaxMemoryOption = None,
    scale: ScaleOption = DEFAULT_SCALE,
    seed: SeedOption = 0,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut a data set into parts that DGL's servers load, and report the counted cut."""
    from dataclasses import asdict

    from tutorial_lib.partition import parse_memory, partition_dataset

    parse_memory(max_memory)  # a mistake in it is said before anything is loaded
    loaded = load_dataset(dataset, scale=scale, seed=seed, root=root)
    done = partition_dataset(loaded, parts, out, method=method, seed=seed, max_memory=max_memory, progress=note)
    report = asdict(done.report)
    if as_json:
        print(json.dumps({**report, "part_config": str(done.config), "reused": done.reused}, indent=2))
        return
    for key, value in report.items():
        print(f"{key:15} {value:.4f}" if isinstance(value, float) else f"{key:15} {value}")
    print(f"{'part_config':15} {done.config}")
