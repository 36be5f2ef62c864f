"""What a finale is to do, and whether a folder holds one with the same settings."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.files import write_json
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.trainer.config import TrainConfig

STATE, RUN = "finale.json", "run"
FREE = {  # may differ when a finale is continued: they change no finished step
    "scaling",
    *(f"layout.{name}" for name in ("stall_timeout", "serving_timeout", "collective_timeout", "trace", "own_disks")),
    *(f"layout.real.{each.name}" for each in fields(RealMachines) if each.name != "ip_config"),
}
FULL_SCALE, EPOCHS, SCALE = 1.0, 10, 0.1
SCALING_SCALE, SCALING_EPOCHS = 0.02, 3  # of the generated graph, at most; other data sets are used whole


@dataclass(frozen=True)
class FinaleSettings:
    """Settings of a scripted run; equal settings continue each other's folder.

    Attributes:
        layout, config: of the training.
        scaling: numbers of machines of the short runs that show how time and traffic grow; empty: none.
    """

    source: DataSource = field(default_factory=lambda: DataSource("synthetic-products", scale=SCALE))
    layout: Layout = field(default_factory=lambda: Layout(emulate=2, wire="1gbit"))
    config: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=EPOCHS))
    scaling: tuple[int, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        if any(count < 1 for count in self.scaling):
            raise InputError(f"--scaling {','.join(map(str, self.scaling))}: a number of machines is at least 1")
        if self.layout.emulate is None and not self.layout.elsewhere and set(self.scaling) - {1}:
            raise InputError("--scaling needs several machines", "Use --emulate N or --ip_config FILE, or --scaling 1.")


def recipe(ranks: int) -> dict[str, Any]:
    """Of the script behind the published figures, examples/ogbn_products_sage.py of PyG, for so many ranks.

    Together they make its steps, of 1024 seed nodes. Three layers of 256, fan-out 15,10,5 and dropout 0.5 are what
    ``TrainConfig`` has anyway.
    """
    return {"epochs": 20, "batch_size": math.ceil(1024 / ranks), "learning_rate": 0.003}


class State:
    """``finale.json`` of a folder that exists: the settings, and what each finished step found, in their order.

    Raises:
        InputError: the folder holds something else, or a finale with other settings; they are named.
    """

    def __init__(self, folder: Path, settings: FinaleSettings) -> None:
        self.path, self.steps = folder / STATE, {}
        self.settings = json.loads(json.dumps(asdict(settings), default=lambda path: str(path.absolute())))
        if self.path.exists():
            try:
                content = json.loads(self.path.read_text())
                earlier, self.steps = dict(content["settings"]), dict(content["steps"])
            except (OSError, ValueError, KeyError, TypeError):
                raise InputError(
                    f"{self.path} cannot be read as the state of a finale", "Choose another --out."
                ) from None
            found, wanted = _flat(earlier), _flat(self.settings)
            different = [name for name in sorted({*found, *wanted} - FREE) if found.get(name) != wanted.get(name)]
            if different:
                words = "; ".join(f"{name} was {found.get(name)}, now {wanted.get(name)}" for name in different)
                remedy = "Repeat the command that it was started with, or choose another --out."
                raise InputError(f"{folder} holds a finale with other settings: {words}", remedy)
        elif any(folder.iterdir()):
            raise InputError(f"--out {folder} is not empty, and no finale", "Choose another folder.")
        self._write()  # from now on the same command continues, whatever happens

    def finish(self, name: str, found: dict[str, Any]) -> None:
        """Write down that a step is finished."""
        self.steps[name] = found
        self._write()

    def _write(self) -> None:
        write_json(self.path, {"settings": self.settings, "steps": self.steps})


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"config": {"epochs": 10}}`` to ``{"config.epochs": 10}``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
