"""Starts a benchmark's job on emulated machines and computes medians over its ranks."""

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tutorial_lib.files import write_json
from tutorial_lib.job.display import RunDisplay
from tutorial_lib.job.launch import LaunchRequest, launch
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_distributed
from tutorial_lib.launcher.checks import find_versions
from tutorial_lib.launcher.coordinator import MachineUse
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.config import TrainConfig

SCRIPT = Path(__file__).with_name("loops_job.py")


def partition_of(scale: float, parts: int, root: Path | None) -> Partition:
    """Return a partition of synthetic-products by KaMinPar, which is created once and then reused."""
    source = DataSource("synthetic-products", scale=scale, root=root)
    return source.partition(source.load(), parts, lambda text: print(f"  {text}", flush=True))


def run_job(
    partition: Partition,
    settings: dict[str, Any],
    *,
    samplers: int = 0,
    threads: int = 1,
    on_event: Callable[[dict[str, Any]], None] = lambda _event: None,
    usage: dict[str, MachineUse] | None = None,
) -> list[dict[str, Any]]:
    """Run ``loops_job.py`` with one trainer and one server on each machine, and return its events.

    Args:
        settings: see ``loops_job.py``. "measurement" is by default "seconds".
        usage: receives the memory and the sent bytes of each machine.
    """
    machines = partition.report.parts
    keep = settings.get("keep_freed_memory", True)
    environment = {"GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")} if keep else {}
    events: list[dict[str, Any]] = []

    class Collect(RunDisplay):
        def on_event(self, event: dict[str, Any]) -> None:
            events.append(event)
            on_event(event)

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        settings = {
            "measurement": "seconds",
            "keep_freed_memory": keep,
            **settings,
            "emulated": True,
            "graph_name": partition.graph_name,
            "num_classes": partition.manifest["dataset"]["num_classes"],
        }
        write_json(folder / "settings.json", settings)
        request = LaunchRequest(
            command=[sys.executable, str(SCRIPT), str(folder / "settings.json")],
            workspace=folder,
            part_config=partition.config,
            ip_config=folder / "ip_config.txt",
            out=folder / "out",
            emulate=machines,
            samplers=samplers,
            num_omp_threads=threads,
            extra_envs=[f"{name}={value}" for name, value in environment.items()],
            stall_timeout=300,
        )
        machine_usage = launch(request, Collect(quiet=True))
        if usage is not None:
            usage.update(machine_usage)
    return events


def run_training(partition: Partition, config: TrainConfig) -> list[dict[str, Any]]:
    """Run one epoch of train, and return its events with a first and a last one."""
    layout = Layout(emulate=partition.report.parts)
    events = [{"kind": "begin", "time": time.time()}]

    class Collect(RunDisplay):
        def on_event(self, event: dict[str, Any]) -> None:
            events.append({"time": time.time(), **event})

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        out, one_epoch = Path(name) / "run", replace(config, epochs=1)
        run_distributed(partition, layout, one_epoch, out, display=Collect(quiet=True))
    return [*events, {"kind": "end", "time": time.time()}]


def median(events: list[dict[str, Any]], field: str, **wanted: Any) -> float:
    """Return the median over the rounds of the mean over the ranks. Rounds below 0 are warm-up."""
    rounds: dict[int, list[float]] = {}
    for event in events:
        if event["kind"] == "timed" and event["round"] >= 0 and all(event[k] == v for k, v in wanted.items()):
            rounds.setdefault(event["round"], []).append(event[field])
    return statistics.median(statistics.mean(values) for values in rounds.values()) if rounds else float("nan")


def describe_computer() -> str:
    """Return one line about this computer and its packages."""
    versions = find_versions(("torch", "dgl", "numpy"))
    names = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "dgl", "numpy"))
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    import psutil

    return f"{psutil.cpu_count()} cores ({model}), {psutil.virtual_memory().total / 1e9:.0f} GB, {names}"
