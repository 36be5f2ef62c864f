"""Ranks that leave their process group end, and end well."""

import subprocess
import sys

LEAVE = """
import sys, time, torch
import torch.distributed as dist
from tutorial_lib.trainer.session import leave_process_group
torch.set_num_threads(1)
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
dist.barrier()
time.sleep(0.3 * rank)  # so that rank 0 leaves while a thread waits for rank 1
dist.all_reduce(torch.ones(1000), async_op=True)
leave_process_group()
"""


def test_rank_exits_while_thread_holds_tensor(tmp_path):
    """D15. A rank can exit while a thread of gloo still holds a tensor and waits for the GIL."""
    commands = [[sys.executable, "-c", LEAVE, str(rank), str(tmp_path / "store")] for rank in (0, 1)]
    ranks = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        assert [(rank.communicate(timeout=120)[1], rank.returncode) for rank in ranks] == [("", 0)] * 2
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
