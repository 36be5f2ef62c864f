"""Options that several commands have, and what they mean together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from tutorial_lib.data import NAMES
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import RealMachines
from tutorial_lib.tasks import TASKS

LARGEST = 2**31 - 1  # of a number that C++ code takes
MOST_PROCESSES = 1024  # of a kind on a machine: each is looked at before a job

DatasetOption = Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}, or the path of an .npz file.")]
ScaleOption = Annotated[float, typer.Option(help="Size of synthetic-products, 0.002 to 1.0 (1.0: 2.4M nodes).")]
RootOption = Annotated[Path | None, typer.Option(help="Folder of downloads and caches. (default: data/)")]
SeedOption = Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of data, partition and training.")]
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
    typer.Option(
        "--copy_to",
        help="Folder on the machines for a copy of the files: /scratch/job or '~/job'. (default: they share ours)",
    ),
]
PublicOption = Annotated[
    bool,
    typer.Option("--allow_public_addresses", help="DGL runs code that arrives on its ports: only behind a firewall."),
]


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a number of seconds")
    return seconds


def _seconds(name: str, least: float, text: str) -> Any:
    return typer.Option(name, min=least, callback=_finite, help=text)


StallOption = Annotated[
    float, _seconds("--stall-timeout", 0, "Seconds without progress until a job is ended; 0: never.")
]
ServingOption = Annotated[float, _seconds("--serving-timeout", 1, "Seconds for the DGL servers to load their parts.")]
CollectiveOption = Annotated[
    float, _seconds("--collective-timeout", 1, "Seconds that a rank waits for the others in one collective.")
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        help="The most that partitioning may use, like 12GB; decides between methods. (default: 80 % of the free)",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


EmulateOption = Annotated[int | None, typer.Option(help="Number of emulated machines.")]
MachinesOption = Annotated[int | None, typer.Option(help="1: this machine, without namespaces.")]
WireOption = Annotated[str | None, typer.Option(help="Rate of the emulated wire: 1gbit, 200mbit.")]
IpConfigOption = Annotated[
    Path | None,
    typer.Option("--ip_config", help="Real machines over ssh, one a line: its address, and if you like a port."),
]
TrainersOption = Annotated[int, typer.Option(max=MOST_PROCESSES, help="Trainers per machine.")]
SamplersOption = Annotated[int, typer.Option(max=MOST_PROCESSES, help="Sampler processes per trainer.")]
ServersOption = Annotated[int, typer.Option(max=MOST_PROCESSES, help="DGL servers per machine.")]
FanoutsOption = Annotated[str, typer.Option(help="Neighbours per hop, outermost first.")]
BatchSizeOption = Annotated[int, typer.Option(min=1, max=LARGEST, help="Seed nodes per trainer and step.")]
HiddenSizeOption = Annotated[int, typer.Option(min=1, max=LARGEST)]
LearningRateOption = Annotated[float, typer.Option(min=0)]
TaskOption = Annotated[str, typer.Option(help=f"What is learned: {', '.join(TASKS)}.")]
EmbeddingSizeOption = Annotated[
    int, typer.Option(min=1, max=LARGEST, help="Width of learned rows, for nodes without features.")
]
EmbeddingLearningRateOption = Annotated[float, typer.Option(min=0, help="Of learned rows.")]
LoaderOption = Annotated[
    str,
    typer.Option(help="Where batches come from: pipeline (made ahead, remote rows kept), dgl (DGL's loader) or auto."),
]
CacheOption = Annotated[
    str, typer.Option(help="Memory of each trainer for rows and lists of other machines, in the pipeline; 0: none.")
]
AheadOption = Annotated[int, typer.Option(min=0, max=LARGEST, help="Batches made ahead of their use, in the pipeline.")]
HalfWireOption = Annotated[
    bool, typer.Option("--half-wire", help="Features cross the wire as float16, rounded; in the pipeline.")
]
DeviceOption = Annotated[
    str,
    typer.Option(help="Of the model: cpu, cuda, or auto (GPUs where each rank has one). Sampling is on the CPU."),
]


def parse_fanouts(text: str) -> tuple[int, ...]:
    """``"15,10,5"`` to numbers; outermost hop first."""
    try:
        fanouts = tuple(int(part) for part in text.split(","))
    except ValueError:
        fanouts = ()
    if not fanouts or any(f == 0 or not -1 <= f <= LARGEST for f in fanouts):
        shown = text if len(text) < 80 else f"{text[:80]}..."
        raise InputError(
            f"--fanouts {shown!r} is not a list of neighbour counts, 1 to {LARGEST}",
            "Example: 15,10,5 (-1 takes all neighbours).",
        )
    return fanouts


def parse_machine_counts(text: str) -> tuple[int, ...]:
    """``"1,2,4"`` to numbers of machines, in order and without repeats; ``"none"`` to none."""
    if text == "none":
        return ()
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise InputError(f"--scaling {text!r} is not a list of numbers of machines", "Example: 1,2,4") from None


def check_machines(
    *,
    emulate: int | None,
    machines: int | None,
    ip_config: Path | None = None,
    single_process: bool = False,
    wire: str | None = None,
    ssh: tuple[object, ...] = (),
) -> None:
    """See that the options that say where to run name one place.

    Args:
        ssh: values of the options that only machines over ssh have; None where not given.

    Raises:
        InputError: they contradict each other.
    """
    if sum([emulate is not None, machines is not None, single_process, ip_config is not None]) > 1:
        raise InputError("choose one of --emulate N, --ip_config FILE, --machines 1 and --single-process")
    if machines not in (None, 1):
        raise InputError(f"--machines {machines}: only 1 is possible without namespaces", f"Use --emulate {machines}.")
    if ip_config is None and any(value is not None for value in ssh):
        raise InputError("--ssh_port, --ssh_username and --copy_to are for real machines; they need --ip_config FILE")
    if wire is not None and (machines or single_process or ip_config):
        raise InputError("--wire shapes the wire between emulated machines; it needs --emulate N")


def real_machines(
    ip_config: Path | None, port: int | None, username: str | None, python: str, copy_to: str | None, public: bool
) -> RealMachines | None:
    """The machines of ``--ip_config`` with the options of ssh; None without it."""
    return None if ip_config is None else RealMachines(ip_config, port, username, python, copy_to, public)
