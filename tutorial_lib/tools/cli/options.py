"""Options of the commands, made of the dataclasses that they fill: a field, its default and its help stand once.

``@app.command() @filling(Layout, TrainConfig)`` above ``def train(given, ...)`` gives the command an option for each
field of the two; ``given.make(Layout)`` is the object. The help is what the class says under ``Attributes``.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Optional, TypeVar, get_args, get_type_hints

import typer
from rich.markup import escape

from tutorial_lib.cluster.standing import StandingCluster
from tutorial_lib.errors import InputError, check_trust
from tutorial_lib.files import read_json, what_is_wrong
from tutorial_lib.job.folder import OPTIONS_FILE, Continuation
from tutorial_lib.job.launch import LaunchRequest
from tutorial_lib.job.layout import RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.trainer.config import TrainConfig

Kind = TypeVar("Kind")
Command = Callable[..., None]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Distributed GNN training with DGL: on emulated machines on this computer, or on real ones.",
    epilog="Begin with train --emulate 2 (two machines, about a minute), or with machines start 2 and on machine-0; "
    "doctor --emulate 2 says what this computer lacks. The lessons: make lab.",
)

# What only ``train`` asks for: other tasks than classes of nodes.
OF_TRAIN = ("task", "embedding_size", "embedding_learning_rate")
LARGEST = 2**31 - 1  # of a number that C++ code takes
MOST_PROCESSES = 1024  # of a kind on a machine: each is looked at before a job

PANELS = {DataSource: "Data", TrainConfig: "Training", Continuation: "Training"}  # of the help; others: Machines
NOT_OPTIONS = {"real", "options", "command", "dropout", "eval_batch_size", "sampling_threads", "negatives"}
# Of options, where the field has another name.
NAMES = {"name": "dataset", "python": "remote_python", "every": "checkpoint_every"}
RANGES: dict[str, tuple[float | None, float | None]] = {  # where it is not 1 to LARGEST, of a float 0 or more
    **dict.fromkeys(["emulate", "scale"], (None, None)),  # those who use them say what is wrong
    **{f"{of}{kind}": (None, MOST_PROCESSES) for of in ("", "num_") for kind in ("trainers", "samplers", "servers")},
    **dict.fromkeys(["seed", "ahead"], (0, LARGEST)),
    **dict.fromkeys(["timeout", "serving_timeout", "collective_timeout"], (1, None)),
    "ssh_port": (1, 65535),
}


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


# Fields that are written in another way than they are kept: type, how the default is written, how the text is read.
WRITTEN: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "fanouts": (str, lambda hops: ",".join(map(str, hops)), parse_fanouts),
    "cache": (str, lambda count: f"{count // 10**6}MB", str),  # see ``check_loader``
    "extra_envs": (list[str] | None, lambda _none: None, lambda pairs: pairs or ()),
}


def name_of(kind: type, field: str) -> str:
    """The name of the option for a field."""
    if kind is LaunchRequest and field in ("trainers", "samplers", "servers"):  # as DGL's own launch tool has them
        return f"num_{field}"
    return NAMES.get(field, field)


PLACES = {"emulate", "on", "machines", "single_process", "ip_config", "slurm"}  # where a run is
OF_SSH = {"ip_config", "ssh_port", "ssh_username", "ssh_config", "remote_python", "copy_to", "allow_public"}
# Who decides these can run programs here or on the machines: DGL loads pickled objects from a partition below the root.
NEEDS_TRUST = {*OF_SSH, "root"}
NOT_RECALLED = {"said", "resume", "out", "trust"}


class Given(SimpleNamespace):
    """The values of a command's options by name, as they were written; ``said``: the names of those that were given."""

    def recall(self, run: Path, options: Mapping[str, inspect.Parameter] | None = None) -> None:
        """Use the options of an earlier start of a run, unless they were given again.

        A place that is given again replaces the earlier one. Values that could run programs are used only with
        ``--trust``, after a question, or if they are what the command would use anyway.

        Args:
            options: of the command, to check types and ranges.

        Raises:
            InputError: the file is damaged, or its values are not trusted.
        """
        path = run / OPTIONS_FILE
        try:
            earlier = read_json(path, dict[str, Any], "Leave out --resume and start again in another --out.")
        except FileNotFoundError:  # a run of an earlier version; later checks report what is missing
            return
        again = self.said & PLACES
        passed_over = {
            *self.said,
            *NOT_RECALLED,
            *({*PLACES, "own_disks"} if again else ()),
            *(OF_SSH if again - {"ip_config"} else ()),
        }
        earlier = {name: value for name, value in earlier.items() if name in vars(self) and name not in passed_over}
        found = {
            n: Path(v["path"]) if isinstance(v, dict) and {*v} == {"path"} and isinstance(v["path"], str) else v
            for n, v in earlier.items()
        }
        _check_types(path, found, options or {})
        if found.get("ip_config", getattr(self, "ip_config", None)) is None:
            found = {name: value for name, value in found.items() if name not in OF_SSH}
        asked = {name: found[name] for name in NEEDS_TRUST & {*found} if found[name] != getattr(self, name)}
        names = {"allow_public": "allow_public_addresses"}
        shown = {f"--{names.get(name, name)}": asked[name] for name in sorted(asked)}
        check_trust(path, shown, trust=getattr(self, "trust", False))
        vars(self).update(found)

    def to_json(self) -> dict[str, Any]:
        """For ``recall``; paths are absolute, since the next command may stand elsewhere."""
        values = {name: value for name, value in vars(self).items() if name not in NOT_RECALLED}
        return {n: {"path": str(v.absolute())} if isinstance(v, Path) else v for n, v in values.items()}

    @property
    def real(self) -> RealMachines | None:
        """The machines of ``--ip_config`` with the options of ssh; None without it. A field of layouts."""
        return None if self.ip_config is None else self.make(RealMachines)

    def make(self, kind: type[Kind], **values: Any) -> Kind:
        """An object of one of the dataclasses; ``values`` are used instead of options."""
        for field in fields(kind):  # type: ignore[arg-type]
            name = name_of(kind, field.name)
            if field.name not in values and hasattr(self, name):
                given = getattr(self, name)
                values[field.name] = WRITTEN[field.name][2](given) if field.name in WRITTEN else given
        return kind(**values)


