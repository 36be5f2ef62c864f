"""``python -m tutorial_lib``: every command. Exit codes: 0 done, 1 failed, 2 wrong arguments, 130 interrupted."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tutorial_lib.datasets import DEFAULT_SCALE, NAMES, Dataset, default_root, load_dataset
from tutorial_lib.display import RunDisplay, human_bytes, print_failure
from tutorial_lib.errors import InputError, TutorialError
from tutorial_lib.result import check_resume_folder, check_run_folder, default_run_folder

INTERRUPTED, TERMINATED = 130, 128 + signal.SIGTERM

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Distributed GNN training with DGL: on emulated machines on this computer.",
)

DatasetOption = Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}, or the path of an .npz file.")]
ScaleOption = Annotated[float, typer.Option(help="Size of synthetic-products, 0.002 to 1.0 (1.0: 2.4M nodes).")]
RootOption = Annotated[Path | None, typer.Option(help="Folder of downloads and caches. (default: data/)")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of data, partition and training.")]
SshPortOption = Annotated[
    int | None, typer.Option("--ssh_port", min=1, max=65535, help="(default: your ssh configuration's)")
]
SshUserOption = Annotated[str | None, typer.Option("--ssh_username", help="(default: your ssh configuration's)")]
RemotePythonOption = Annotated[
    str,
    typer.Option(
        "--remote_python", show_default=False, help="Python on the machines, with tutorial_lib. (default: as here)"
    ),
]
CopyToOption = Annotated[
    str | None,
    typer.Option("--copy_to", help="Folder on the machines that gets a copy of the files. (default: they share ours)"),
]
PublicOption = Annotated[
    bool,
    typer.Option("--allow_public_addresses", help="DGL runs code that arrives on its ports: only behind a firewall."),
]
StallOption = Annotated[
    float,
    typer.Option("--stall-timeout", min=0, help="Seconds without progress until the job is ended; 0: never."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_fanouts(text: str) -> tuple[int, ...]:
    """``"15,10,5"`` to numbers; outermost hop first."""
    try:
        fanouts = tuple(int(part) for part in text.split(","))
    except ValueError:
        fanouts = ()
    if not fanouts or any(f == 0 or f < -1 for f in fanouts):
        raise InputError(
            f"--fanouts {text!r} is not a list of neighbour counts", "Example: 15,10,5 (-1 takes all neighbours)."
        )
    return fanouts


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
    allow_public: PublicOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check this computer, and machines, for everything a job needs; each problem comes with its remedy."""
    from tutorial_lib.doctor import examine, report

    findings = examine(
        emulate=emulate,
        ip_config=ip_config,
        part_config=part_config,
        ssh_port=ssh_port,
        ssh_username=ssh_username,
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
    method: Annotated[str, typer.Option(help="metis or random.")] = "metis",
    scale: ScaleOption = DEFAULT_SCALE,
    seed: SeedOption = 0,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut a data set into parts that DGL's servers load, and report the counted cut."""
    from dataclasses import asdict

    from tutorial_lib.partition import partition_dataset

    loaded = load_dataset(dataset, scale=scale, seed=seed, root=root)
    done = partition_dataset(loaded, parts, out, method=method, seed=seed, progress=_note)
    report = asdict(done.report)
    if as_json:
        print(json.dumps({**report, "part_config": str(done.config), "reused": done.reused}, indent=2))
        return
    for key, value in report.items():
        print(f"{key:15} {value:.4f}" if isinstance(value, float) else f"{key:15} {value}")
    print(f"{'part_config':15} {done.config}")


@app.command()
def train(
    dataset: DatasetOption = "synthetic-products",
    emulate: Annotated[int | None, typer.Option(help="Number of emulated machines.")] = None,
    machines: Annotated[int | None, typer.Option(help="1: this machine, without namespaces.")] = None,
    single_process: Annotated[
        bool, typer.Option("--single-process", help="No servers, no ranks: the plain loop, to compare with.")
    ] = False,
    trainers: Annotated[int, typer.Option(help="Trainers per machine.")] = 1,
    samplers: Annotated[int, typer.Option(help="Sampler processes per trainer.")] = 0,
    servers: Annotated[int, typer.Option(help="DGL servers per machine.")] = 1,
    wire: Annotated[str | None, typer.Option(help="Rate of the emulated wire: 1gbit, 200mbit.")] = None,
    ip_config: Annotated[
        Path | None, typer.Option("--ip_config", help="Real machines over ssh: one 'address [port]' a line.")
    ] = None,
    ssh_port: SshPortOption = None,
    ssh_username: SshUserOption = None,
    remote_python: RemotePythonOption = sys.executable,
    copy_to: CopyToOption = None,
    allow_public: PublicOption = False,
    stall_timeout: StallOption = 120.0,
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    fanouts: Annotated[str, typer.Option(help="Neighbours per hop, outermost first.")] = "15,10,5",
    batch_size: Annotated[int, typer.Option(min=1, help="Seed nodes per trainer and step.")] = 1000,
    hidden_size: Annotated[int, typer.Option(min=1)] = 256,
    learning_rate: Annotated[float, typer.Option(min=0)] = 0.006,
    device: Annotated[
        str,
        typer.Option(help="Of the model: cpu, cuda, or auto (GPUs where each rank has one). Sampling is on the CPU."),
    ] = "cpu",
    scale: ScaleOption = DEFAULT_SCALE,
    seed: SeedOption = 0,
    root: RootOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; must not exist yet, but for --resume. (default: runs/TIME-NAME)")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from its last complete checkpoint.")
    ] = False,
) -> None:
    """Train GraphSAGE and report one global accuracy."""
    from tutorial_lib.continuation import Continuation
    from tutorial_lib.layout import Layout, RealMachines
    from tutorial_lib.runs import DataSource, run_distributed, run_single
    from tutorial_lib.training import TrainConfig

    if sum([emulate is not None, machines is not None, single_process, ip_config is not None]) > 1:
        raise InputError("choose one of --emulate N, --ip_config FILE, --machines 1 and --single-process")
    if ip_config is None and (ssh_port, ssh_username, copy_to) != (None, None, None):
        raise InputError("--ssh_port, --ssh_username and --copy_to are for real machines; they need --ip_config FILE")
    if machines not in (None, 1):
        raise InputError(f"--machines {machines}: only 1 is possible without namespaces", f"Use --emulate {machines}.")
    if single_process and (trainers, samplers, servers) != (1, 0, 1):
        raise InputError("--single-process has no --trainers, --samplers and --servers")
    if wire is not None and (machines or single_process or ip_config):
        raise InputError("--wire shapes the wire between emulated machines; it needs --emulate N")
    if resume and out is None:
        raise InputError("--resume needs --out, the folder of the run to continue")
    config = TrainConfig(
        epochs=epochs,
        fanouts=parse_fanouts(fanouts),
        batch_size=batch_size,
        hidden_size=hidden_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    real = None
    if ip_config is not None:
        real = RealMachines(ip_config, ssh_port, ssh_username, remote_python, copy_to, allow_public)
    elif not single_process and machines is None and emulate is None:
        emulate = 2
    source = DataSource(dataset, scale=scale, seed=seed, root=root)
    folder = check_resume_folder(out) if resume and out else check_run_folder(out or default_run_folder(dataset))
    keep = Continuation(resume, checkpoint_every)
    with RunDisplay(epochs) as display:
        if single_process:
            result = run_single(source, config, folder, display, keep, device=device)
        else:
            layout = Layout(emulate, wire, trainers, samplers, servers, real, stall_timeout or None, device)
            result = run_distributed(source, layout, config, folder, display, keep)
    display.summary(result, folder)


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    command: Annotated[list[str], typer.Argument(help='The script and its arguments: "python3 train.py --lr 0.01".')],
    part_config: Annotated[Path, typer.Option("--part_config", help="DGL's partition description (JSON).")],
    emulate: Annotated[int | None, typer.Option(help="Number of emulated machines, one per part.")] = None,
    machines: Annotated[int | None, typer.Option(help="1: this machine, without namespaces.")] = None,
    ip_config: Annotated[
        Path,
        typer.Option(
            "--ip_config",
            help="Address file that the script reads: its machines are reached over ssh. With --emulate it is written "
            "if it does not exist.",
        ),
    ] = Path("ip_config.txt"),
    workspace: Annotated[Path, typer.Option(help="Working directory of every process.")] = Path(),
    num_trainers: Annotated[int, typer.Option("--num_trainers", help="Trainers per machine.")] = 1,
    num_samplers: Annotated[int, typer.Option("--num_samplers", help="Sampler processes per trainer.")] = 0,
    num_servers: Annotated[int, typer.Option("--num_servers", help="DGL servers per machine.")] = 1,
    num_server_threads: Annotated[
        int, typer.Option("--num_server_threads", min=1, help="OpenMP threads of a server.")
    ] = 1,
    num_omp_threads: Annotated[
        int | None, typer.Option("--num_omp_threads", min=1, help="OpenMP threads of a trainer (default: CPUs divided)")
    ] = None,
    graph_format: Annotated[str, typer.Option("--graph_format", help="Formats the servers build.")] = "csc",
    extra_envs: Annotated[
        list[str] | None, typer.Option("--extra_envs", help="NAME=VALUE ... for every process.")
    ] = None,
    ssh_port: SshPortOption = None,
    ssh_username: SshUserOption = None,
    remote_python: RemotePythonOption = sys.executable,
    copy_to: CopyToOption = None,
    allow_public: PublicOption = False,
    wire: Annotated[str | None, typer.Option(help="Rate of the emulated wire: 1gbit, 200mbit.")] = None,
    timeout: Annotated[float | None, typer.Option(min=1, help="Seconds the trainers may take.")] = None,
    stall_timeout: StallOption = 120.0,
    out: Annotated[Path | None, typer.Option(help="Folder of the logs (default: runs/TIME-launch)")] = None,
) -> None:
    """Run any DistDGL script, unchanged, on emulated or real machines. Trainer output is in the log folder."""
    from tutorial_lib.launching import LaunchRequest
    from tutorial_lib.launching import launch as run_launch

    if machines not in (None, 1):
        raise InputError(f"--machines {machines}: only 1 is possible without namespaces", f"Use --emulate {machines}.")
    out = check_run_folder(out or default_run_folder("launch"))
    request = LaunchRequest(
        command=command,
        workspace=workspace,
        part_config=part_config,
        ip_config=ip_config,
        out=out,
        emulate=emulate,
        local=machines == 1,
        num_trainers=num_trainers,
        num_samplers=num_samplers,
        num_servers=num_servers,
        num_server_threads=num_server_threads,
        num_omp_threads=num_omp_threads,
        graph_format=graph_format,
        extra_envs=extra_envs or (),
        wire=wire,
        timeout=timeout,
        stall_timeout=stall_timeout or None,
        ssh_port=ssh_port,
        ssh_username=ssh_username,
        remote_python=remote_python,
        copy_to=copy_to,
        allow_public_addresses=allow_public,
    )
    with RunDisplay() as display:
        use = run_launch(request, display.on_event)
    for machine, used in use.items():
        print(f"{machine}: sent {human_bytes(used.bytes_sent)}, logs in {out / machine}")


