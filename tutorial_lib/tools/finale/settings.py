"""What a finale is to do, and whether a folder holds one with the same settings."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.files import write_json
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.trainer.config import TrainConfig

STATE = "finale.json"
FREE = {  # may differ when a finale is continued: they change no finished step
    *("scaling", "scaling_scale", "source.max_memory", "layout.stall_timeout"),
    *("layout.serving_timeout", "layout.collective_timeout"),
    *(f"layout.real.{name}" for name in ("ssh_port", "ssh_username", "python", "copy_to", "allow_public")),
}
FULL_SCALE, FULL_EPOCHS = 1.0, 20
SCALING_SCALE, SCALING_EPOCHS = 0.02, 3


@dataclass(frozen=True)
class FinaleSettings:
    """Settings of a scripted run; equal settings continue each other's folder.

    Attributes:
        source: the data set.
        layout: machines and processes of the training.
        config: hyper-parameters of the training.
        scaling: numbers of machines of the short runs that show how time and traffic grow; empty: none.
        scaling_scale: size of the generated graph in those runs, at most; other data sets are used whole.
    """

    source: DataSource = field(default_factory=lambda: DataSource("synthetic-products", scale=0.1))
    layout: Layout = field(default_factory=lambda: Layout(emulate=2, wire="1gbit"))
    config: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=10))
    scaling: tuple[int, ...] = (1, 2, 4)
    scaling_scale: float = SCALING_SCALE

    def __post_init__(self) -> None:
        if any(count < 1 for count in self.scaling):
            raise InputError(f"--scaling {','.join(map(str, self.scaling))}: a number of machines is at least 1")
        if self.layout.emulate is None and self.layout.real is None and set(self.scaling) - {1}:
            raise InputError("--scaling needs several machines", "Use --emulate N or --ip_config FILE, or --scaling 1.")

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return json.loads(json.dumps(asdict(self), default=str))


class FolderRefused(InputError):
    """This folder cannot be used for this finale."""


class State:
    """``finale.json`` of a folder that exists: the settings, and what each finished step found.

    Raises:
        FolderRefused: the folder holds something else, or a finale with other settings; they are named.
    """

    def __init__(self, folder: Path, settings: FinaleSettings) -> None:
        self.path = folder / STATE
        wanted = settings.to_dict()
        if self.path.exists():
            self.content = _read(self.path)
            found = _differences(self.content["settings"], wanted)
            if different := [text for name, text in sorted(found.items()) if name not in FREE]:
                raise FolderRefused(
                    f"{folder} holds a finale with other settings: {'; '.join(different)}",
                    "Repeat the command that it was started with, or choose another --out.",
                )
            self.content["settings"] = wanted
        elif any(folder.iterdir()):
            raise FolderRefused(f"--out {folder} is not empty, and no finale", "Choose another folder.")
        else:
            self.content = {"settings": wanted, "steps": {}}
        write_json(self.path, self.content)  # from now on the same command continues, whatever happens

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """What each finished step found, in the order of the steps."""
        return self.content["steps"]

    def finish(self, name: str, found: dict[str, Any]) -> None:
        """Write down that a step is finished."""
        self.steps[name] = found
        write_json(self.path, self.content)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        if isinstance(content["settings"], dict) and isinstance(content["steps"], dict):
            return content
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise FolderRefused(f"{path} cannot be read as the state of a finale", "Choose another --out.")


def _differences(found: Any, wanted: Any, name: str = "") -> dict[str, str]:
    """``{"config.epochs": "config.epochs was 10, now 20"}``"""
    if isinstance(found, dict) and isinstance(wanted, dict):
        different: dict[str, str] = {}
        for key in {*found, *wanted}:
            different |= _differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else key)
        return different
    return {} if found == wanted else {name: f"{name} was {found}, now {wanted}"}
