"""A DGL server that knows all its clients sleeps for 3 s, to "wait for clients' receivers", then connects to them.

A client is ready a few milliseconds after it has said who it is, and a connection that fails is tried again. So a
server of ours (``session.serve_if_server``) sleeps for 0.3 s; a script's own servers sleep as DGL has it. Checked on
DGL 2.1.0.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

KNOWN = "time.sleep(3)  # wait for clients' receivers ready\n"
SECONDS = 0.3


class _Clock:
    """The module ``time`` but for one sleep."""

    def __init__(self, real: ModuleType) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sleep(self, seconds: float) -> None:
        self._real.sleep(SECONDS if seconds == 3 else seconds)


def connect_soon() -> bool:
    """Shorten that sleep in this process; False, and nothing is changed, where DGL's server has another text."""
    from dgl.distributed import rpc_server

    try:
        text = inspect.getsource(rpc_server.start_server)
    except (OSError, TypeError, AttributeError):  # a DGL without source, or without that function
        return False
    if text.count(KNOWN) != 1 or text.count("time.sleep(3)") != 1 or getattr(rpc_server.time, "__name__", "") != "time":
        return False
    rpc_server.time = _Clock(rpc_server.time)
    return True
