"""A scripted run from the machines to checked predictions, then short runs on several numbers of machines."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tutorial_lib.errors import InputError, JobError, ask
from tutorial_lib.files import read_json, write_json
from tutorial_lib.job.display import Reporter, human_bytes
from tutorial_lib.job.folder import OPTIONS_FILE, Continuation, check_right_to_write, continue_command, own_run_folder
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_distributed
from tutorial_lib.partition import Partition
from tutorial_lib.tools.doctor import examine_machines
from tutorial_lib.tools.plan import Job, estimate, sizes_of
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.manifest import has_checkpoint

STATE, EPOCHS, SCALE = "finale.json", 3, 0.02  # the latter two of the short runs
LONG, SECONDS_PER_EDGE = 20 * 60, 3.2e-6  # the latter for data, partition and evaluation, on two cores


@dataclass
class Finale:
    """A scripted run. ``out`` has a run folder for each training, and the settings and seconds in ``finale.json``."""

    source: DataSource
    layout: Layout
    config: TrainConfig
    scaling: tuple[int, ...]  # numbers of machines of the short runs
    out: Path
    display: Reporter
    trust: bool = False

    def __post_init__(self) -> None:
        """Raise an InputError for settings that would fail in a later step."""
        self.machines, self.together = len(self.layout.cluster().machines), not self.layout.elsewhere
        check_right_to_write(self.out)
        alone = self.together and self.layout.emulate is None
        self.layouts = {k: self.layout if alone else replace(self.layout, emulate=k) for k in self.scaling}
        for count, layout in self.layouts.items():
            if count < 1 or len(layout.cluster().machines) != count:
                raise InputError(f"--scaling {count}: there are {self.machines} machine(s)", "Leave out --scaling.")
        settings = {"dataset": self.source.name, "scale": self.source.scale, "machines": self.machines}
        self.state = {"settings": {**settings, **self.config.to_dict()}, "steps": dict[str, float]()}
        found = read_json(self.out / STATE, dict[str, Any]) if (self.out / STATE).exists() else {}
        if self.out.exists() and any(self.out.iterdir()) and found.get("settings") != self.state["settings"]:
            raise InputError(f"--out {self.out} is not a finale with these settings", "Choose another folder.")

    def confirm(self, *, yes: bool) -> None:
        """Print an estimate, and ask before a run that takes more than 20 minutes or more memory than there is."""
        counts = {"machines": self.machines, "trainers": self.layout.trainers, "cores": len(os.sched_getaffinity(0))}
        job = Job(**sizes_of(self.source), **counts, config=self.config, together=self.together)
        found = estimate(job)
        seconds = self.config.epochs * found.epoch * (1 + job.val / job.train / 2) + SECONDS_PER_EDGE * job.edges
        needs = (
            f"about {human_bytes(round(found.machine))} of memory on each machine, {max(1, round(seconds / 60))} min"
        )
        sizes = f"forecast: {job.nodes:,} nodes, {job.edges:,} edges"
        print(f"{sizes}; {needs} (it may be half or twice as much)", flush=True)
        large = seconds > LONG or (self.together and found.total > psutil.virtual_memory().available)
        if large and not yes and not ask("This run is large. Start it?"):
            raise InputError("not started, because this run is large and nobody agreed to it", "Add --yes to start it.")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        """Do all steps, or continue them, and return the content of ``result.json``."""
        with own_run_folder(self.out):
            write_json(self.out / STATE, self.state)
            write_json(self.out / OPTIONS_FILE, options)
            self.display.say(f"to continue after an interruption: {continue_command('finale', self.out)}")
            with self.step("machines", "checking the machines"):
                for finding in examine_machines(self.layout).failed:
                    raise InputError(finding.sentence, finding.remedy)
            with self.step("data", "loading the data set"):
                dataset = self.source.load()
                data = {name: dataset.target_data[name].numpy() for name in ("label", "val_mask", "test_mask")}
            with self.step("partition", "partitioning the graph"):
                partition = self.source.partition(dataset, self.machines, self.display.say)
                del dataset  # servers load their own parts, and a large graph must not be in memory twice
            with self.step("training", "training on all machines"):
                result = self.train(partition, self.layout, self.config, self.out / "run")
                for name in ("result.json", "predictions.npy"):
                    shutil.copyfile(self.out / "run" / name, self.out / name)
            with self.step("predictions", "checking the predictions in original IDs"):
                right = np.load(self.out / "predictions.npy") == data["label"]
                for name in ("val", "test"):
                    found, counted = right[data[f"{name}_mask"].astype(bool)].mean(), result[f"{name}_accuracy"]
                    if abs(found - counted) > 1e-9:
                        raise JobError(f"predictions.npy has {name} accuracy {found}, the trainers counted {counted}")
            for count in self.scaling:
                with self.step(f"scaling-{count}", f"training {EPOCHS} epochs on {count} machine(s)"):
                    self.train_on(count)
            return result

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[None]:
        """Print the title of a step, and record its seconds when it ends."""
        steps, start = self.state["steps"], time.monotonic()
        self.display.say(f"step {len(steps) + 1} of {5 + len(self.scaling)}: {title}")
        yield
        steps[name] = {"seconds": time.monotonic() - start}
        write_json(self.out / STATE, self.state)

    def train(self, source: DataSource | Partition, layout: Layout, config: TrainConfig, out: Path) -> dict[str, Any]:
        """Start or continue a training in a run folder, and return its result."""
        if (out / "result.json").exists():
            return read_json(out / "result.json", dict[str, Any], "Choose another --out.")
        resume = has_checkpoint(out / "checkpoint")
        if out.exists() and not resume:
            out.rename(out.with_name(f"{out.name}-broken-{time.time():.0f}"))
        return run_distributed(source, layout, config, out, self.display, Continuation(resume, trust=self.trust))

    def train_on(self, count: int) -> None:
        """Train a few epochs on some machines. If they share this computer, the cores of a machine stay the same."""
        cores = sorted(os.sched_getaffinity(0))
        source = replace(self.source, scale=min(self.source.scale, SCALE))  # of a generated graph
        rate = self.config.learning_rate * count / self.machines  # lesson 10
        config = replace(self.config, epochs=EPOCHS, learning_rate=rate)
        share = max(1, len(cores) // max(self.scaling)) if self.together and self.layout.emulate else len(cores)
        os.sched_setaffinity(0, cores[: count * share])
        try:
            self.train(source, self.layouts[count], config, self.out / "scaling" / f"{count}-machines")
        finally:
            os.sched_setaffinity(0, cores)
