"""Options of the commands. cyclopts fills the dataclasses that the commands use, and ``--resume`` recalls options."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from inspect import BoundArguments
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter

from tutorial_lib.errors import InputError, check_trust
from tutorial_lib.files import JsonObject, parse_memory, read_json
from tutorial_lib.job.folder import OPTIONS_FILE
from tutorial_lib.job.layout import Layout, SshMachines
from tutorial_lib.trainer.config import TrainConfig

PROGRAM = "python -m tutorial_lib"
MAX_COUNTS = dict.fromkeys(["trainers", "servers", "samplers", "server_threads"], 1024)  # each process is examined
OPTION_NAMES = {"name": "dataset", "python": "remote_python", "every": "checkpoint_every"}  # by field, if they differ
OPTION_NAMES["allow_public"] = "allow_public_addresses"
HIDDEN_FIELDS = "ssh_machines options command dropout eval_batch_size negatives"
MACHINE_OPTIONS = {"emulate", "on", "ip_config", "slurm", "machines", "single_process"}
CHOICES = "--emulate N, --on NAME, --ip_config FILE (or --ssh_port etc.), --slurm, --machines 1"
SSH_OPTIONS = {OPTION_NAMES.get(field.name, field.name) for field in fields(SshMachines)}
# Values of these options can run programs. DGL loads pickled objects from a partition below the root.
NEEDS_TRUST = {*SSH_OPTIONS, "root"}
LayoutType = TypeVar("LayoutType", bound=Layout)


def about(text: str, group: str | None = None, **kwargs: Any) -> Parameter:
    """Return the annotation of an option with its help."""
    return Parameter(help=text, **({"group": group} if group else {}), **kwargs)


GivenOptions = Annotated[JsonObject, Parameter(parse=False)]  # the options of the command line and of options.json
MachinesOption = Annotated[int | None, about("Use 1 to run on this computer alone, without namespaces.", "Machines")]
FanoutsOption = Annotated[str, about("Fan-outs, outermost first. -1 takes all.", "Training", allow_leading_hyphen=True)]
CacheOption = Annotated[str, about("Memory of a trainer for rows and adjacency of other machines.", "Training")]
OutOption = Annotated[Path | None, about("Run folder. It must be new, except with --resume.")]
JsonOption = Annotated[bool, about("Print the result as JSON.", name="--json")]
app = App(
    name=PROGRAM,
    help="Distributed GNN training with DGL: on emulated machines on this computer, or on real ones.\n\n"
    "Begin with train --emulate 2 (two machines, about a minute), or with machines start 2 and on machine-0. "
    "doctor --emulate 2 reports missing requirements of this computer. make lab opens the lessons.",
    help_flags="--help",
    help_format="markdown",
    version_flags=(),
    default_parameter=Parameter(
        negative=(),
        allow_repeating=True,
        consume_multiple=True,  # --extra_envs A=1 B=2
        show_default=lambda value: None if value is None or value is False or value == () else str(value),
    ),
)


def option_name(field: str) -> str:
    return OPTION_NAMES.get(field, field).replace("_", "-")


def dgl_option_name(field: str) -> str:
    """Return the name of an option in the spelling of ssh and of DGL's launch tool."""
    return f"num_{field}" if field in MAX_COUNTS else OPTION_NAMES.get(field, field)


def flatten(group: str, without: str = "", names: Callable[[str], str] = option_name, **kwargs: Any) -> Parameter:
    """Return the annotation of a dataclass whose fields become options, except ``without`` and HIDDEN_FIELDS."""
    excluded = "|".join([*HIDDEN_FIELDS.split(), *without.split()])
    options = f"^(?!({excluded})$)"
    ranges = partial(check_ranges, names)
    return Parameter(name="*", group=group, parse=options, name_transform=names, validator=ranges, **kwargs)


def check_ranges(names: Callable[[str], str], _kind: object, instance: object) -> None:
    """Raise an InputError if a number in a dataclass is too small or too large."""
    for field in getattr(instance, "__dataclass_fields__", ()):
        number = getattr(instance, field)
        maximum = MAX_COUNTS.get(field, 2**31 - 1 if isinstance(number, int) else 1e300)  # C++ code takes 32 bits
        minimum = 0 if isinstance(number, float) or field in ("seed", "ahead", "samplers") else 1
        if type(number) in (int, float) and not minimum <= number <= maximum:
            raise InputError(f"--{names(field)} {number} is not in the range {minimum} to {maximum}")


OverSsh = Annotated[SshMachines | None, flatten("Machines over ssh", names=dgl_option_name, show_default=False)]


