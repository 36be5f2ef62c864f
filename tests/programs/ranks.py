"""Start a program's ranks as torchrun does. One process imports the slow packages once and forks the ranks.

    python tests/programs/ranks.py RANKS PROGRAM [words...]

They are forked before anything computes, so that no thread of OpenMP is lost. When one fails, the others are ended.
Exit code 1: one has failed.
"""

import contextlib
import importlib
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import torch.distributed
import torch.nn.parallel  # noqa: F401


def rank(number: int, count: int, port: int, program: str) -> NoReturn:
    """Run the program as a rank and exit with its code."""
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_PORT": str(port)}
    code: object = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> int:
    count, program = int(sys.argv[1]), sys.argv[2]
    if "import dgl" in Path(program).read_text():
        importlib.import_module("dgl")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sys.argv, sys.path[0] = sys.argv[2:], str(Path(program).parent)
    running = set()
    for number in range(count):
        if not (child := os.fork()):
            rank(number, count, port, program)
        running.add(child)
    failed = False
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and not failed:
            failed = True
            for other in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
