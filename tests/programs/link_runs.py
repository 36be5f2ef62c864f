"""Link prediction on many machines, several runs in one job: servers and trainers run this module.

    python link_runs.py GRAPH_NAME SETTINGS

SETTINGS is JSON: ``partition``, its folder, and ``runs``, each with ``config`` (a TrainConfig), ``options`` (class
attributes of LinkTask) and ``out``, the folder that takes its results. Every run has its own seeds,
model and edges. The machines start once.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.job.launch import LaunchRequest, launch
from tutorial_lib.partition import Partition
from tutorial_lib.tasks.link import LinkTask
from tutorial_lib.tasks.run import train_in_job
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.session import open_session, serve_if_server


def refuse_remote_writes() -> None:
    """Fail if this process writes rows of a ``DistTensor`` that another machine stores."""
    from dgl.distributed import DistTensor

    write = DistTensor.__setitem__

    def write_own(self: DistTensor, ids: Any, rows: Any) -> None:
        policy = self.part_policy
        assert bool((policy.to_partid(ids) == policy.part_id).all()), f"{self.name}: rows of another machine"
        write(self, ids, rows)

    DistTensor.__setitem__ = write_own


def main(graph_name: str, settings: Mapping[str, Any]) -> None:
    """What each trainer does."""
    refuse_remote_writes()
    with open_session(graph_name) as session:
        for number, one in enumerate(settings["runs"]):
            config, out = TrainConfig.from_dict(one["config"]), Path(one["out"])
            for name, value in one["options"].items():
                setattr(LinkTask, name, value)
            session.events.emit("run", number=number)
            saver = CheckpointManager(out / "checkpoint", {}, every=config.epochs)
            train_in_job(session, config, Path(settings["partition"]), out, saver)


def run_links(
    part: Partition, runs: Mapping[str, tuple[TrainConfig, dict[str, int]]], out: Path
) -> dict[str, dict[str, Any]]:
    """Run link prediction on an emulated machine for each part, one run after the other, in one job.

    Returns:
        For each name of ``runs``: the fields of its ``evaluation`` event, ``epochs`` (of rank 0), ``split`` (of each
        rank, in rank order), ``losses`` (of rank 0's steps) and ``out``, its folder.

    Raises:
        InputError: found before anything was started. JobFailed: with the first cause.
    """
    folders = {name: out / f"run-{number}" for number, name in enumerate(runs)}
    for folder in folders.values():
        folder.mkdir(parents=True)
    described = [
        {"config": config.to_dict(), "options": options, "out": str(folders[name])}
        for name, (config, options) in runs.items()
    ]
    settings = json.dumps({"partition": str(part.folder), "runs": described})

    request = LaunchRequest(
        command=[sys.executable, __file__, part.graph_name, settings],
        workspace=out,
        part_config=part.config,
        ip_config=Path("ip_config.txt"),  # does not exist yet: launch writes it
        out=out / "logs",
        emulate=part.report.parts,
        num_omp_threads=1,
    )
    launch(request)
    events = [json.loads(line) for line in (out / "logs" / "events.jsonl").open()]
    return {
        name: {**outcome, "out": folders[name]} for name, outcome in zip(runs, outcomes(events, len(runs)), strict=True)
    }


def outcomes(events: Sequence[Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
    """What each run told, from the events of all ranks in the order of arrival."""
    found: list[dict[str, Any]] = [{"epochs": [], "losses": [], "split": {}} for _ in range(count)]
    at: dict[int, int] = {}  # the run that a rank is in
    for event in events:
        kind, rank = event["kind"], event.get("rank", -1)
        fields = {key: value for key, value in event.items() if key not in ("kind", "time", "rank", "local_rank")}
        if kind == "run":
            at[rank] = fields["number"]
        elif kind == "split":
            found[at[rank]]["split"][rank] = fields
        elif kind == "step" and rank == 0:
            found[at[rank]]["losses"].append(fields["loss"])
        elif kind == "epoch":
            found[at[rank]]["epochs"].append(fields)
        elif kind == "evaluation":
            found[at[rank]] |= fields
    for one in found:
        one["split"] = [one["split"][rank] for rank in sorted(one["split"])]
    return found


if __name__ == "__main__":
    serve_if_server()  # a server stays in here until the job ends
    main(sys.argv[1], json.loads(sys.argv[2]))
