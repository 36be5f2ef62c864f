"""A DGL server that knows all its clients sleeps for 3 s, to "wait for clients' receivers", then connects to them.

A client is ready a few milliseconds after it has said who it is, and a connection that fails is tried again. So a
server of ours (``session.serve_if_server``) sleeps for 0.3 s; a script's own servers sleep as DGL has it. Checked on
DGL 2.1.0.
"""

from __future__ import annotations

import inspect
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

KNOWN = "time.sleep(3)  # wait for clients' receivers ready\n"
SECONDS = 0.3


def connect_soon() -> bool:
    """Shorten that sleep in this process; False, and nothing is changed, where DGL's server has another text."""
    rpc_server: Any = import_module("dgl.distributed.rpc_server")
    try:
        text = inspect.getsource(rpc_server.start_server)
    except (OSError, TypeError, AttributeError):  # a DGL without source, or without that function
        return False
    if text.count(KNOWN) != 1 or text.count("time.sleep(3)") != 1 or getattr(rpc_server, "time", None) is not time:
        return False

    def sleep(seconds: float) -> None:
        time.sleep(SECONDS if seconds == 3 else seconds)

    rpc_server.time = SimpleNamespace(**{**vars(time), "sleep": sleep})  # all of the module but for one sleep
    return True
