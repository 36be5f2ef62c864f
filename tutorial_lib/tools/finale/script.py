"""The steps of the finale. Each is written down when it is finished, and not repeated when the script is run again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_lib.cluster.spec import read_ip_config, write_ip_config
from tutorial_lib.data import Dataset, default_root
from tutorial_lib.errors import InputError, JobError
from tutorial_lib.files import write_json
from tutorial_lib.job.display import Reporter
from tutorial_lib.job.folder import NEW_RUN, OPTIONS_FILE, Continuation, check_right_to_write, events_in, own_run_folder
from tutorial_lib.job.train import run_distributed
from tutorial_lib.partition import dataset_description, load_partition_folder
from tutorial_lib.tools.finale.report import write_report
from tutorial_lib.tools.finale.settings import RUN, SCALING_EPOCHS, SCALING_SCALE, FinaleSettings, State
from tutorial_lib.trainer.manifest import has_checkpoint

SPLITS = "splits.npz"
OF_ALL = ("emulated machines", "ssh login", "addresses", "python", "packages", "stack")  # findings without a machine


class PeakMemory:
    """In a ``with`` block; afterwards ``peak`` is this process's largest resident memory in it, in bytes.

    The kernel's high-water mark is set back to the present size first; where it refuses, the time before counts, too.
    """

    peak = 0

    def __enter__(self) -> PeakMemory:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(self, *_exc: object) -> None:
        match = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
        self.peak = int(match[1]) * 1024 if match else 0


class Finale:
    """One finale in one folder.

    Args:
        out: folder of a finale with the same settings, which is continued with the first step that is not finished, or
            a new one.
        options: of the command line, for ``--resume``.
        trust: see ``Continuation``.

    Raises:
        InputError: it cannot be done; found before anything is started, and not hours later.
    """

    def __init__(
        self,
        settings: FinaleSettings,
        out: Path,
        display: Reporter,
        options: dict[str, Any] | None = None,
        *,
        trust: bool = False,
    ) -> None:
        self.trust, self.settings, self.out, self.display, self.options = (
            trust,
            settings,
            out.absolute(),
            display,
            options or {},
        )
        layout, most = settings.layout, max(settings.scaling, default=1)
        layout.check_device()
        settings.source.check()
        machines = len(layout.cluster().machines)
        if layout.elsewhere and most > machines:
            who = layout.real.ip_config if layout.real else "the allocation"
            raise InputError(f"--scaling {most}: {who} has {machines} machine(s)")
        if layout.emulate is not None:
            replace(layout, emulate=most).cluster()
        check_right_to_write(self.out)
        self._number = 0

    def run(self) -> dict[str, Any]:
        """All steps that are not finished yet, and the report; returns the content of ``result.json``.

        Raises:
            InputError: another finale is running in the folder, or it holds something else.
            JobFailed: with the first cause. After it, or an interrupt, the same call continues.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        with own_run_folder(self.out, "finale"):
            self.state = State(self.out, self.settings)
            write_json(self.out / OPTIONS_FILE, self.options)
            try:
                return self._run()
            except BaseException:
                out = self.out.relative_to(Path.cwd()) if self.out.is_relative_to(Path.cwd()) else self.out
                words = f"python -m tutorial_lib finale --resume --out {shlex.quote(str(out))}"
                print(f"finished steps are kept; to continue: {words}", file=sys.stderr)
                raise

    def _run(self) -> dict[str, Any]:
        self._step("machines", "checking the machines", self._machines)
        self._step("data", "the data set", self._data)
        self._step("partition", "cutting it into parts", self._partition)
        vars(self).pop("_dataset", None)  # servers load their own parts; a large graph must not be in memory twice
        result = self._step("training", "training on all machines", self._training)["result"]
        self._step("predictions", "checking the predictions in original ids", self._predictions)
        write_report(self.out)  # there is one, whatever becomes of the scaling runs
        for count in self.settings.scaling:
            title = f"scaling: {count} machine(s), {SCALING_EPOCHS} epochs"
            self._step(f"scaling-{count}", title, lambda count=count: self._scaling(count))
        self._tell("writing the report")
        write_report(self.out)
        return result

    def _step(self, name: str, title: str, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do a step, unless it is finished; returns what it found."""
        done = name in self.state.steps
        self._tell(f"{title}: done before" if done else title)
        if not done:
            start = time.monotonic()
            with PeakMemory() as memory:
                found = action()
            seconds = time.monotonic() - start
            self.state.finish(name, {**found, "seconds": seconds, "peak_memory": memory.peak})
        return self.state.steps[name]

    def _tell(self, title: str) -> None:
        self._number += 1
        self.display.say(f"step {self._number} of {6 + len(self.settings.scaling)}: {title}")

    def _machines(self) -> dict[str, Any]:
        from tutorial_lib.tools.doctor import examine

        layout = self.settings.layout
        findings = examine(emulate=layout.emulate, on=layout.on, real=layout.real, quick=True)
        # What is wrong with this computer alone need not matter to machines that have their own memory and files.
        for finding in findings.failed:
            if finding.machine or finding.check in OF_ALL:
                raise InputError(finding.sentence, finding.remedy or "See: python -m tutorial_lib doctor")
        return {"checks": len(findings), "cores_here": len(os.sched_getaffinity(0))}

    @cached_property
    def _dataset(self) -> Dataset:
        self.display.say(f"loading {self.settings.source.name}")
        return self.settings.source.load()

    def _data(self) -> dict[str, Any]:
        graph = self._dataset.structure
        counts = {"nodes": graph.num_nodes(), "edges": graph.num_edges()}
        self.display.say(f"{counts['nodes']:,} nodes, {counts['edges']:,} directed edges")
        ndata: Any = graph.ndata
        masks = {name: ndata[f"{name}_mask"].numpy() for name in ("train", "val", "test")}
        np.savez(self.out / SPLITS, label=ndata["label"].numpy(), **masks)
        return {**dataset_description(self._dataset), **counts, "fingerprint": self._dataset.fingerprint()}

    def _partition(self) -> dict[str, Any]:
        parts = len(self.settings.layout.cluster().machines)
        partition = self.settings.source.partition(self._dataset, parts, self.display.say)
        self.display.say(f"{parts} part(s), {partition.report.edge_cut_share:.1%} of the edges cut")
        return {"folder": str(partition.folder), "report": asdict(partition.report)}

    def _training(self) -> dict[str, Any]:
        out, settings, keep = self.out / RUN, self.settings, NEW_RUN
        folder = Path(self.state.steps["partition"]["folder"])
        if not folder.exists():
            raise InputError(f"the partition {folder} of this finale is gone", "Start again in another --out.")
        if not (out / "result.json").exists():  # else it was finished, and then the script was stopped
            root = self.settings.source.root or default_root()
            if folder.parent.resolve() != (root / "partitions").resolve():  # DGL loads pickled objects from there
                raise InputError(
                    f"the partition {folder} of this finale is not below --root {root}", "Give its --root."
                )
            if has_checkpoint(out / "checkpoint"):
                keep = Continuation(resume=True, trust=self.trust)
            elif out.exists():
                self.display.say(f"the earlier start had no checkpoint yet; it is kept as {_set_aside(out).name}")
            run_distributed(load_partition_folder(folder), settings.layout, settings.config, out, self.display, keep)
        for name in ("result.json", "predictions.npy"):
            shutil.copyfile(out / name, self.out / name)
        return {"result": json.loads((out / "result.json").read_text())}

    def _predictions(self) -> dict[str, Any]:
        """The accuracies again, from the file alone, with labels and masks in the data set's own order.

        Raises:
            JobError: they are not those that the trainers reported.
        """
        splits = np.load(self.out / SPLITS)
        right = np.load(self.out / "predictions.npy") == splits["label"]
        found = {name: float(right[splits[name].astype(bool)].mean()) for name in ("val", "test")}
        for name, value in found.items():
            reported = self.state.steps["training"]["result"][f"{name}_accuracy"]
            if abs(value - reported) > 1e-9:
                raise JobError(
                    f"predictions.npy gives {name} accuracy {value:.6f}, the trainers reported {reported:.6f}"
                )
        self.display.say(f"predictions.npy gives the same valid {found['val']:.4f} and test {found['test']:.4f}")
        return found

    def _scaling(self, count: int) -> dict[str, Any]:
        source, layout, config = self.settings.source, self.settings.layout, self.settings.config
        cores = all_cores = len(os.sched_getaffinity(0))
        if source.name == "synthetic-products":
            source = replace(source, scale=min(source.scale, SCALING_SCALE))
        if layout.real is not None:  # the first machines of the address file
            path = self.out / f"ip_config-{count}.txt"
            write_ip_config(path, read_ip_config(layout.real.ip_config)[:count])
            layout = replace(layout, real=replace(layout.real, ip_config=path))
        elif layout.slurm:
            layout = replace(layout, emulate=count)
        elif layout.emulate is not None:
            layout = replace(layout, emulate=count, wire=layout.wire if count > 1 else None)
            cores = max(1, cores // max(self.settings.scaling))  # on each machine as many as where there are most
        if (out := self.out / "scaling" / f"{count}-machines").exists():
            _set_aside(out)
        # A step of more machines takes more seed nodes, and the rate grows with them (lesson 10).
        rate = config.learning_rate * count / len(self.settings.layout.cluster().machines)
        config = replace(config, epochs=SCALING_EPOCHS, learning_rate=rate)
        with only_cores(cores if layout.elsewhere or layout.emulate is None else cores * count):
            result = run_distributed(source, layout, config, out, self.display)
        return {"result": result, "startup": startup_of(out / "events.jsonl"), "cores": min(cores, all_cores / count)}


@contextlib.contextmanager
def only_cores(count: int) -> Iterator[None]:
    """What is started meanwhile uses the first ``count`` cores of this computer."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def startup_of(events: Path) -> float | None:
    """Seconds from the start of a job to its first step; None when its events do not tell."""
    first = {event["kind"]: event["time"] for event in reversed(events_in(events.read_bytes()))}
    return first["step"] - first["stage"] if {"step", "stage"} <= first.keys() else None


def _set_aside(folder: Path) -> Path:
    """Rename a folder that a failed start has left; nothing is deleted."""
    number = 1
    while (target := folder.with_name(f"{folder.name}-broken-{number}")).exists():
        number += 1
    return folder.rename(target)
