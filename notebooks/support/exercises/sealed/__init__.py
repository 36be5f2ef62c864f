"""The programs of the blind diagnoses in lesson 07. They are packed, so a diagnosis is not spoiled by accident.

python -m support.exercises.sealed NAME          print the source of a program
python -m support.exercises.sealed NAME FILE     pack a new source
"""

import base64
import os
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent
RUNNING: list[subprocess.Popen[bytes]] = []


def read_source(name: str) -> str:
    """Return the source of a program."""
    return zlib.decompress(base64.b64decode((FOLDER / f"{name}.txt").read_text())).decode()


def write_source(name: str, source: str) -> None:
    """Pack the source of a program."""
    text = base64.b64encode(zlib.compress(source.encode())).decode()
    (FOLDER / f"{name}.txt").write_text("\n".join(text[at : at + 100] for at in range(0, len(text), 100)) + "\n")


def start(name: str, ranks: int, *words: object) -> list[int]:
    """Start the ranks of a program and return their process IDs. Stop the ranks that were started before.

    The output of rank r is in ``scripts/out/NAME-r.log``. The kernel kills the ranks when this process ends.
    """
    stop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    for rank in range(ranks):
        command = [sys.executable, "-m", "support.exercises.sealed.rank", name, str(os.getpid()), *map(str, words)]
        with Path(f"scripts/out/{name}-{rank}.log").open("wb") as log:
            environment["RANK"] = str(rank)
            RUNNING.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    return [process.pid for process in RUNNING]


def wait(seconds: float) -> None:
    """Wait until all ranks have ended.

    Raises:
        subprocess.TimeoutExpired: a rank still runs after this number of seconds.
    """
    for process in RUNNING:
        process.wait(seconds)


def wait_until_quiet(name: str, seconds: float, limit: float = 100) -> None:
    """Wait until all ranks have written to their logs and no log has grown for some seconds, or until the limit."""
    logs = [Path(f"scripts/out/{name}-{rank}.log") for rank in range(len(RUNNING))]
    sizes = None
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = sizes
        sizes = [log.stat().st_size for log in logs]
        if min(sizes) > 0 and sizes == before:
            return
        time.sleep(seconds)


def stop() -> None:
    """Kill the ranks."""
    while RUNNING:
        process = RUNNING.pop()
        process.kill()
        process.wait()
