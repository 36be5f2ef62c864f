"""Loaded by Python at the start of every server, trainer and sampler of a job. Scripts need no change: this folder is
on PYTHONPATH.

It makes a trainer that fails end at once, and say why. DGL's client registers an exit handler that waits for all other
clients: a script that raises would print its traceback and then wait there for ever, with the others waiting for it.
So a trainer of ours ends by ``os._exit`` after its traceback, and leaves a ``failure`` event.

It lets the machine's agent ask any of these processes for its Python stack (`cluster/stacks.py`), which works also
while the process waits inside C++ code. And it ends a sampler whose trainer is gone.

It takes three seconds of sleep out of the start of every job.

It lets a script say ``import dgl`` on any torch (`graphbolt_stub.py`).

It lets a script in a sub-folder import what lies in the job's working directory.

Programs that a script starts are left alone, but for the last two points.
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
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "compat", "graphbolt_stub.py")
    spec = importlib.util.spec_from_file_location("tutorial_lib_graphbolt_stub", os.path.normpath(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


def find_modules_of_the_workspace():
    """Behind the standard library: a copy.py or random.py of the user's must not hide Python's own."""
    folder = os.environ.get("TUTORIAL_CWD")
    if folder and folder not in sys.path:
        packages = (k for k, path in enumerate(sys.path) if path.endswith("-packages"))
        sys.path.insert(next(packages, len(sys.path)), folder)


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
        member = {"pid": os.getpid(), "parent": os.getppid(), "role": role, "index": index}
        with open("/proc/self/stat") as stat:  # our start time: the number may later be another process's
            member["started"] = int(stat.read().rsplit(")", 1)[1].split()[19])
        json.dump(member, file)
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


def write_event(role, kind, message, lines):
    """As ``tutorial_lib.trainer.events``, but without importing anything of ours into a stranger's script."""
    import json
    import time

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    event = {"kind": "failure", "time": time.time(), "rank": rank, "local_rank": local_rank, "role": role}
    event |= {"exception": kind, "message": message[:1000], "traceback": [line[:1000] for line in lines[-20:]]}
    with open(os.path.join(os.environ["TUTORIAL_LOG_DIR"], f"events-{local_rank}.jsonl"), "a") as file:
        file.write(json.dumps(event) + "\n")


def tell(role, error):
    """The event of an exception that nobody has caught, and the end."""
    import traceback

    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
    end(role, 1, type(error).__name__, (str(error).strip().splitlines() or [""])[0], lines)


def end_on_exception(role):
    """For sys.excepthook: the traceback as always, the event, and the end."""

    def hook(kind, error, trace):
        sys.__excepthook__(kind, error, trace)
        tell(role, error)

    return hook


def end(role, code, kind, message, lines):
    try:
        write_event(role, kind, message, lines)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def end_sampler_on_exception():
    """DGL's sampler prints its exception, and then its exit handler waits for all other clients, which wait for it.

    Only what DGL itself runs in a process is changed. An exception in a process that a script has started is for
    the script to deal with.
    """
    from multiprocessing.process import BaseProcess

    original = BaseProcess.run

    def run(self):
        try:
            original(self)
        except Exception as error:
            if getattr(self._target, "__module__", None) != "dgl.distributed.dist_context":
                raise
            tell("sampler", error)

    BaseProcess.run = run


def use_temporary_folder_of_job():
    """The sockets over which samplers hand on their batches lie in a folder that the machine's agent removes.

    Those of a killed process would stay, and in a folder with a long name they could not be made at all.
    """
    from multiprocessing.process import current_process

    current_process()._config["tempdir"] = os.environ["TUTORIAL_SOCKETS"]


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
            end("trainer", code & 0xFF, "SystemExit", str(last[0]), [f"SystemExit: {last[0]}"])

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
        sys.excepthook = end_on_exception("trainer")
        watch_sys_exit()
        if "TUTORIAL_SOCKETS" in os.environ:
            use_temporary_folder_of_job()
    if found[0] == "sampler":
        end_sampler_on_exception()
    started_directly = os.getpid() in (os.getsid(0), int(os.environ.get("TUTORIAL_TRAINER_PID", -1)))
    if not started_directly:  # a sampler, or the child of a shell
        end_with_parent()


if "TUTORIAL_LOG_DIR" in os.environ:
    find_modules_of_the_workspace()
    let_dgl_load_without_graphbolt()
    main()

try:
    load_next_sitecustomize()
except Exception as error:  # as Python itself does with a broken sitecustomize
    print(f"Error in sitecustomize: {error!r}", file=sys.stderr)