def complete_config(config: TrainConfig, seed: int, fanouts: str, cache: str) -> TrainConfig:
    """Return ``config`` with the parsed --fanouts and --cache, and the seed of the data set."""
    if not re.fullmatch(r"((^|,) *(-1|[1-9]\d{0,8}))+", fanouts):
        message = f"--fanouts {fanouts[:80]!r} is not a list of numbers, 1 to 999999999"
        raise InputError(message, "Example: 15,10,5 (-1 takes all neighbors)")
    hops = tuple(map(int, fanouts.split(",")))
    return replace(config, seed=seed, fanouts=hops, cache=0 if cache.strip() == "0" else parse_memory(cache))


def parse(words: Sequence[str]) -> tuple[Callable[..., object], BoundArguments, JsonObject]:
    """Return the function of a command, its arguments, and the given options by name, with underscores."""
    collected = ArgumentCollection()
    app.config = lambda _app, _commands, arguments: collected.extend(arguments)  # before the values are converted
    try:
        command, bound, unparsed = app.parse_args(end_options(words), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        name = " ".join([PROGRAM, *(error.command_chain or ())])
        raise InputError(" ".join(str(error).split()), f"{name} --help lists the options.") from None
    options = {argument.name[2:].replace("-", "_"): argument.value for argument in collected if argument.tokens}
    if "options" in unparsed:
        bound.arguments["options"] = options
    return command, bound, options


def end_options(words: Sequence[str]) -> list[str]:
    """Insert ``--`` before the user's command of ``launch``, ``on`` and ``submit``, which has other options."""
    if not words or words[0] not in ("launch", "on", "submit"):
        return list(words)
    start, arguments = 1, app[words[0]].assemble_argument_collection()
    while start < len(words) and words[start].startswith("-"):
        name, has_value, _ = words[start].partition("=")
        if (argument := arguments.get(name, None)) is None:  # cyclopts reports it
            return list(words)
        start += 1 if has_value or argument.is_flag() else 2
        while argument.name == "--extra_envs" and start < len(words) and re.match(r"\w+=\S*$", words[start]):
            start += 1
    return [*words[:start], "--", *words[start:]]


def run_command(words: Sequence[str]) -> None:
    """Run a command line. ``--resume`` adds the earlier options, except given ones and those of replaced machines."""
    command, bound, options = parse(words)
    if options.get("resume") and "out" not in options:
        raise InputError("--resume needs --out, the folder of the run to continue")
    path = options.get("out", Path()) / OPTIONS_FILE
    if options.get("resume") and path.exists():  # later checks report missing files of the run
        remedy = "Give this option again, or leave out --resume and use another --out."
        stored = read_json(path, dict[str, bool | int | float | str], remedy)
        replaced = {*MACHINE_OPTIONS, *SSH_OPTIONS, "own_disks", "wire"} if options.keys() & MACHINE_OPTIONS else ()
        dropped = {*options, "resume", "out", "trust", *replaced}
        earlier = [f"--{name}={value}" for name, value in stored.items() if name.replace("-", "_") not in dropped]
        try:
            command, bound, merged = parse([words[0], *earlier, *words[1:]])
        except InputError as error:
            raise InputError(f"{path} is damaged: {error.message}", remedy) from None
        untrusted = {f"--{name}": merged[name] for name in sorted(NEEDS_TRUST & merged.keys() - options.keys())}
        check_trust(path, untrusted, trust=options.get("trust", False))
    command(*bound.args, **bound.kwargs)


def options_to_store(options: JsonObject) -> JsonObject:
    """Return the options for ``options.json``. A later ``--resume`` may run elsewhere, so paths are absolute."""
    return {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in options.items()}


def choose_machines(layout: LayoutType, ssh: SshMachines | None, options: JsonObject) -> LayoutType:
    """Return the layout with the machines that the given options choose, by default two emulated machines."""
    chosen = MACHINE_OPTIONS & options.keys()
    if SSH_OPTIONS & options.keys():
        chosen.add("ip_config")
    if len(chosen) > 1:
        raise InputError("several options choose the machines", f"Keep one of {CHOICES} and --single-process.")
    if (count := options.get("machines", 1)) != 1:
        raise InputError(f"--machines {count}: only 1 is possible without namespaces", f"Use --emulate {count}.")
    if (layout.wire is not None or layout.own_disks) and chosen - {"emulate"}:
        remedy = f"For running machines: {PROGRAM} machines wire all 1gbit, or machines start 2 --own-disks"
        raise InputError("--wire and --own-disks are for new emulated machines; they need --emulate N", remedy)
    emulate = options.get("emulate", None if chosen else 2)
    return replace(layout, emulate=emulate, ssh_machines=ssh)
