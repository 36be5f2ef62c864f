"""What a rank is handed when it starts: the function and its arguments, and open files; forked or spawned alike.

``multiprocessing`` lets a forked process have them as they are and pickles them for a spawned one. Here is what it
would not say or do: name what cannot be pickled before a process starts, keep alive what exists only while it is
pickled, and unpickle in the rank only when its output already goes home.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import tempfile
import types
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

from tutorial_lib.errors import InputError

ARGUMENT_REMEDY = "Pass what is needed to make it (a path, a number) and make it in the rank; or use fork."


class SharedFile:
    """A nameless file that a rank writes and the parent reads; it is gone with the last of the two."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.number = self.file.fileno()

    def __reduce__(self) -> Any:
        return _received, (DupFd(self.number),)

    def read(self) -> bytes:
        """All of it. The position, which parent and rank share, stays."""
        length, parts = os.fstat(self.number).st_size, []
        while (position := sum(map(len, parts))) < length:
            parts.append(os.pread(self.number, length - position, position))
        return b"".join(parts)

    def text(self) -> str:
        """All of it, as text."""
        return self.read().decode(errors="replace")


def _received(copy: Any) -> SharedFile:
    file = SharedFile.__new__(SharedFile)
    file.number = copy.detach()
    return file


class Payload:
    """A function and its arguments. A spawned rank gets them as pickles, tensors in shared memory."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn, self.args = fn, args
        self.pickled: list[bytes] = []
        self.picklers: list[ForkingPickler] = []

    def load(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Function and arguments; in a spawned rank they are rebuilt now."""
        if self.pickled:
            self.fn, *args = (pickle.loads(one) for one in self.pickled)
            self.args = tuple(args)
        return self.fn, self.args

    def __getstate__(self) -> dict[str, Any]:
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        pickled = [self._pickle(self.fn, f"the function {name}", _function_remedy(name))]
        for number, value in enumerate(self.args):
            what = f"argument {number} of {name}, a {type(value).__qualname__},"
            pickled.append(self._pickle(value, what, ARGUMENT_REMEDY))
        return {"pickled": pickled}

    def _pickle(self, value: Any, what: str, remedy: str) -> bytes:
        """A pickler holds what it has pickled: passing objects must keep their files open until the rank has them."""
        stream = io.BytesIO()
        self.picklers.append(_Pickler(stream))
        try:
            self.picklers[-1].dump(value)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{what} cannot be pickled ({type(error).__name__}: {error})", remedy) from error
        return stream.getvalue()


class _Pickler(ForkingPickler):
    """Refuses what lives in a ``__main__`` that a child cannot import."""

    def reducer_override(self, obj: Any) -> Any:
        in_main = isinstance(obj, (type, types.FunctionType)) and getattr(obj, "__module__", None) == "__main__"
        if in_main and not _main_is_importable():
            raise InputError(
                f"{obj.__qualname__} is defined in a notebook cell (module __main__): "
                "a spawned process is a fresh interpreter and cannot import it",
                "Put it in a module, for example with %%writefile ranks.py, and import it from there; or use fork.",
            )
        return NotImplemented


def _main_is_importable() -> bool:
    """Whether a fresh interpreter can run this program's main module again; not so in Jupyter or with ``-c``."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (path is not None and os.path.exists(path))


def _function_remedy(name: str) -> str:
    if "<lambda>" in name or "<locals>" in name:
        return "A spawned process imports the function by its name: define it with def at the top level of a module."
    return "Define it with def at the top level of a module."
