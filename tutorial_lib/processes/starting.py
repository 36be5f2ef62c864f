"""How one rank is started: as a fresh interpreter (spawn) or as a copy of this process (fork)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import context, popen_spawn_posix, process, spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, BinaryIO

from tutorial_lib.errors import InputError
from tutorial_lib.processes.child import Task, flush_c, forked_main

PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
COMMAND = "import sys; sys.path.insert(0, {!r}); from tutorial_lib.processes.child import spawned_main; {}"

# Process id, a function that tells the exit code (None: it runs), one that releases what the parent holds for it.
Child = tuple[int, Callable[[], "int | None"], Callable[[], None]]

# Ends of pipes and sockets that only the parent may hold. Any process that it forks closes its copies: a life line
# with a second holder would not end when the parent dies.
PARENT_ENDS: set[Any] = set()


def _close_parent_ends() -> None:
    for end in PARENT_ENDS:
        with contextlib.suppress(OSError):
            end.close()
    PARENT_ENDS.clear()


os.register_at_fork(after_in_child=_close_parent_ends)


@dataclass
class Started:
    """The parent's view of one rank.

    Attributes:
        poll: returns the exit code, or None while the process runs.
        channel, lifeline: the parent's ends.
        output, stacks: nameless files that the rank writes to.
        release: forgets the process once it has ended.
        ready: it can be asked for its stack.
        report: (kind, body) of its last frame, once it has come.
    """

    rank: int
    pid: int
    poll: Callable[[], int | None]
    channel: socket.socket
    lifeline: BinaryIO
    output: BinaryIO
    stacks: BinaryIO
    buffer: bytearray = field(default_factory=bytearray)
    release: Callable[[], None] = lambda: None
    ready: bool = False
    report: tuple[bytes, bytes] | None = None

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the rank and to all processes that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)
        if self.poll() is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def close(self) -> None:
        """Close the parent's ends and files."""
        for end in (self.channel, self.lifeline):
            PARENT_ENDS.discard(end)
            end.close()
        self.output.close()
        self.stacks.close()
        with contextlib.suppress(ValueError):  # it still runs: only if even SIGKILL did not end it in time
            self.release()


def read_all(file: BinaryIO) -> str:
    """Content of a rank's file; its position, which parent and rank share, stays."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def start(settings: dict[str, Any], begin: Callable[[Task, BinaryIO], Child]) -> Started:
    """Make a rank's pipes and files, and start it with ``begin(task, output)``."""
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    lifeline = open(write_end, "wb", buffering=0)  # noqa: SIM115
    PARENT_ENDS.update((ours, lifeline))
    output, stacks = tempfile.TemporaryFile(buffering=0), tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    try:
        task = Task(channel=theirs.fileno(), lifeline=read_end, stacks=stacks.fileno(), **settings)
        child = begin(task, output)
    except BaseException:
        Started(-1, -1, lambda: 0, ours, lifeline, output, stacks).close()
        raise
    finally:
        theirs.close()
        os.close(read_end)
    ours.setblocking(False)
    pid, poll, release = child
    return Started(task.rank, pid, poll, ours, lifeline, output, stacks, release=release)


def start_forked(task: Task, output: BinaryIO, fn: Callable[..., Any], args: tuple[Any, ...]) -> Child:
    """Fork."""
    flush_c()  # or the rank would print once more what the parent's C code has printed
    child = multiprocessing.get_context("fork").Process(target=forked_main, args=(task, output.fileno(), fn, args))
    child.start()
    assert child.pid is not None
    return child.pid, lambda: child.exitcode, child.close


def start_spawned(task: Task, output: BinaryIO, keep: list[int]) -> Child:
    """Start a fresh interpreter that inherits the open files ``keep``."""
    command = COMMAND.format(PACKAGE_ROOT, "spawned_main(sys.argv[1])")
    child = subprocess.Popen(
        [spawn.get_executable(), *subprocess._args_from_interpreter_flags(), "-c", command, task.to_json()],  # type: ignore[attr-defined]
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[task.channel, task.lifeline, task.stacks, task.payload, *keep],
        env={**os.environ, **task.environment()},
        start_new_session=True,
    )
    return child.pid, child.poll, lambda: None


