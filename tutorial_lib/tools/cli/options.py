"""Options of the commands. cyclopts fills the dataclasses that the commands use, and ``--resume`` recalls options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from inspect import BoundArguments
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import App, CycloptsError, Parameter

from tutorial_lib.errors import InputError, check_trust
from tutorial_lib.files import read_json
from tutorial_lib.job.folder import OPTIONS_FILE
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.launcher.backends.persistent import PersistentBackend

PROGRAM = "python -m tutorial_lib"
LARGEST = 2**31 - 1  # the largest number that C++ code accepts
MOST_PROCESSES = 1024  # of a kind on a machine, because each is examined before a job
RANGES: dict[str, tuple[float, float]] = {  # all others: 1 to LARGEST, finite fractions from 0
    **dict.fromkeys(["trainers", "servers"], (1, MOST_PROCESSES)),
    "samplers": (0, MOST_PROCESSES),
    **dict.fromkeys(["seed", "ahead"], (0, LARGEST)),
    **dict.fromkeys(["timeout", "serving_timeout", "collective_timeout"], (1, LARGEST)),
    "ssh_port": (1, 65535),
}
# Options whose field has another name.
NAMES = {"name": "dataset", "python": "remote_python", "every": "checkpoint_every"}
NAMES["allow_public"] = "allow_public_addresses"
NO_OPTIONS = ["real", "options", "command", "dropout", "eval_batch_size", "sampling_threads", "negatives"]
OPTIONS_BEFORE_A_COMMAND = ("launch", "on", "submit")  # the rest of the line belongs to the user's command

PLACES = {"emulate", "on", "machines", "single_process", "ip_config", "slurm"}  # options that choose the machines
OF_SSH = {"ip_config", "ssh_port", "ssh_username", "ssh_config", "remote_python", "copy_to", "allow_public_addresses"}
# Values of these options can run programs. DGL loads pickled objects from a partition below the root.
NEEDS_TRUST = {*OF_SSH, "root"}
NOT_RECALLED = {"resume", "out", "trust"}
STORED = dict[str, bool | int | float | str | dict[Literal["path"], str] | None]  # the content of options.json

Given = Annotated[dict[str, Any], Parameter(parse=False)]  # the options of the command line and of options.json
MachinesOption = Annotated[int | None, Parameter(help="1: this machine, without namespaces.", group="Machines")]
TRAINING = Parameter(group="Training", allow_leading_hyphen=True)
FanoutsOption = Annotated[str, TRAINING, Parameter(help="neighbors sampled per hop, outermost first; -1: all.")]
CacheOption = Annotated[str, TRAINING, Parameter(help="memory of a trainer for rows and adjacency of other machines.")]
JsonOption = Annotated[bool, Parameter(name="--json", help="Print JSON for a program to read.")]
Place = TypeVar("Place", bound=Layout)


def shown_default(value: Any) -> str | None:
    """Return the default of an option for the help, or None if it need not be shown."""
    return None if value is None or value is False or value == () else str(value)


app = App(
    name=PROGRAM,
    help="Distributed GNN training with DGL: on emulated machines on this computer, or on real ones.\n\n"
    "Begin with train --emulate 2 (two machines, about a minute), or with machines start 2 and on machine-0. "
    "doctor --emulate 2 reports missing requirements of this computer. The lessons: make lab.",
    help_flags="--help",
    help_format="markdown",
    version_flags=(),
    default_parameter=Parameter(negative=(), allow_repeating=True, show_default=shown_default),
)


def option_name(field: str) -> str:
    """Return the name of the option for a field of a dataclass."""
    return NAMES.get(field, field).replace("_", "-")


def dgl_option_name(field: str) -> str:
    """Return the name of an option in the spelling of ssh and of DGL's launch tool."""
    return f"num_{field}" if field in ("trainers", "samplers", "servers") else NAMES.get(field, field)


