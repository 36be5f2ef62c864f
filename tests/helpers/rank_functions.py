"""Functions of ranks in tests of ``support.processes``, importable by spawned processes."""

import ctypes
import multiprocessing.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from support.processes import fix_openmp
from tutorial_lib.trainer.comm import all_gather, broadcast, gather


class PicklableError(Exception):
    """Survives pickling."""

    code = property(lambda self: self.args[0])


class UnpicklableError(Exception):
    """Cannot be unpickled, because its constructor needs more than ``args``."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{code} in {where}")


def describe_rank(rank: int, world_size: int, *args: Any) -> dict[str, Any]:
    """Return the arguments, environment, threads and listening sockets of a rank."""
    time.sleep(0.1 * (world_size - rank))  # the last rank is through first
    inherited = {os.readlink(f"/proc/self/fd/{fd.name}") for fd in os.scandir("/proc/self/fd") if os.path.exists(fd)}
    sockets = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {
        "args": (rank, world_size, *args),
        "environment": {key: os.environ[key] for key in ("RANK", "WORLD_SIZE", "MASTER_PORT")},
        "threads": torch.get_num_threads(),
        "listens": [port for port in sockets if port[3] == "0A" and f"socket:[{port[9]}]" in inherited],
    }


def all_reduced(rank: int, world_size: int) -> list[float]:
    tensor = torch.arange(3.0) + rank
    dist.all_reduce(tensor)
    return tensor.tolist()


def join_own_group(rank: int, world_size: int) -> float:
    """Join a process group without an address."""
    dist.init_process_group("gloo")
    return all_reduced(rank, world_size)[0]


def print_and_reduce(rank: int, world_size: int, tensor: torch.Tensor) -> list[float]:
    """Write to a shared tensor, print in all ways and call a collective, in one start."""
    tensor[rank] += 1
    print_everywhere(rank, world_size)
    return all_reduced(rank, world_size)


def fail(rank: int, world_size: int, how: str) -> Any:
    """Fail on rank 1. The other ranks wait for it, in a collective if there is a process group."""
    if rank == 1:
        print("last words")
        return _fail(how)
    if dist.is_initialized():
        dist.barrier()
    else:
        time.sleep(60)
    return None


def _fail(how: str) -> Any:
    if how == "PicklableError":
        raise PicklableError(7, "here")
    if how == "UnpicklableError":
        raise UnpicklableError(7, "here")
    if how == "_exit":
        os._exit(3)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "KeyboardInterrupt":
        raise KeyboardInterrupt
    if how == "unpicklable":
        return lambda: None
    if how.startswith("exit "):
        sys.exit(int(how[5:]))
    raise AssertionError(how)


def miss_barrier(rank: int, world_size: int) -> int:
    """Enter a barrier on all ranks except rank 1, which sleeps."""
    if rank == 1:
        time.sleep(60)
    dist.barrier()
    return rank


def print_everywhere(rank: int, world_size: int) -> None:
    """Print from Python, to standard error, with C's printf and from another program, in this order."""
    time.sleep(0.1 * (world_size - rank))
    print(f"python {rank}")
    print(f"error {rank}", file=sys.stderr)
    libc = ctypes.CDLL(None)
    libc.printf(b"printf %d\n", rank)
    libc.fflush(None)
    subprocess.run(["echo", f"program {rank}"], check=True)


def parallel_region(rank: int, world_size: int) -> float:
    """Add numbers in several threads of torch."""
    return float((torch.ones(2_000_000) + 1).sum())