@app.command()
def finale(
    dataset: Annotated[
        str | None, typer.Option(help="(default: ogbn-products if present, else synthetic-products)")
    ] = None,
    emulate: Annotated[int, typer.Option(help="Number of emulated machines.")] = 2,
    scale: ScaleOption = 0.1,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    root: RootOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. (default: runs/TIME-NAME)")] = None,
) -> None:
    """The scripted multi-machine run: data, partition, training, evaluation, report beside published figures."""
    from tutorial_lib.datasets.ogb import is_present
    from tutorial_lib.display import comparison_table
    from tutorial_lib.runs import DataSource, Layout, run_distributed
    from tutorial_lib.training import TrainConfig

    root = root or default_root()
    dataset = dataset or ("ogbn-products" if is_present("ogbn-products", root) else "synthetic-products")
    folder = check_run_folder(out or default_run_folder(dataset))
    with RunDisplay(epochs) as display:
        source = DataSource(dataset, scale=scale, seed=0, root=root)
        layout = Layout(emulate=emulate, wire="1gbit")
        result = run_distributed(source, layout, TrainConfig(epochs=epochs), folder, display)
    display.summary(result, folder)
    display.console.print(comparison_table(result))


def main() -> None:
    """Run a command; every failure ends in a sentence and an exit code."""
    signal.signal(signal.SIGTERM, _end_on_sigterm)
    arguments = sys.argv[1:]
    if arguments[:1] == ["launch"]:
        from tutorial_lib.launching import spread_extra_envs

        arguments = spread_extra_envs(arguments)
    try:
        app(arguments)
    except TutorialError as error:
        print_failure(error)
        sys.exit(error.exit_code)
    except OSError as error:
        print_failure(TutorialError(f"{error.filename or 'operating system'}: {error.strerror or error}"))
        sys.exit(1)
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            how = "interrupted" if end.code == INTERRUPTED else "told to end (SIGTERM)"
            print(f"{how}; everything that was started has been stopped", file=sys.stderr)
        raise


def _end_on_sigterm(*_args: object) -> None:
    """Unwind like Ctrl-C, so that every machine is stopped; a second signal ends at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(TERMINATED)
