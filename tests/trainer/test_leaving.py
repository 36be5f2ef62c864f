"""Ranks start without torch's compiler, and those that leave their process group end well."""

import subprocess
import sys

DYNAMO = """
import sys, torch
from tutorial_lib.compat.settings import postpone_dynamo; postpone_dynamo()
torch.optim.Adam([torch.ones(1)]).step()
print("sympy" in sys.modules, torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)), "sympy" in sys.modules)
"""

LEAVE = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1); rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
dist.barrier(); time.sleep(0.3 * rank)  # so that rank 0 leaves while a thread waits for rank 1
dist.all_reduce(torch.ones(1000), async_op=True)
from tutorial_lib.trainer.session import end_process; end_process()
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


def test_compiler_is_imported_at_its_first_use():
    done = subprocess.run([sys.executable, "-c", DYNAMO], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False tensor([2.]) True\n", done.stderr
