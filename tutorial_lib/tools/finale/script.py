"""The steps of the finale. Each is written down when it is finished, and is not repeated when the script is run again.

machines      does every machine have what the job needs?
data          load, generate or read the data set; keep labels and masks for the check below
partition     cut it, one part per machine
training      DGL servers and trainers on all machines; continues from its checkpoint
predictions   predictions.npy, in original ids, must give the accuracies that the trainers reported
scaling-K     the same loop for a few epochs on K machines
report        report.html, from the files of the steps
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_lib.cluster.spec import read_ip_config, write_ip_config
from tutorial_lib.data import Dataset
from tutorial_lib.errors import InputError, JobError
from tutorial_lib.job.folder import NEW_RUN, Continuation, Reporter, check_right_to_write, events_in, own_run_folder
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.partition import dataset_description, load_partition_folder
from tutorial_lib.tools.finale.report import write_report
from tutorial_lib.tools.finale.settings import SCALING_EPOCHS, FinaleSettings, FolderRefused, State
from tutorial_lib.trainer import generations

RUN, SPLITS = "run", "splits.npz"
OF_ALL = ("emulated machines", "ssh login", "addresses", "python", "packages", "stack")  # findings without a machine


class PeakMemory:
    """In a ``with`` block; afterwards ``peak`` is this process's largest resident memory in it, in bytes.

    The kernel's high-water mark is set back to the present size first. Where it refuses, ``peak`` also covers the time
    before the block. Processes of machines are not included; ``result.json`` has those as ``peak_rss``.
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

    Raises:
        InputError: wrong settings, or another folder's content.
    """

    def __init__(self, settings: FinaleSettings, out: Path, display: Reporter) -> None:
        self.settings, self.out, self.display = settings, out.absolute(), display
        check_settings(settings)
        if out.exists() and not out.is_dir():
            raise FolderRefused(f"--out {out} is a file, not a folder")
        check_right_to_write(self.out)
        self._dataset: Dataset | None = None
        self._number = 0
        self._steps = 6 + len(settings.scaling)

    def run(self) -> dict[str, Any]:
        """All steps that are not finished yet, and the report; returns the content of ``result.json``.

        Raises:
            JobFailed: with the first cause. After it, or an interrupt, the same call continues.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        with own_run_folder(self.out, "finale", FolderRefused):
            self.state = State(self.out, self.settings)
            return self._steps_in_order()

    def _steps_in_order(self) -> dict[str, Any]:
        self._step("machines", "checking the machines", self._machines)
        self._step("data", "the data set", self._data)
        self._step("partition", "cutting it into parts", self._partition)
        self._dataset = None  # the servers load their own parts; a large graph must not be in memory twice
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
        self.display.say(f"step {self._number} of {self._steps}: {title}")

    def _machines(self) -> dict[str, Any]:
        from tutorial_lib.tools.doctor import examine

        layout = self.settings.layout
        findings = examine(emulate=layout.emulate, real=layout.real, quick=True)
        # What is wrong with this computer alone need not matter to machines that have their own memory and files.
        if failed := [finding for finding in findings.failed if finding.machine or finding.check in OF_ALL]:
            first = failed[0]
            raise InputError(first.sentence, first.remedy or "See: python -m tutorial_lib doctor")
        return {"checks": len(findings), "cores_here": len(os.sched_getaffinity(0))}

    def _load(self) -> Dataset:
        if self._dataset is None:
            self.display.say(f"loading {self.settings.source.name}")
            self._dataset = self.settings.source.load()
        return self._dataset

    def _data(self) -> dict[str, Any]:
        dataset = self._load()
        graph = dataset.graph
        counts = {"nodes": graph.num_nodes(), "edges": graph.num_edges()}
        self.display.say(f"{counts['nodes']:,} nodes, {counts['edges']:,} directed edges")
        masks = {name: graph.ndata[f"{name}_mask"].numpy() for name in ("train", "val", "test")}
        np.savez(self.out / SPLITS, label=graph.ndata["label"].numpy(), **masks)
        return {**dataset_description(dataset), **counts, "fingerprint": dataset.fingerprint()}

    def _partition(self) -> dict[str, Any]:
        parts = len(self.settings.layout.cluster().machines)
        partition = self.settings.source.partition(self._load(), parts, self.display.say)
        self.display.say(f"{parts} part(s), {partition.report.edge_cut_share:.1%} of the edges cut")
        return {"folder": str(partition.folder), "report": asdict(partition.report)}

    def _training(self) -> dict[str, Any]:
        out, settings, keep = self.out / RUN, self.settings, NEW_RUN
        folder = Path(self.state.steps["partition"]["folder"])
        if not folder.exists():
            raise InputError(f"the partition {folder} of this finale is gone", "Start again in another --out.")
        if not (out / "result.json").exists():  # else it was finished, and then the script was stopped
            if generations.exists(out / "checkpoint"):
                keep = Continuation(resume=True)
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
        predictions = np.load(self.out / "predictions.npy")
        splits = np.load(self.out / SPLITS)
        right = predictions == splits["label"]
        found = {name: float(right[splits[name].astype(bool)].mean()) for name in ("val", "test")}
        result = self.state.steps["training"]["result"]
        for name, value in found.items():
            reported = result[f"{name}_accuracy"]
            if abs(value - reported) > 1e-9:
                raise JobError(
                    f"predictions.npy gives {name} accuracy {value:.6f}, the trainers reported {reported:.6f}"
                )
        self.display.say(f"predictions.npy gives the same valid {found['val']:.4f} and test {found['test']:.4f}")
        return found

    def _scaling(self, count: int) -> dict[str, Any]:
        settings, source = self.settings, self.settings.source
        if source.name == "synthetic-products":
            source = replace(source, scale=min(source.scale, settings.scaling_scale))
        if (out := self.out / "scaling" / f"{count}-machines").exists():
            _set_aside(out)
        config = replace(settings.config, epochs=SCALING_EPOCHS)
        result = run_distributed(source, self._layout_for(count), config, out, self.display)
        return {"result": result, "startup": startup_of(out / "events.jsonl")}

    def _layout_for(self, count: int) -> Layout:
        """So many emulated machines, or the first ones of the address file."""
        layout = self.settings.layout
        if layout.real is not None:
            machines = read_ip_config(layout.real.ip_config)
            path = self.out / f"ip_config-{count}.txt"
            write_ip_config(path, machines[:count])
            layout = replace(layout, real=replace(layout.real, ip_config=path))
        elif layout.emulate is not None:
            layout = replace(layout, emulate=count, wire=layout.wire if count > 1 else None)
        return layout


def check_settings(settings: FinaleSettings) -> None:
    """Find before anything is started what would be found hours later.

    Raises:
        InputError: it cannot be done.
    """
    settings.layout.check_device()
    settings.source.check()
    machines = len(settings.layout.cluster().machines)
    most = max(settings.scaling, default=1)
    if settings.layout.real is not None and most > machines:
        raise InputError(f"--scaling {most}: {settings.layout.real.ip_config} lists {machines} machine(s)")
    if settings.layout.emulate is not None:
        replace(settings.layout, emulate=most).cluster()


def startup_of(events: Path) -> float | None:
    """Seconds from the start of a job to its first step; None when its events do not tell."""
    found = events_in(events.read_bytes())
    begin = next((event["time"] for event in found if event["kind"] == "stage"), None)
    first = next((event["time"] for event in found if event["kind"] == "step"), None)
    return None if begin is None or first is None else first - begin


def _set_aside(folder: Path) -> Path:
    """Rename a folder that a failed start has left; nothing is deleted."""
    number = 1
    while (target := folder.with_name(f"{folder.name}-broken-{number}")).exists():
        number += 1
    return folder.rename(target)