class _Spawning:
    """What ``multiprocessing`` asks while it pickles for a child: which open files must travel along."""

    DupFd = popen_spawn_posix._DupFd

    def __init__(self) -> None:
        self.keep: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        # A copy: what is pickled may be a passing object that closes its file (the tensors of a GraphBolt graph are).
        self.keep.append(os.dup(fd))
        return self.keep[-1]

    def close(self) -> None:
        while self.keep:
            os.close(self.keep.pop())


class _Pickler(ForkingPickler):
    """Notices what lives in ``__main__``; refuses it where a child cannot import that."""

    uses_main = False

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and getattr(obj, "__module__", None) == "__main__":
            self.uses_main = True
            if not main_is_importable():
                raise InputError(
                    f"{obj.__qualname__} is defined in a notebook cell (module __main__): "
                    "a spawned process is a fresh interpreter and cannot import it",
                    "Put it in a module, for example with %%writefile ranks.py, and import it from there; or use fork.",
                )
        return NotImplemented


def main_is_importable() -> bool:
    """Whether a fresh interpreter can run this program's main module again; not so in Jupyter or with ``-c``."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (path is not None and os.path.exists(path))


def make_payload(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[int, list[int]]:
    """Pickle function and arguments, once for all ranks, into a nameless file in memory.

    Tensors are not copied: torch moves them to shared memory and the ranks map the same pages.

    Returns:
        The open file and the open files that must travel along; the caller closes them all.

    Raises:
        InputError: one of them cannot be pickled; the message names it.
    """
    import torch.multiprocessing  # noqa: F401  (teaches ForkingPickler to share tensors)

    if getattr(process.current_process(), "_inheriting", False):
        raise InputError(
            "a spawned rank runs the main script again, and the script calls spawn() at its top level",
            "Put the call under: if __name__ == '__main__':",
        )
    spawning = _Spawning()
    name = getattr(fn, "__qualname__", repr(fn))
    context.set_spawning_popen(spawning)  # type: ignore[arg-type]
    try:
        function, main = _pickle(fn, f"the function {name}", _function_remedy(name))
        arguments = []
        for number, value in enumerate(args):
            body, uses = _pickle(value, f"argument {number} of {name}, a {type(value).__qualname__},", ARGUMENT_REMEDY)
            arguments.append(body)
            main = main or uses
        preparation = spawn.get_preparation_data("rank")
    except BaseException:
        spawning.close()
        raise
    finally:
        context.set_spawning_popen(None)  # type: ignore[arg-type]
    if not main:  # nothing in there needs the main script: do not run it again in every rank
        preparation = {key: value for key, value in preparation.items() if not key.startswith("init_main")}
    del preparation["start_method"]  # ranks keep the platform's own
    preparation["authkey"] = bytes(preparation["authkey"])
    payload = os.memfd_create("rank-payload")
    with open(payload, "wb", closefd=False) as file:
        pickle.dump((preparation, function, arguments), file)
    return payload, spawning.keep


ARGUMENT_REMEDY = "Pass what is needed to make it (a path, a number) and make it in the rank; or use fork."


def _function_remedy(name: str) -> str:
    if "<lambda>" in name or "<locals>" in name:
        return "A spawned process imports the function by its name: define it with def at the top level of a module."
    return "Define it with def at the top level of a module."


def _pickle(value: Any, what: str, remedy: str) -> tuple[bytes, bool]:
    import io

    stream = io.BytesIO()
    pickler = _Pickler(stream)
    try:
        pickler.dump(value)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what} cannot be pickled ({type(error).__name__}: {error})", remedy) from error
    return stream.getvalue(), pickler.uses_main
