"""The network traffic of this process: its bytes, a limit of its rate, and the times of its all-reduces.

Linux counts the bytes of each connection and limits its rate, also for an ordinary user.
"""

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

# Offset of tcpi_bytes_sent, which counts repeated packets, and tcpi_bytes_retrans in the struct tcp_info of Linux
BYTES_SENT = 200
SO_MAX_PACING_RATE = 47  # constant of Linux that Python does not define


def bytes_sent() -> int:
    """Return the bytes that this process has sent over its open TCP connections, without repeated packets."""
    infos = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256) for one in _connections()]
    return sum(sent - repeated for sent, repeated in (struct.unpack_from("QQ", info, BYTES_SENT) for info in infos))


def limit_rate(mbit: float) -> None:
    """Let each open TCP connection of this process send at most ``mbit`` Mbit/s, as on a slow network."""
    for connection in _connections():
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(mbit * 1e6 / 8))


def note_all_reduces(events: list[tuple[float, str, str]]) -> None:
    """Let ``dist.all_reduce`` append (seconds, "starts" or "done", number) to ``events``, in this process."""
    import torch.distributed as dist  # the package is imported without torch

    all_reduce: Any = dist.all_reduce
    numbers = itertools.count()

    def noted(*args: Any, **options: Any) -> Any:
        number = str(next(numbers))
        done = lambda *_: events.append((time.perf_counter(), "done", number))  # noqa: E731
        events.append((time.perf_counter(), "starts", number))
        work = all_reduce(*args, **options)
        work.get_future().add_done_callback(done) if work else done()
        return work

    dist.all_reduce = noted


def _connections() -> Iterator[socket.socket]:
    """Yield the TCP sockets of this process, without those that it inherited, such as the sockets of Jupyter."""
    sockets = _sockets("self")
    inherited = _sockets(str(os.getppid()))
    for name in sockets.keys() - inherited.keys():
        with socket.socket(fileno=os.dup(sockets[name])) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                yield one


def _sockets(process: str) -> dict[str, int]:
    numbers = {}
    for number in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):  # closed in the meantime
            numbers[os.readlink(f"/proc/{process}/fd/{number}")] = int(number)
    return {name: number for name, number in numbers.items() if name.startswith("socket:")}