def _check_types(path: Path, values: dict[str, Any], options: Mapping[str, inspect.Parameter]) -> None:
    """Raise an InputError if an option in a file has a value that the command line would refuse."""
    from pydantic import Field, ValidationError, create_model

    types: dict[str, Any] = {}
    for name in values.keys() & options.keys():
        hint, option = get_args(options[name].annotation)
        if (option.min, option.max) != (None, None):
            hint = Annotated[hint, Field(ge=option.min, le=option.max)]
        types[name] = (Optional[hint] if options[name].default is None else hint, ...)  # noqa: UP045
    try:
        create_model("Options", __config__={"strict": True, "allow_inf_nan": False}, **types).model_validate(values)
    except ValidationError as error:
        message = f"{path} is damaged: {what_is_wrong(error)}"
        raise InputError(message, "Give this option again, or leave out --resume and use another --out.") from None


def filling(
    *kinds: type, without: Collection[str] = (), chosen: dict[str, str] | None = None, **defaults: Any
) -> Callable[[Command], Command]:
    """Give a command an option for each field of these dataclasses; it takes all values as its first argument.

    Args:
        without: fields that it gets no option for; nor for those in ``NOT_OPTIONS``, or a parameter of its own.
        chosen: options that are None when they are not given, with what the help says the command then takes.
        defaults: by the name of the option, where it is not that of the field; ``...``: it must be given.
    """
    chosen = chosen or {}

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        options = {parameter.name: parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own}
        for kind in kinds:
            hints, texts = get_type_hints(kind), _texts_of(kind)
            for field in fields(kind):
                name, default = name_of(kind, field.name), None if field.default is MISSING else field.default
                if field.name in NOT_OPTIONS | {*without} or name in options:
                    continue
                hint = hints[field.name]
                if field.name in WRITTEN:
                    hint, default = WRITTEN[field.name][0], WRITTEN[field.name][1](default)
                default = defaults.get(name, default)
                if name in chosen:
                    hint, default = hint | None, None
                options[name] = inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if default is ... else default,
                    annotation=Annotated[hint, _option(kind, name, hint, texts.get(field.name), chosen.get(name))],
                )

        def run(context: typer.Context, **values: Any) -> None:
            sources = {name: context.get_parameter_source(name) for name in values}
            said = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
            given = Given(said=said, **values)
            if values.get("resume") and values["out"] is not None:
                given.recall(values["out"], options)
            command(given, **{parameter.name: getattr(given, parameter.name) for parameter in own})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        context = inspect.signature(run, eval_str=True).parameters["context"]  # typer fills it in
        run.__signature__ = inspect.Signature([context, *options.values()])  # type: ignore[attr-defined]
        return run

    return decorate


