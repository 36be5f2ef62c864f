"""Loaded by Python at the start of every server, trainer and sampler of a job. Scripts need no change: this folder is
on PYTHONPATH.

It makes a trainer that fails end at once, and say why: DGL's client registers an exit handler that waits for all other
clients, which wait for this one. So a trainer of ours ends by ``os._exit`` after its traceback, and leaves a
``failure`` event. A sampler whose trainer is gone ends, too, and the machine's agent can ask for Python stacks.

A script can ``import dgl`` on any torch, and import what lies in the job's working directory. Only this holds for
programs that a script starts, too. What DGL itself does is changed in nothing; docs/patches.md lists what is replaced.
"""

import importlib.util
import os
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))


def run_file(name, path):
    """A module from a file, whatever ``sys.path`` would find."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_next_sitecustomize():
    """Another ``sitecustomize`` that this file hides (a distribution's, a user's) still runs."""
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder or ".") != HERE and os.path.isfile(path):
            run_file("sitecustomize_of_the_user", path)
            return


def change_what_import_dgl_does():
    """As ``tutorial_lib/__init__.py`` does; the file is loaded by its path, for a script may hide our package."""
    run_file("tutorial_lib_stack", os.path.normpath(os.path.join(HERE, "..", "..", "compat", "stack.py"))).install()


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
    """A file whose name says who we are; it gets all Python stacks on a signal that nobody else uses."""
    import faulthandler
    import signal

    folder = os.path.join(os.environ["TUTORIAL_LOG_DIR"], ".processes")
    os.makedirs(folder, exist_ok=True)
    with open("/proc/self/stat") as stat:
        started = stat.read().rsplit(")", 1)[1].split()[19]  # the number may later be another process's
    name = f"{role}-{index}-{os.getpid()}-{os.getppid()}-{started}"
    stacks = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    faulthandler.register(signal.SIGRTMAX - 1, file=stacks, all_threads=True)


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


def end(role, error, code=1):
    """Leave a ``failure`` event as `trainer.events` does (a stranger's script imports nothing of ours), and end."""
    import json
    import time
    import traceback

    try:
        rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        message = (str(error).strip().splitlines() or [""])[0][:1000]
        event = {"kind": "failure", "time": time.time(), "rank": rank, "local_rank": local_rank, "role": role}
        event |= {"exception": type(error).__name__, "message": message}
        event["traceback"] = [line[:1000] for line in lines[-20:]]
        with open(os.path.join(os.environ["TUTORIAL_LOG_DIR"], f"events-{local_rank}.jsonl"), "a") as file:
            file.write(json.dumps(event) + "\n")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def end_trainer_on_exception(kind, error, trace):
    """For sys.excepthook: the traceback as always, the event, and the end."""
    sys.__excepthook__(kind, error, trace)
    end("trainer", error)


def watch_sys_exit():
    """``sys.exit(3)`` raises SystemExit, which no excepthook sees; remember the code and end before DGL's handler."""
    last, original = [None], sys.exit

    def exit(code=None):
        last[0] = code
        original(code)

    def before_exit_handlers():
        if last[0] not in (None, 0, False):
            end("trainer", SystemExit(last[0]), last[0] & 0xFF if isinstance(last[0], int) else 1)

    register_first = getattr(threading, "_register_atexit", None)  # its handlers run before those of `atexit`
    if register_first is not None:
        register_first(before_exit_handlers)
        sys.exit = exit


def use_temporary_folder_of_job():
    """The sockets over which samplers hand on their batches lie in a folder that the machine's agent removes.

    Those of a killed process would stay, and in a folder with a long name they could not be made at all.
    """
    from multiprocessing.process import current_process

    config = getattr(current_process(), "_config", None)
    if isinstance(config, dict) and "TUTORIAL_SOCKETS" in os.environ:
        config["tempdir"] = os.environ["TUTORIAL_SOCKETS"]


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
            if getattr(getattr(self, "_target", None), "__module__", None) != "dgl.distributed.dist_context":
                raise
            end("sampler", error)

    BaseProcess.run = run


def take_part():
    """What a process of the job does at its start."""
    if (found := role_of_this_process()) is None:
        return
    register(*found)
    if found[0] == "trainer":
        sys.excepthook = end_trainer_on_exception
        watch_sys_exit()
        use_temporary_folder_of_job()
    elif found[0] == "sampler":
        end_sampler_on_exception()
    # Else a sampler, or the child of a shell.
    if os.getpid() not in (os.getsid(0), int(os.environ.get("TUTORIAL_TRAINER_PID", -1))):
        end_with_parent()


if "TUTORIAL_LOG_DIR" in os.environ:
    find_modules_of_the_workspace()
    change_what_import_dgl_does()
    take_part()

try:
    load_next_sitecustomize()
except Exception as error:  # as Python itself does with a broken sitecustomize
    print(f"Error in sitecustomize: {error!r}", file=sys.stderr)
