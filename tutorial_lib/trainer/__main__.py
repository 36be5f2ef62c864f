"""What every server and trainer of ``train`` runs: ``python -m tutorial_lib.trainer CONFIG [--use_graphbolt]``.

CONFIG is a JSON file in the run folder: ``train`` (a TrainConfig), ``device`` (see ``placement``), and of the
checkpoints: ``description``, ``checkpoint_every``, ``resume`` (see ``CheckpointManager``). It has no path: the folder
of the partition is that of ``DGL_CONF_PATH``, so the same file serves machines with other folders.
``--use_graphbolt`` (a word that the checks before a start know) is about the parts, see ``serve_if_server``.
Rank 0 writes ``predictions.npy`` and ``checkpoint/`` into the run folder and sends the global results as events.
"""

from __future__ import annotations

import gc
import importlib
import sys

if __name__ == "__main__":  # the way to the first step is made of imports
    gc.disable()  # they make a quarter of a million objects and no garbage
    from tutorial_lib.cluster.forkserver import is_forkserver
    from tutorial_lib.trainer.session import serve_if_server

    if is_forkserver():  # what servers and trainers need, once for all of them
        for module in ("dgl", "torch._dynamo", "tutorial_lib.sampling.rpc", "tutorial_lib.tasks.run"):
            importlib.import_module(module)
    # A server stays here until the job ends, and needs nothing of what follows.
    serve_if_server(graphbolt="--use_graphbolt" in sys.argv)

import json
import os
from pathlib import Path

from tutorial_lib.cluster.members import FINISH
from tutorial_lib.compat.heap import keep_freed_memory
from tutorial_lib.tasks.run import train_in_job
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.session import join


def main() -> None:
    """Train; what was started as a server has not come this far."""
    import torch._dynamo  # noqa: F401  torch's first optimizer would import it, with the collector on

    gc.enable()
    job, partition = Path(sys.argv[1]), Path(os.environ["DGL_CONF_PATH"]).parent
    plan, out = json.loads(job.read_text()), job.parent
    config = TrainConfig.from_dict(plan["train"])
    graph_name = json.loads((partition / "manifest.json").read_text())["graph_name"]
    checkpoints = CheckpointManager(out / "checkpoint", plan["description"], plan["checkpoint_every"], plan["resume"])
    checkpoints.stop = Path(os.environ["TUTORIAL_LOG_DIR"], FINISH).exists
    keep_freed_memory()
    with join(graph_name, seed=config.seed) as session:
        train_in_job(session, config, partition, out, checkpoints, plan["device"])


if __name__ == "__main__":
    main()
