"""Python loads this file at the start of every process of a job, because its folder is in PYTHONPATH.

It registers the process, so that the agent of the machine can request its Python stacks. It ends a failed rank at once
and writes a ``failure`` event. It ends workers whose rank is gone. Startup files of the job, such as ``dgl_hook.py``,
add what a library needs. Programs that a script starts get the modules of the working directory and nothing else.
docs/patches.md lists what is replaced.
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


def run_startup_files():
    """Run the startup files of the job. Return the modules."""
    paths = [path for path in os.environ.get("TUTORIAL_STARTUP_FILES", "").split(os.pathsep) if path]
    return [run_file(f"tutorial_startup_{k}", path) for k, path in enumerate(paths)]


def find_modules_of_the_workspace():
    """Behind the standard library: a copy.py or random.py of the user's must not hide Python's own."""
    folder = os.environ.get("TUTORIAL_CWD")
    if folder and folder not in sys.path:
        packages = (k for k, path in enumerate(sys.path) if path.endswith("-packages"))
        sys.path.insert(next(packages, len(sys.path)), folder)


def find_role():
    """Return (role, index) of this process on its machine, or None for a process that the job does not know.

    The agent starts each process of a role in a session of its own. A command that needs a shell is a child of it.
    """
    if "--multiprocessing-fork" in sys.orig_argv:  # spawned by a rank
        import json

        roles = json.loads(os.environ.get("TUTORIAL_WORKER_ROLES", "{}"))
        found = (role for name, role in roles.items() if os.environ.get(name, "0") != "0")
        return next(found, "worker"), int(os.environ.get("LOCAL_RANK", 0))
    own = {os.getpid()} | ({os.getppid()} if os.environ.get("TUTORIAL_SHELL") else set())
    if os.environ.get("TUTORIAL_ROLE") and os.getsid(0) in own:
        return os.environ["TUTORIAL_ROLE"], int(os.environ["TUTORIAL_INDEX"])
    return None


def register(role, index):
    """Create a file named after this process; on a signal, faulthandler writes all Python stacks to it."""
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

    The kernel ends the processes that the agent starts directly, see `children.py`.
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


def end_rank_on_exception(kind, error, trace):
    """For sys.excepthook: the traceback as always, the event, and the end."""
    sys.__excepthook__(kind, error, trace)
    end(os.environ["TUTORIAL_ROLE"], error)


def watch_sys_exit():
    """``sys.exit(3)`` raises SystemExit, which no excepthook sees; remember the code and end before DGL's handler."""
    last, original = [None], sys.exit

    def exit(code=None):
        last[0] = code
        original(code)

    def before_exit_handlers():
        if last[0] not in (None, 0, False):
            end(os.environ["TUTORIAL_ROLE"], SystemExit(last[0]), last[0] & 0xFF if isinstance(last[0], int) else 1)

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


def take_part():
    """Prepare this process for the job, at its start or after it was forked."""
    modules = run_startup_files()
    if (found := find_role()) is None:
        return
    register(*found)
    is_worker = "--multiprocessing-fork" in sys.orig_argv
    if not is_worker and os.environ["TUTORIAL_RANKED"] == "1":
        sys.excepthook = end_rank_on_exception
        watch_sys_exit()
        use_temporary_folder_of_job()
    for module in modules:
        module.start(found[0], end)
    if os.getpid() != os.getsid(0):  # a worker, or the child of a shell
        end_with_parent()


if "TUTORIAL_LOG_DIR" in os.environ:
    find_modules_of_the_workspace()
    take_part()

try:
    load_next_sitecustomize()
except Exception as error:  # as Python itself does with a broken sitecustomize
    print(f"Error in sitecustomize: {error!r}", file=sys.stderr)
