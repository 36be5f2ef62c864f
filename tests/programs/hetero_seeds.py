"""A trainer for tests: ``hetero_seeds.py PARTITION OUT CONFIG SEED...`` runs --task hetero for several seeds."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks.run import train_in_job
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.session import open_session, serve_if_server


def main(partition: str, out: str, config: str, *seeds: str) -> None:
    serve_if_server()
    with open_session(load_partition_folder(partition).graph_name) as session:
        for seed in seeds:
            folder = Path(out) / seed
            folder.mkdir(parents=True, exist_ok=True)
            settings = replace(TrainConfig.from_dict(json.loads(config)), seed=int(seed))
            train_in_job(
                session, settings, Path(partition), folder, CheckpointManager(folder / "checkpoint", {}, every=99)
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
