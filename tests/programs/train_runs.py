"""A trainer for tests: ``train_runs.py PARTITION RUNS OPTIONS`` makes several runs in one job.

RUNS is a JSON list of runs with ``config`` (a TrainConfig) and ``out`` (a folder). OPTIONS are class attributes of
LinkTask. ``--task degree`` is the task of degree_task.py.
"""

import json
import sys
from pathlib import Path
from typing import Any

from dgl.distributed import DistTensor

from tutorial_lib import tasks
from tutorial_lib.partition import Partition, load_partition_folder
from tutorial_lib.tasks.link import LinkTask
from tutorial_lib.tasks.run import train_in_job
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.session import open_session, serve_if_server


def refuse_remote_writes() -> None:
    """Fail if this process writes rows of a ``DistTensor`` that another machine stores."""
    write = DistTensor.__setitem__

    def write_own(self: DistTensor, ids: Any, rows: Any) -> None:
        policy = self.part_policy
        assert bool((policy.to_partid(ids) == policy.part_id).all()), f"{self.name}: rows of another machine"
        write(self, ids, rows)

    DistTensor.__setitem__ = write_own


def run_trainings(part: Partition, out: Path, configs: list[TrainConfig], **options: int) -> list[dict]:
    """Train with each config on an emulated machine per part. Run k writes ``out/k``. Return the events of the job."""
    from fault_support import run_program

    runs = [{"config": config.to_dict(), "out": str(out / str(number))} for number, config in enumerate(configs)]
    out.mkdir()
    return run_program(part, out, __file__, str(part.folder), json.dumps(runs), json.dumps(options))


def main(folder: Path, runs: list[dict[str, Any]], options: dict[str, int]) -> None:
    import degree_task

    sys.modules["tutorial_lib.tasks.degree"] = degree_task
    tasks.TASKS["degree"] = tasks.TaskEntry("degree", "DegreeTask", labels=False, classes=False)
    for name, value in options.items():
        setattr(LinkTask, name, value)
    refuse_remote_writes()
    with open_session(load_partition_folder(folder).graph_name) as session:
        for run in runs:
            config, out = TrainConfig.from_dict(run["config"]), Path(run["out"])
            out.mkdir(exist_ok=True)
            train_in_job(session, config, folder, out, CheckpointManager(out / "checkpoint", {}, every=config.epochs))


if __name__ == "__main__":
    serve_if_server()
    main(Path(sys.argv[1]), *map(json.loads, sys.argv[2:]))