def _option(kind: type, name: str, hint: Any, text: str | None, shown: str | None) -> Any:
    """What typer is to know of an option; those of DGL's own launch tool and of ssh keep its underscores."""
    number = next((number for number in (int, float) if number in (hint, *getattr(hint, "__args__", ()))), None)
    least, most = RANGES.get(name, (1, LARGEST) if number is int else (0, None) if number is float else (None, None))
    underscores = kind in (LaunchRequest, RealMachines) and not name.endswith(("timeout", "own_disks"))
    word = "allow_public_addresses" if name == "allow_public" else name
    return typer.Option(
        f"--{word}" if underscores else f"--{word.replace('_', '-')}",
        min=least,
        max=most,
        callback=_finite if name.endswith("timeout") else None,
        help=text,
        show_default=shown or name != "remote_python",
        rich_help_panel=PANELS.get(kind, "Machines"),
    )


def _finite(seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a number of seconds")
    return seconds


def _texts_of(kind: type) -> dict[str, str]:
    """What the docstring of a dataclass says about each field under ``Attributes``, as help of an option."""
    sections = [inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2] for base in reversed(kind.__mro__)]
    found = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", "\n".join(sections), flags=re.MULTILINE)
    texts = {name: " ".join(text.replace("`", "").split()) for names, text in found for name in names.split(", ")}
    return {name: escape(text[0].upper() + text[1:]) for name, text in texts.items()}


MachinesOption = Annotated[
    int | None, typer.Option(help="1: this machine, without namespaces.", rich_help_panel="Machines")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def check_machines(given: Given) -> None:
    """Raise an InputError where options name two places to run; where they name none, it is two emulated machines.

    With ``--on``, ``emulate`` gets the number of machines there.
    """

    def some(*names: str) -> int:
        return sum(getattr(given, name, None) not in (None, False) for name in names)

    others = some("machines", "single_process", "ip_config", "slurm")
    if others + some("emulate") > 1:
        raise InputError("choose one of --emulate N, --ip_config FILE, --slurm, --machines 1 and --single-process")
    if (count := given.machines) not in (None, 1):
        raise InputError(f"--machines {count}: only 1 is possible without namespaces", f"Use --emulate {count}.")
    if given.ip_config is None and some("ssh_port", "ssh_username", "ssh_config", "copy_to"):
        raise InputError(
            "--ssh_port, --ssh_username and --copy_to are for machines reached over ssh; they need --ip_config FILE",
            "--emulate and --machines stay on this computer: leave them away.",
        )
    if getattr(given, "subnet", None) is not None and not given.slurm:
        raise InputError("--subnet is for the nodes of an allocation; it needs --slurm")
    if given.wire is not None and others:
        raise InputError("--wire shapes the wire between emulated machines; it needs --emulate N")
    if getattr(given, "own_disks", False) and (others or getattr(given, "on", None)):
        remedy = "Running ones get such disks when they start: python -m tutorial_lib machines start 2 --own-disks"
        raise InputError("--own-disks is for emulated machines that are about to be made; it needs --emulate N", remedy)
    if (name := getattr(given, "on", None)) is not None:
        if others:
            raise InputError("--on names running machines; it goes with none of --ip_config, --machines and the like")
        if given.wire is not None:
            remedy = f"python -m tutorial_lib machines wire all {given.wire} --name {name}"
            raise InputError("--wire is of machines that are about to be made", f"Of running ones: {remedy}")
        given.emulate = len(StandingCluster(name, given.emulate).machines)
    elif given.emulate is None and not others:
        given.emulate = 2
