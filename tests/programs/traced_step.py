"""Print the calls of functions of tutorial_lib in a run of a single rank: ``traced_step.py PARTITION OUT``."""

import inspect
import json
import os
import sys
import threading
from pathlib import Path

import dgl
import torch.distributed as dist

import tutorial_lib
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks.run import train_in_job
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import EventWriter
from tutorial_lib.trainer.session import Session

LIBRARY = str(Path(tutorial_lib.__file__).parent)
calls: list[str] = []


def note(frame, event, _argument) -> None:
    function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # and not the body of a module or a class
    if function and event in ("call", "return") and (name := frame.f_code.co_filename).startswith(LIBRARY):
        calls.append(f"tutorial_lib{name.removeprefix(LIBRARY)}:{frame.f_code.co_name}:{event}")


if __name__ == "__main__":
    folder, out = map(Path, sys.argv[1:3])
    partition = load_partition_folder(folder)
    os.environ["DGL_DIST_MODE"] = "standalone"  # no servers. The loop and the pipeline are those of a job
    dgl.distributed.initialize("")
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=0, world_size=1)
    graph = dgl.distributed.DistGraph(partition.graph_name, part_config=str(partition.config))
    threading.setprofile(note)
    sys.setprofile(note)
    config = TrainConfig(epochs=1, fanouts=(3, 3), batch_size=100, hidden_size=128)
    checkpoints = CheckpointManager(out / "checkpoint", {})
    checkpoints.stop = (out / "finish").exists  # as in trainer/__main__.py
    train_in_job(Session(graph, 0, 1, EventWriter()), config, folder, out, checkpoints)
    sys.setprofile(None)
    threading.setprofile(None)
    print(json.dumps(calls))
