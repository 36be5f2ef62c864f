"""Run by test_architecture.py: ``traced_step.py PARTITION OUT`` trains as a rank of its own and prints what it called.

Standalone: one part, no servers. The loop and the pipeline are those of a job; only nothing is remote.
"""

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

ROOT = Path(tutorial_lib.__file__).resolve().parents[1]
CONFIG = TrainConfig(epochs=1, fanouts=(3, 3), batch_size=100, hidden_size=128)
called: dict[str, list[str]] = {"main": [], "batches": []}


def note(frame, event, _argument) -> None:
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(str(ROOT / "tutorial_lib")):
        thread = "main" if threading.current_thread() is threading.main_thread() else "batches"
        called[thread].append(f"{Path(name).relative_to(ROOT)}:{frame.f_code.co_name}")


if __name__ == "__main__":
    folder, out = map(Path, sys.argv[1:3])
    partition = load_partition_folder(folder)
    os.environ["DGL_DIST_MODE"] = "standalone"
    dgl.distributed.initialize("")
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=0, world_size=1)
    graph = dgl.distributed.DistGraph(partition.graph_name, part_config=str(partition.config))
    session = Session(graph, 0, 1, EventWriter())
    threading.setprofile(note)
    sys.setprofile(note)
    train_in_job(session, CONFIG, folder, out, CheckpointManager(out / "checkpoint", {}))
    sys.setprofile(None)
    threading.setprofile(None)
    print(json.dumps(called))
