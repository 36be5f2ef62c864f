"""One of two ranks, on two machines as far as they know, that save and load: RANK MODE FOLDER STORE.

Modes: ``none`` (no learned rows), ``damage`` (machine 1's rows are damaged between two loads) and ``slow`` (each
manifest takes half a second to write, and the checkpoints that it replaces must stay until it is there).
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from checkpoint_support import SETTINGS, flip_bit, trained

from tutorial_lib.trainer import checkpoint, generations
from tutorial_lib.trainer.session import leave_process_group

rank, mode, folder, store = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
os.environ.update(LOCAL_RANK="0", TUTORIAL_MACHINE=f"machine-{rank}")
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
rows = None if mode == "none" else {"users": SimpleNamespace(weight=torch.full((4, 2), float(rank)))}


def save(count: int) -> None:
    epochs = [{"epoch": k} for k in range(count)]
    checkpoint.save(folder, *trained(steps=count), epochs, SETTINGS, embeddings=rows)


def load() -> None:
    dist.barrier()
    rows["users"].weight.zero_()
    said = []
    epochs = checkpoint.restore(folder, *trained(steps=0), embeddings=rows, say=said.append)
    print(len(epochs), rows["users"].weight[0, 0].item(), *said)


write = generations.write_json


def write_slowly(path: Path, value: object) -> None:
    time.sleep(0.5)
    for k in (1, 2):
        assert (folder / f"epoch-000{k}" / "model.safetensors").exists(), "gone before the new manifest"
    write(path, value)


save(1)
if rows:
    rows["users"].weight += 10
save(2)
if mode == "damage":
    load()
    if rank == 1:
        flip_bit(folder / "epoch-0002" / "embeddings-machine-1.safetensors", -3)
    load()
elif mode == "slow":
    generations.write_json = write_slowly
    save(3)
dist.barrier()
leave_process_group()  # an exit with the group would now and then end in std::terminate, in a thread of gloo's
