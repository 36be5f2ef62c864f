"""A trainer for tests: ``degree_trainer.py PARTITION OUT CONFIG`` learns the task of degree_task.py."""

import json
import sys
from pathlib import Path

import degree_task

from tutorial_lib import tasks
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks.run import train_in_job
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.session import open_session, serve_if_server

if __name__ == "__main__":
    serve_if_server()
    partition, out = map(Path, sys.argv[1:3])
    sys.modules["tutorial_lib.tasks.degree"] = degree_task
    tasks.TASKS["degree"] = tasks.TaskEntry("degree", "DegreeTask", labels=False)
    with open_session(load_partition_folder(partition).graph_name) as session:
        config = TrainConfig.from_dict({**json.loads(sys.argv[3]), "task": "degree"})
        train_in_job(session, config, partition, out, CheckpointManager(out / "checkpoint", {}))