def flatten(group: str, without: str = "", names: Callable[[str], str] = option_name, **more: Any) -> Parameter:
    """Return the annotation of a parameter whose dataclass becomes one option for each field.

    Args:
        group: heading in the help.
        without: fields that are no options of this command, separated by spaces. NO_OPTIONS are never options.
        names: returns the name of the option for a field.
        more: further arguments of cyclopts' Parameter.
    """
    options = f"^(?!({'|'.join([*NO_OPTIONS, *without.split()])})$)"
    ranges = partial(check_ranges, names)
    return Parameter(name="*", group=group, parse=options, name_transform=names, validator=ranges, **more)


def check_ranges(names: Callable[[str], str], _kind: Any, filled: Any) -> None:
    """Raise an InputError if a number in a dataclass is too small or too large."""
    for field in fields(filled) if filled is not None else ():
        number = getattr(filled, field.name)
        if isinstance(number, int | float) and not isinstance(number, bool):
            least, most = RANGES.get(field.name, (1, LARGEST) if isinstance(number, int) else (0, 1e300))
            if not least <= number <= most:
                raise InputError(f"--{names(field.name)} {number} is not in the range {least} to {most}")


OverSsh = Annotated[RealMachines | None, flatten("Machines over ssh", names=dgl_option_name, show_default=False)]


def parse_fanouts(text: str) -> tuple[int, ...]:
    """Return the numbers of ``"15,10,5"``, outermost hop first."""
    with contextlib.suppress(ValueError):
        fanouts = tuple(int(part) for part in text.split(","))
        if all(fanout != 0 and -1 <= fanout <= LARGEST for fanout in fanouts):
            return fanouts
    message = f"--fanouts {text[:80]!r} is not a list of neighbor counts, 1 to {LARGEST}"
    raise InputError(message, "Example: 15,10,5 (-1 takes all neighbors).")


