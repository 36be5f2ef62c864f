"""What a run leaves behind.

The run folder::

    result.json      settings, epochs, accuracies and other scores, seconds, bytes on the wire, memory, versions
    events.jsonl     what trainers and agents told, in the order it arrived; ``trace`` makes a timeline of it
    predictions.npy  int64 (N,): predicted class of each node, in the data set's original order
    predictions.csv  the same under the ids that the user gave, for a graph of one's own that has some
    options.json     those of the command, for --resume
    checkpoint/      trained weights and configuration, and what --resume continues from: see ``checkpoint``
    logs/            one folder a machine: logs of agent, servers, trainers, and what starts them; resume-K/ of the
                     K-th continuation; of a job that failed, failure.txt with the cause

In ``result.json`` of a run that was continued with ``--resume``, ``epochs`` and ``phases`` are those of the whole run;
``seconds``, ``bytes_sent`` and ``peak_rss`` are those of the last start, whose first ``resumed_epochs`` epochs came
from the checkpoint. ``phases`` has for each rank the mean seconds per epoch in each phase of a step, and the mean bytes
of features per epoch from its own machine and from others; ``events.phases_of`` makes it. Where the model was:
``device`` ("cpu", "cuda"), ``backend`` of the gradients ("gloo", "nccl", "none"), and ``device_reason``, see
``placement``.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from typing import Any

import tutorial_lib
from tutorial_lib.cluster.coordinator import Coordinator, Event
from tutorial_lib.cluster.failure import failure
from tutorial_lib.cluster.plan import JobPlan
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
    """The content of ``result.json``.

    Args:
        plan: of the job.
        coordinator: after its ``run``.
        seconds: of this start of the job.
        earlier: events of the starts before it.
        resumed: epochs of the checkpoint as seen from here; fewer count where a file of another machine was damaged.

    Raises:
        JobFailed: the trainers ended well and never reported an accuracy.
    """
    events, use = coordinator.events, coordinator.use

    def of_kind(kind: str) -> list[Event]:
        return [event for event in events if event["kind"] == kind]

    if not (evaluation := of_kind("evaluation")):
        raise failure(coordinator.spec, 0, "trainer", 0, "ended without reporting an accuracy", tail=[])
    placed = next(iter(of_kind("placed")), {})
    resumed = resumed[: next((event["epochs"] for event in of_kind("resumed")), len(resumed))]
    names = [field.name for field in fields(EpochResult)]
    epochs = [*resumed, *(EpochResult(**{name: event[name] for name in names}) for event in of_kind("epoch"))]
    return result_of(
        partition.manifest["dataset"],
        config,
        processes=(len(plan.machines), plan.trainers, plan.servers, plan.samplers),
        epochs=[epoch.to_dict() for epoch in epochs],
        **{key: evaluation[-1][key] for key in TrainResult.SUMMARY},
        seconds=seconds,
        bytes_sent={name: used.bytes_sent for name, used in use.items()},
        peak_rss={name: used.peak_rss for name, used in use.items()},
        partition=asdict(partition.report),
        **{key: placed[key] for key in ("device", "backend", "device_reason") if key in placed},
        resumed_epochs=len(resumed),
        phases=phases_of([*earlier, *events]),
    )


def result_of(
    dataset: dict[str, Any], config: TrainConfig, processes: tuple[int, int, int, int], **more: Any
) -> dict[str, Any]:
    """The content of ``result.json``, for every kind of run.

    Args:
        processes: machines, trainers and servers per machine, samplers per trainer.
        more: epochs, ``TrainResult.summary`` (exact, over all ranks), seconds, bytes_sent and peak_rss (by machine),
            and whatever else there is to say.
    """
    machines, trainers, servers, samplers = processes
    return {
        "task": config.task,
        "dataset": dataset["name"],
        "dataset_info": dataset,
        "machines": machines,
        "trainers_per_machine": trainers,
        "servers_per_machine": servers,
        "samplers_per_trainer": samplers,
        "world_size": machines * trainers,
        "config": config.to_dict(),
        **more,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    packages = {name: version(name) for name in ("torch", "dgl", "torchdata", "numpy")}
    return {"python": platform.python_version(), "tutorial_lib": tutorial_lib.__version__, **packages}
