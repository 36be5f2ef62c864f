"""Python loads this file at the start of every process of a job, because its folder is in PYTHONPATH.

The hook registers the process, so that the agent can request Python stacks. A failed rank exits at once, and workers
exit when their rank has ended. Startup files of the job, such as ``dgl_hook.py``, add the changes for a library. The
hook does not change programs that a script starts. docs/patches.md lists the replacements.
"""

import json
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def run_file(path):
    """Run a Python file, whatever its name, and return its variables."""
    names: dict = {"__name__": "startup_file", "__file__": path}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), names)
    return names


def run_next_sitecustomize():
    """Run the ``sitecustomize`` of a user or a distribution, which this file hides."""
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder or ".") != HERE and os.path.isfile(path):
            run_file(path)
            return


def find_role():
    """Return the role and the local index of this process, or (None, None) for a process outside the job."""
    if "--multiprocessing-fork" in sys.orig_argv:  # spawned by a rank
        roles = json.loads(os.environ.get("TUTORIAL_WORKER_ROLES", "{}"))
        matching = [role for name, role in roles.items() if os.environ.get(name, "0") != "0"]
        return matching[0] if matching else "worker", os.environ.get("LOCAL_RANK", "0")
    # The agent starts each process of a role in a session of its own. A command that needs a shell is a child of it.
    in_job = os.getsid(0) in (os.getpid(), os.getppid() if "TUTORIAL_SHELL" in os.environ else 0)
    return (os.environ.get("TUTORIAL_ROLE"), os.environ.get("TUTORIAL_INDEX")) if in_job else (None, None)


def register(role, local_index):
    """Create a file with the name of this process. On a signal, faulthandler writes all Python stacks to the file."""
    import faulthandler
    import signal

    folder = os.path.join(os.environ["TUTORIAL_LOG_DIR"], ".processes")
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, f"{role}-{local_index}-{os.getpid()}")
    stacks = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    faulthandler.register(signal.SIGRTMAX - 1, file=stacks, all_threads=True)


def report_and_exit(role, error, code=1):
    """Leave a ``failure`` event as `trainer.events` does (the user's script does not import it), and exit."""
    import traceback

    try:
        event = {"kind": "failure", "time": time.time(), "role": role, "exception": type(error).__name__}
        event.update(rank=int(os.environ["RANK"]), local_rank=int(os.environ["LOCAL_RANK"]))
        event["message"] = str(error).strip().split("\n")[0][:1000]
        lines = "".join(traceback.format_exception(error)).splitlines()
        event["traceback"] = [line[:1000] for line in lines[-20:]]
        with open(os.path.join(os.environ["TUTORIAL_LOG_DIR"], f"events-{event['local_rank']}.jsonl"), "a") as file:
            file.write(json.dumps(event) + "\n")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def end_failed_rank(role):
    """End this rank after an uncaught exception or ``sys.exit(3)``. DGL's exit handler would wait for other ranks."""
    # No excepthook sees a SystemExit, so ``sys.exit`` stores its code for a handler that runs before those of `atexit`.
    code = None

    def excepthook(kind, error, trace):
        sys.__excepthook__(kind, error, trace)
        report_and_exit(role, error)

    def exit(status=None):
        nonlocal code
        code = status
        raise SystemExit(status)

    def before_exit_handlers():
        if code not in (None, 0, False):
            report_and_exit(role, SystemExit(code), code & 0xFF if isinstance(code, int) else 1)

    sys.excepthook, sys.exit = excepthook, exit
    threading._register_atexit(before_exit_handlers)  # pyright: ignore[reportAttributeAccessIssue]


def exit_with_parent(parent):
    """End a worker, which would wait for work forever. The kernel could also end it with a thread of its parent."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def join_job():
    """Prepare this process for the job, at its start or after it was forked."""
    startup = [run_file(path) for path in os.environ.get("TUTORIAL_STARTUP_FILES", "").split(os.pathsep) if path]
    role, local_index = find_role()
    if role is None:
        return
    register(role, local_index)
    if "--multiprocessing-fork" not in sys.orig_argv and os.environ["TUTORIAL_RANKED"] == "1":
        from multiprocessing.process import current_process

        end_failed_rank(role)
        # For the sockets of samplers, whose paths must be short. The agent removes this folder.
        getattr(current_process(), "_config", {})["tempdir"] = os.environ.get("TUTORIAL_SOCKETS")
    for names in startup:
        names["start_role"](role, report_and_exit)
    if os.getpid() != os.getsid(0):  # a worker, or the child of a shell
        threading.Thread(target=exit_with_parent, args=[os.getppid()], daemon=True).start()


if "TUTORIAL_LOG_DIR" in os.environ:
    join_job()

try:
    run_next_sitecustomize()
except Exception as error:  # as Python itself does with a broken sitecustomize
    print(f"Error in sitecustomize: {error!r}", file=sys.stderr)