def parse(words: Sequence[str]) -> tuple[Callable[..., Any], BoundArguments, dict[str, Any]]:
    """Return the function of a command, its arguments, and its parameters that are not options.

    Raises:
        InputError: cyclopts does not accept the words.
    """
    try:
        return app.parse_args(end_options(words), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        command = " ".join([PROGRAM, *(error.command_chain or ())])
        raise InputError(" ".join(str(error).split()), f"{command} --help lists the options.") from None


def end_options(words: Sequence[str]) -> list[str]:
    """Insert ``--`` before the user's command in ``launch`` and the like, because its options are not ours."""
    words = list(words)
    if not words or words[0] not in OPTIONS_BEFORE_A_COMMAND:
        return words
    arguments = app[words[0]].assemble_argument_collection()
    start = 1
    while start < len(words) and words[start].startswith("-"):
        name, has_value, _ = words[start].partition("=")
        if name not in arguments:  # cyclopts reports it
            return words
        start += 1 if has_value or arguments[name].is_flag() else 2
    return [*words[:start], "--", *words[start:]]


def values_of(bound: BoundArguments) -> dict[str, Any]:
    """Return the values of a command's options by name, with underscores."""
    values = {}
    for name, value in bound.arguments.items():
        if is_dataclass(value):
            # The option --seed belongs to the data set, which comes first. Commands copy it into the TrainConfig.
            names = [field.name for field in fields(value) if field.name != "seed" or "seed" not in values]
            values |= {NAMES.get(name, name): getattr(value, name) for name in names}
        else:
            values[name] = value
    return values


def names_in(words: Sequence[str]) -> set[str]:
    """Return the names of the options on a command line, with underscores."""
    options = takewhile(lambda word: word != "--", end_options(words))
    return {word[2:].partition("=")[0].replace("-", "_") for word in options if word.startswith("--")}


def run(words: Sequence[str]) -> None:
    """Run a command line. With ``--resume``, the options in the run folder are added to it."""
    command, bound, others = parse(words)
    if "given" in others:
        values = values_of(bound)
        if values.get("resume") and values.get("out") is not None:
            path = values["out"] / OPTIONS_FILE
            words = [*words, *recall(path, words, trust=values.get("trust", False))]
            try:
                command, bound, _ = parse(words)
            except InputError as error:
                remedy = "Give this option again, or leave out --resume and use another --out."
                raise InputError(f"{path} is damaged: {error.message}", remedy) from None
            values = values_of(bound)
        bound.arguments["given"] = {name: values[name] for name in names_in(words) & values.keys()}
    command(*bound.args, **bound.kwargs)


def to_json(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options for ``recall``. Paths are absolute, because the next command may start in another folder."""
    values = {name: value for name, value in given.items() if name not in NOT_RECALLED}
    return {n: {"path": str(v.absolute())} if isinstance(v, Path) else v for n, v in values.items()}


def recall(path: Path, words: Sequence[str], *, trust: bool) -> list[str]:
    """Return the options of an earlier start of a run as words, without the options that are given again.

    A place that is given again replaces the earlier one. Values that could run programs are used only with
    ``--trust`` or after a question.

    Args:
        path: the file with the options. An earlier version wrote more of them, also those that were not given.
        words: the command line.

    Raises:
        InputError: the file is damaged, or its values are not trusted.
    """
    try:
        stored = read_json(path, STORED, "Leave out --resume and start again in another --out.")
    except FileNotFoundError:  # later checks report the missing files of the run
        return []
    known, given = app[words[0]].assemble_argument_collection(), names_in(words)
    dropped = {*given, *NOT_RECALLED, *({*PLACES, "own_disks"} if given & PLACES else ())}
    stored = {name.replace("-", "_"): value for name, value in stored.items()}  # cyclopts accepts both spellings
    values = {NAMES.get(n, n): v.get("path") if isinstance(v, dict) else v for n, v in stored.items()}
    if values.get("ip_config") is None or "ip_config" in dropped - given:
        dropped |= OF_SSH
    earlier = {
        name: value
        for name, value in values.items()
        if value is not None and value is not False and name not in dropped and f"--{name}" in known
    }
    check_trust(path, {f"--{name}": earlier[name] for name in sorted(NEEDS_TRUST & earlier.keys())}, trust=trust)
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in earlier.items()]


def choose_machines(layout: Place, ssh: RealMachines | None, given: dict[str, Any]) -> Place:
    """Return the layout with the machines that the given options choose, by default two emulated machines.

    With ``--on``, ``emulate`` becomes the number of the running machines.

    Raises:
        InputError: the options choose two places, or do not fit the place.
    """
    others = PLACES - {"emulate", "on"} & given.keys()
    if len(others) + ("emulate" in given) > 1:
        raise InputError("choose one of --emulate N, --ip_config FILE, --slurm, --machines 1 and --single-process")
    if (count := given.get("machines", 1)) != 1:
        raise InputError(f"--machines {count}: only 1 is possible without namespaces", f"Use --emulate {count}.")
    if OF_SSH & given.keys() and "ip_config" not in given:
        raise InputError(
            "--ssh_port, --ssh_username and --copy_to are for machines reached over ssh; they need --ip_config FILE",
            "--emulate and --machines stay on this computer: leave them away.",
        )
    if layout.subnet is not None and not layout.slurm:
        raise InputError("--subnet is for the nodes of an allocation; it needs --slurm")
    if layout.wire is not None and others:
        raise InputError("--wire shapes the wire between emulated machines; it needs --emulate N")
    if layout.own_disks and (others or layout.on):
        remedy = f"Running ones get such disks when they start: {PROGRAM} machines start 2 --own-disks"
        raise InputError("--own-disks is for emulated machines that are about to be made; it needs --emulate N", remedy)
    if layout.on is None:
        return replace(layout, emulate=given.get("emulate", None if others else 2), real=ssh)
    if others:
        raise InputError("--on names running machines; it goes with none of --ip_config, --machines and the like")
    if layout.wire is not None:
        remedy = f"Of running ones: {PROGRAM} machines wire all {layout.wire} --name {layout.on}"
        raise InputError("--wire is of machines that are about to be made", remedy)
    return replace(layout, emulate=len(PersistentBackend(layout.on, given.get("emulate")).machines))
