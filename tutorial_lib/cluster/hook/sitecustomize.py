"""Loaded by Python at the start of every server, trainer and sampler of a job. Scripts need no change: this folder is
on PYTHONPATH.

It makes a trainer that fails end at once, and say why. DGL's client registers an exit handler that waits for all other
clients: a script that raises would print its traceback and then wait there for ever, with the others waiting for it.
So a trainer of ours ends by ``os._exit`` after its traceback, and leaves a ``failure`` event.

It lets the machine's agent ask any of these processes for its Python stack (`cluster/stacks.py`), which works also
while the process waits inside C++ code. And it ends a sampler whose trainer is gone.

It lets a script say ``import dgl`` on any torch (`graphbolt_stub.py`). And it takes three seconds of sleep out of the
start of every job.

Programs that a script starts are left alone, but for the last point.
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


def let_dgl_load_without_graphbolt():
    """As ``tutorial_lib/__init__.py`` does; the file is loaded by its path, for a script may hide our package."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "graphbolt_stub.py")
    spec = importlib.util.spec_from_file_location("tutorial_lib_graphbolt_stub", os.path.normpath(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


def role_of_this_process():
    """(role, index) within the machine, or None for a process that is none of the job's.

    With a command that needs a shell, the shell is what the agent or torchrun started, and we are its child.
    """
    if "--multiprocessing-fork" in sys.orig_argv:  # spawned by a trainer: the command says so
        sampler = os.environ.get("DGL_NUM_SAMPLER", "0") != "0"
        return ("sampler" if sampler else "worker"), int(os.environ.get("LOCAL_RANK", 0))
    own = {os.getpid()} | ({os.getppid()} if os.environ.get("TUTORIAL_SHELL") else set())
    if int(os.environ.get("TUTORIAL_TRAINER_PID", -1)) in own:
        return "trainer", int(os.environ["LOCAL_RANK"])
    if os.environ.get("DGL_ROLE") == "server" and os.getsid(0) in own:
        return "server", int(os.environ["TUTORIAL_INDEX"])
    return None


def register(role, index):
    """Write down who we are, and dump all Python stacks to a file of our own on a signal that nobody else uses."""
    import faulthandler
    import json
    import signal

    folder = os.path.join(os.environ["TUTORIAL_LOG_DIR"], ".processes")
    os.makedirs(folder, exist_ok=True)
    stacks = os.open(os.path.join(folder, f"{os.getpid()}.stacks"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    faulthandler.register(signal.SIGRTMAX - 1, file=stacks, all_threads=True)
    path = os.path.join(folder, f"{os.getpid()}.json")
    with open(path + ".new", "w") as file:
        json.dump({"pid": os.getpid(), "parent": os.getppid(), "role": role, "index": index}, file)
    os.rename(path + ".new", path)


def end_with_parent():
    """A sampler waits for work for ever. The kernel could end it with its parent, but means the parent's thread.

    What the agent and torchrun start directly ends with them by the kernel's help, see `_rank.py`.
    """
    import time

    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def connect_soon():
    """A DGL server that knows all its clients sleeps for 3 s, to "wait for clients' receivers", then connects to them.

    A client is ready a few milliseconds after it has said who it is, and a connection that fails is tried again. So the
    server sleeps for 0.3 s. Everything else that it calls ``time`` for stays as it is.
    """
    name = "dgl.distributed.rpc_server"

    class Finder:
        def find_spec(self, wanted, _path=None, _target=None):
            if wanted != name:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module

            def load_and_change(module):
                load(module)
                module.time = Clock(module.time)

            spec.loader.exec_module = load_and_change
            return spec

    class Clock:
        def __init__(self, real):
            self.real = real

        def __getattr__(self, attribute):
            return getattr(self.real, attribute)

        def sleep(self, seconds):
            self.real.sleep(0.3 if seconds == 3 else seconds)

    sys.meta_path.insert(0, Finder())


def main():
    found = role_of_this_process()
    if found is None:
        return
    register(*found)
    sys.modules.setdefault("outdated", None)  # see tutorial_lib/__init__.py: it holds up every `import dgl`
    if found[0] == "server":
        connect_soon()
    if found[0] == "trainer":
        sys.excepthook = end_on_exception
        watch_sys_exit()
    started_directly = os.getpid() in (os.getsid(0), int(os.environ.get("TUTORIAL_TRAINER_PID", -1)))
    if not started_directly:  # a sampler, or the child of a shell
        end_with_parent()


if "TUTORIAL_LOG_DIR" in os.environ:
    let_dgl_load_without_graphbolt()
    main()

try:
    load_next_sitecustomize()
except Exception as error:  # as Python itself does with a broken sitecustomize
    print(f"Error in sitecustomize: {error!r}", file=sys.stderr)
