"""Commands before a job: ``doctor``, ``data`` and ``partition``."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from tutorial_lib.data import DATASET_NAMES
from tutorial_lib.errors import InputError, describe_exit_code, print_to_stderr
from tutorial_lib.job.dgl import DglJob
from tutorial_lib.job.layout import Layout, SshMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.findings import FAIL, OK, SKIP, Finding, Findings, run_checks, verdict
from tutorial_lib.partition import partition_dataset
from tutorial_lib.partition.folder import type_counts
from tutorial_lib.tools import options as opts
from tutorial_lib.tools.options import about, app, flatten

REINSTALL = "Remove .venv and run make again, or: pip install -r requirements.lock && pip install --no-deps -e ."
IMPORT_CODE = """import dgl, torch
from tutorial_lib.compat.stack import graphbolt_problem
dgl.graph(([0, 1], [1, 0])).in_degrees().numpy()
assert dgl.__version__.startswith("2.1.0"), f"DGL 2.1.0 is required, but {dgl.__version__} is installed"
graphbolt = graphbolt_problem() or "and DGL has its GraphBolt library for this torch"  # dmlc/dgl #7157
print(f"dgl {dgl.__version__} works with torch {torch.__version__}, {graphbolt}")"""
SSH_PARAMETERS = flatten("Machines over ssh", "copy_to", opts.dgl_option_name, show_default=False)


@app.command
def doctor(
    *,
    emulate: Annotated[int | None, about("Also start this many emulated machines and check them.")] = None,
    on: Annotated[str | None, about("Also check running emulated machines of this name.")] = None,
    ssh: Annotated[SshMachines | None, SSH_PARAMETERS] = None,
    part_config: Annotated[Path | None, about("DGL's description of a partition (JSON).", name="--part_config")] = None,
    as_json: opts.JsonOption = False,
) -> None:
    """Check whether this computer and other machines can run a job, and print a remedy for each problem."""
    if sum(choice is not None for choice in (emulate, on, ssh)) > 1:
        raise InputError("choose one of --emulate N, --on NAME and --ip_config FILE")
    machines = examine_machines(Layout(emulate, on=on, ssh_machines=ssh), part_config)
    findings = Findings([*run_checks([check_programs, check_import]), *machines])
    print(json.dumps(findings, indent=2, default=asdict) if as_json else repr(findings))
    sys.exit(1 if findings.failed else 0)


def check_programs() -> Iterator[Finding]:
    """Machines over ssh need an ssh client, and copies to machines need rsync."""
    for name, package, option in (("ssh", "openssh-client", "--ip_config"), ("rsync", "rsync", "--copy_to")):
        path = shutil.which(name)
        yield Finding(name, OK if path else SKIP, path or f"not found. {option} needs it: sudo apt install {package}")


def check_import(code: str = IMPORT_CODE, seconds: float = 60.0) -> Finding:
    """Import DGL in a child process, because the import can crash or hang."""
    try:
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return Finding("import dgl", FAIL, f"did not end within {seconds:g} s", f"Run {sys.executable} -c 'import dgl'")
    words = (result.stderr if result.returncode else result.stdout).strip() or describe_exit_code(result.returncode)
    return verdict(result.returncode == 0, "import dgl", words.split("\n")[-1], REINSTALL)


def examine_machines(layout: Layout, part_config: Path | None = None) -> Findings:
    """Return the findings of the checks before a job, also of the parts if ``part_config`` is given."""
    backend = layout.make_backend()
    path = str(part_config.absolute()) if part_config else "any"
    try:
        with backend, tempfile.TemporaryDirectory() as logs, Agents(backend, Path(logs)) as agents:
            job = DglJob(backend.machines, [], path, ip_config="", log_dir="", cwd="", master_port=backend.master_port)
            spec = layout.complete_job(job, backend).to_spec()
            findings = agents.prepare(spec if part_config else replace(spec, checks=[]))
    except InputError as error:
        return Findings([Finding("machines", FAIL, error.message, error.remedy)])
    return Findings([Finding("machines", OK, f"{len(backend.machines)} answered"), *findings])


def print_facts(facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print facts as JSON, or one fact per line."""
    width = max(15, *map(len, facts))
    print(json.dumps(facts, indent=2) if as_json else "\n".join(f"{key:{width}} {facts[key]}" for key in facts))


@app.command
def data(
    dataset: Annotated[str, about(f"One of {', '.join(DATASET_NAMES)}, or the path of your graph.")],
    /,
    *,
    source: Annotated[DataSource, flatten("Data", "name method")] = DataSource(),
    graph_only: Annotated[bool, about("Load without node features.")] = False,
    download: Annotated[bool, about("Allow a download.")] = False,
    as_json: opts.JsonOption = False,
) -> None:
    """Load, generate or download a data set, check it, and print its sizes."""
    loaded = replace(source, name=dataset).load(features=not graph_only, download=download)
    facts = {
        "dataset": loaded.name,
        "nodes": loaded.structure.num_nodes(),
        "directed_edges": loaded.structure.num_edges(),
        "features": loaded.num_features,
        "classes": loaded.num_classes,
        **{name.replace("_mask", "_nodes"): count for name, count in loaded.split_counts().items()},
    }
    if not loaded.structure.is_homogeneous:
        facts |= {f"{kind}_of": counts for kind, counts in type_counts(loaded).items()} | {"target": loaded.target}
    print_facts(facts | loaded.info, as_json=as_json)


@app.command
def partition(
    *,
    dataset: Annotated[str, about("Data set, by name or path (see the command data).", "Data")],
    source: Annotated[DataSource, flatten("Data", "name")] = DataSource(),
    parts: Annotated[int, about("Number of parts, one per machine.")],
    out: Annotated[Path, about("Folder to write. A folder with the same partition is reused.")],
    as_json: opts.JsonOption = False,
) -> None:
    """Partition a data set for DGL's servers, and report the number of cut edges."""
    source = replace(source, name=dataset)
    result = partition_dataset(source.load(), parts, out, method=source.method, seed=source.seed, log=print_to_stderr)
    facts = {**asdict(result.report), "part_config": str(result.config)}
    if as_json:
        facts["reused"] = result.reused
    else:
        facts = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in facts.items()}
    print_facts(facts, as_json=as_json)