@fix_openmp
def compute_in_parallel(rank: int, world_size: int, how: str = "return") -> Any:
    """Run a parallel region, and return whether it is in the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    return (rank, parallel_region(rank, world_size), in_main) if how == "return" else _fail(how)


def start_child(rank: int, world_size: int, folder: str) -> None:
    """Start a program, write a file and sleep."""
    subprocess.Popen(["sleep", "60"])
    (Path(folder) / str(rank)).touch()
    time.sleep(60)


def thread_count(rank: int, world_size: int) -> int:
    return torch.get_num_threads()


def exchange_values(rank: int, world_size: int) -> Any:
    """Send values of different sizes with each collective, and return comparable values."""
    rows = torch.arange(1000 * rank)

    def seen(values: list[Any]) -> list[Any]:
        return [[sender, len(tensor), float(tensor.sum())] for sender, tensor in values]

    first = broadcast({"name": f"rank {rank}", "values": torch.arange(5.0) + rank})
    totals = {"name": first["name"], "sum": float(first["values"].sum())}
    return seen(gather((rank, rows))), seen(all_gather((rank, rows))), totals


def score_share(rank: int, world_size: int) -> tuple[float, float]:
    """Score 1 of 3 validation nodes and no test node on rank 0, and 4 of 5 on rank 1."""
    from tutorial_lib.tasks.task import score_nodes

    val, right = ([1, 1, 1, 0], [1, 0, 0, 1]) if rank == 0 else ([1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 1, 0])
    mask = torch.tensor(val, dtype=torch.uint8)  # as DGL returns masks
    test = torch.zeros_like(mask) if rank == 0 else 1 - mask
    nodes, labels = torch.arange(len(mask)), torch.tensor(right)
    share = SimpleNamespace(target="_N", data={"val_mask": mask, "test_mask": test}, local_nodes=lambda _: nodes)
    share.original_nodes = lambda _: torch.arange(7).numpy()
    return score_nodes(share, labels, labels, lambda rows, labels: (rows, labels.bool()))[:2]


def fail_after_consequence(rank: int, world_size: int) -> None:
    """Raise the consequence on rank 0 shortly before the cause on rank 1."""
    time.sleep(0.15 * rank)
    if rank == 0:
        raise RuntimeError("Connection closed by peer")
    raise ValueError("the cause")


def die_after_return(rank: int, world_size: int) -> str:
    """Exit with code 3 in an exit handler."""
    if rank == 1:
        print("last words")
        multiprocessing.util.Finalize(None, os._exit, args=(3,), exitpriority=100)
    return "result"


def save_and_load(rank: int, world_size: int, mode: str, folders: Sequence[Path]) -> list[str]:
    """Save and load checkpoints as on several machines, and return the result of each load.

    Modes: ``damage`` (the rows of machine 1 are damaged between two loads) and ``slow`` (writing a manifest takes half
    a second, and until then the checkpoints that it replaces must remain).
    """
    from checkpoint_support import flip_bit, load, save, train_small_model

    from tutorial_lib.trainer import manifest

    os.environ.update(LOCAL_RANK="0", TUTORIAL_MACHINE=f"machine-{rank}")
    folder, printed = folders[rank], []
    rows = {"users": SimpleNamespace(weight=torch.full((4, 2), float(rank)))}
    task, write = SimpleNamespace(embeddings=rows, sparse_optimizers=[]), manifest.write_json

    def save_again(count: int) -> None:
        save(folder, *train_small_model(steps=count), count, task=task)

    def load_again() -> None:
        dist.barrier()
        rows["users"].weight.zero_()
        problems: list[str] = []

        def emit(_kind: str, damaged: str = "", **_fields: Any) -> None:
            problems.extend([damaged] if damaged and rank == 0 else [])

        state = load(folder, *train_small_model(steps=0), task, emit=emit)
        printed.append(" ".join([str(state.epoch), str(rows["users"].weight[0, 0].item()), *problems]))

    def write_slowly(path: Path, value: object) -> None:
        time.sleep(0.5)
        for k in (1, 2):
            assert (folder / f"epoch-000{k}" / "model.safetensors").exists(), "gone before the new manifest"
        write(path, value)

    save_again(1)
    rows["users"].weight += 10
    save_again(2)
    if mode == "damage":
        load_again()
        if rank == 1:
            flip_bit(folder / "epoch-0002" / "embeddings-machine-1.safetensors", -3)
        load_again()
    elif mode == "slow":
        manifest.write_json = write_slowly
        save_again(3)
    return printed
