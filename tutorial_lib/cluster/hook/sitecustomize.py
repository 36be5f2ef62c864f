"""Loaded by Python at the start of every trainer: makes a trainer that fails end at once, and say why.

DGL's client registers an exit handler that waits for all other clients. A script that raises would print its
traceback and then wait there for ever, with the others waiting for it. So a trainer of ours ends by ``os._exit``
after its traceback, and leaves a ``failure`` event. Scripts need no change: this folder is on PYTHONPATH.

Only the process that torchrun started is meant, not its samplers and not programs that a script starts.
"""

import importlib.util
import os
import sys
import threading


def load_next_sitecustomize():
    """Another ``sitecustomize`` that this file hides (a distribution's, a user's) still runs."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder or ".") != here and os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("sitecustomize_of_the_user", path)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


def write_event(kind, message, lines):
    """As ``tutorial_lib.events``, but without importing anything of ours into a stranger's script."""
    import json
    import time

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    event = {"kind": "failure", "time": time.time(), "rank": rank, "local_rank": local_rank}
    event |= {"exception": kind, "message": message, "traceback": lines[-20:]}
    with open(os.path.join(os.environ["TUTORIAL_LOG_DIR"], f"events-{local_rank}.jsonl"), "a") as file:
        file.write(json.dumps(event) + "\n")


def end_on_exception(kind, error, trace):
    """sys.excepthook: the traceback as always, the event, and the end."""
    import traceback

    sys.__excepthook__(kind, error, trace)
    lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
    end(1, kind.__name__, (str(error).strip().splitlines() or [""])[0], lines)


def end(code, kind, message, lines):
    try:
        write_event(kind, message, lines)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def watch_sys_exit():
    """``sys.exit(3)`` raises SystemExit, which no excepthook sees; remember the code and end before DGL's handler."""
    last = [None]
    original = sys.exit

    def remember(code=None):
        last[0] = code
        original(code)

    def before_exit_handlers():
        if last[0] not in (None, 0, False):
            code = last[0] if isinstance(last[0], int) else 1
            end(code & 0xFF, "SystemExit", str(last[0]), [f"SystemExit: {last[0]}"])

    sys.exit = remember
    threading._register_atexit(before_exit_handlers)  # these run before those of `atexit`


if os.environ.get("TUTORIAL_TRAINER_PID") == str(os.getpid()):
    sys.excepthook = end_on_exception
    watch_sys_exit()

try:
    load_next_sitecustomize()
except Exception as error:  # as Python itself does with a broken sitecustomize
    print(f"Error in sitecustomize: {error!r}", file=sys.stderr)
