"""Replace a checkpoint while files cannot grow above 100 kB, as on a full disk: full_disk.py FOLDER (lesson 11)."""

import resource
import sys

import torch
import torch.distributed as dist

import checkpoint


def save(path, state):
    torch.save(state, path)


def content_of(path):
    """Return the content of a file, or the error."""
    try:
        return torch.load(path)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for name, write in (("torch.save", save), ("checkpoint.write", checkpoint.write)):
        path, before = f"{sys.argv[1]}/{name}.pt", resource.getrlimit(resource.RLIMIT_FSIZE)
        write(path, {"epochs": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            write(path, {"epochs": 2, "weights": torch.ones(100_000)})
        except Exception as error:
            print(f"{name} fails with {type(error).__name__}")
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        print(f"    content of the checkpoint: {content_of(path)}")
