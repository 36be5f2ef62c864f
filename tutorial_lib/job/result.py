"""The content of ``result.json``.

After ``--resume``, ``epochs`` and ``phases`` describe the whole run. ``seconds``, ``bytes_sent`` and ``peak_rss``
describe the last start, which took its first ``resumed_epochs`` epochs from the checkpoint.
"""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import tutorial_lib
from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.launcher.coordinator import Coordinator, Event
from tutorial_lib.launcher.failure import failure
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import phases_of
from tutorial_lib.trainer.loop import TrainResult
from tutorial_lib.trainer.manifest import EpochResult


def distributed_result(
    partition: Partition,
    config: TrainConfig,
    plan: JobPlan,
    coordinator: Coordinator,
    seconds: float,
    earlier: Sequence[Event],
    resumed: Sequence[EpochResult],
) -> dict[str, Any]:
    """Return the content of ``result.json``, or raise a JobFailed if no trainer sent a score.

    ``earlier`` are the events of earlier starts, and ``resumed`` the epochs of the checkpoint. Trainers resume fewer
    epochs if a file on another machine was damaged.
    """
    events, last = coordinator.events, {event["kind"]: event for event in coordinator.events}
    if "evaluation" not in last:
        raise failure(coordinator.spec, 0, "trainer", 0, "ended without reporting an accuracy", tail=[])
    resumed = resumed[: last["resumed"]["epochs"]] if "resumed" in last else resumed
    names = ("epoch", "loss", "seconds", "val_score", "val_accuracy")
    trained = [{name: event[name] for name in names} for event in events if event["kind"] == "epoch"]
    return result_of(
        partition.manifest["dataset"],
        config,
        processes=(len(plan.machines), plan.trainers, plan.servers, plan.samplers),
        epochs=[*map(asdict, resumed), *trained],
        **{name: last["evaluation"][name] for name in TrainResult.SUMMARY},
        seconds=seconds,
        bytes_sent={name: used.bytes_sent for name, used in coordinator.use.items()},
        peak_rss={name: used.peak_rss for name, used in coordinator.use.items()},
        partition=asdict(partition.report),
        **{name: last["placed"][name] for name in ("device", "backend", "device_reason")},
        resumed_epochs=len(resumed),
        phases=phases_of([*earlier, *events]),
    )


def result_of(
    dataset: dict[str, Any], config: TrainConfig, processes: tuple[int, int, int, int], **more: Any
) -> dict[str, Any]:
    """Return the content of ``result.json`` for every kind of run.

    ``processes`` are the machines, the trainers and servers per machine, and the samplers per trainer.
    """
    names = ("machines", "trainers_per_machine", "servers_per_machine", "samplers_per_trainer")
    about = {"task": config.task, "dataset": dataset["name"], "dataset_info": dataset}
    sizes = {**dict(zip(names, processes, strict=True)), "world_size": processes[0] * processes[1]}
    return {**about, **sizes, "config": config.to_dict(), **more, "versions": versions()}


def versions() -> dict[str, str]:
    """Return the versions of the packages that influence a result."""
    packages = {name: version(name) for name in ("torch", "dgl", "torchdata", "numpy")}
    return {"python": platform.python_version(), "tutorial_lib": tutorial_lib.__version__, **packages}
