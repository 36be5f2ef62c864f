"""The program of every server and trainer of ``train``: ``python -m tutorial_lib.trainer CONFIG [--use_graphbolt]``.

CONFIG is a JSON file in the run folder. It has a TrainConfig as ``train``, the ``device``, and ``description``,
``checkpoint_every`` and ``resume`` for the ``CheckpointManager``. ``DGL_CONF_PATH`` is the partition on this machine.
"""

import gc
import os
import sys

if __name__ == "__main__":
    gc.disable()  # imports create a quarter of a million objects and no garbage
    from tutorial_lib.compat.settings import postpone_dynamo
    from tutorial_lib.launcher.processes import FORKSERVER
    from tutorial_lib.trainer.session import serve_if_server

    postpone_dynamo()
    if FORKSERVER in os.environ:  # servers and trainers share these modules
        import tutorial_lib.tasks.run  # noqa: F401
    serve_if_server(graphbolt="--use_graphbolt" in sys.argv)  # a server exits here and skips the imports below

import json
from pathlib import Path

from tutorial_lib.compat.settings import keep_freed_memory
from tutorial_lib.launcher.watch import SAVE_REQUEST_FILE
from tutorial_lib.tasks.run import train_in_job
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.session import open_session


def main() -> None:
    gc.enable()
    job_file, partition = Path(sys.argv[1]), Path(os.environ["DGL_CONF_PATH"]).parent
    job, out = json.loads(job_file.read_text()), job_file.parent
    config = TrainConfig.from_dict(job["train"])
    checkpoints = CheckpointManager(out / "checkpoint", job["description"], job["checkpoint_every"], job["resume"])
    checkpoints.stop = Path(os.environ["TUTORIAL_LOG_DIR"], SAVE_REQUEST_FILE).exists
    keep_freed_memory()
    with open_session(json.loads((partition / "manifest.json").read_text())["graph_name"], seed=config.seed) as session:
        train_in_job(session, config, partition, out, checkpoints, job["device"])


if __name__ == "__main__":
    main()
