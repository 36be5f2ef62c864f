"""What DGL's tutorials call ``fix_openmp``: the function of a forked process in a fresh thread."""

import contextvars
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any


class FreshThread:
    """A function that runs in a new thread each time it is called. Made by ``fix_openmp``."""

    __name__: str
    __qualname__: str

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found: dict[str, Any] = {}
        context = contextvars.copy_context()

        def target() -> None:
            try:
                found["value"] = context.run(self.fn, *args, **kwargs)
            except BaseException as caught:  # also SystemExit: a thread would swallow it
                found["error"] = caught

        thread = threading.Thread(target=target, name=f"fix_openmp {self.__name__}", daemon=True)
        thread.start()
        thread.join()
        if "error" in found:
            raise found.pop("error")  # and keep it nowhere: its traceback holds this frame
        return found["value"]

    def __reduce__(self) -> Any:
        """As a decorator: by name, like any function. Called on a function: that function, wrapped again there."""
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        return self.__qualname__ if found is self else (fix_openmp, (self.fn,))


def fix_openmp(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for the function of a forked process: runs it in a fresh thread, so that OpenMP does not hang.

    GNU's libgomp keeps its pool of worker threads in a variable of the thread that opened the first parallel region.
    A fork copies that variable but not the workers: the child's copy of the thread waits at its next parallel
    region for workers that do not exist, for ever. A new thread of the child has no pool yet and makes its own.
    Reported as pytorch/pytorch#17199 (open), and cured like this in dmlc/dgl's multi-GPU examples; it is not in
    dgl 2.1.0 under this name, but ``dgl.multiprocessing.Process`` does the same. LLVM's and Intel's runtimes do not
    need it: they start anew in a forked child.

    What the function returns or raises (also SystemExit) arrives in the caller as if it had been called directly;
    nothing is pickled. Under spawn it is harmless. Each thread has its own gradient mode and CUDA device: set them
    inside the function.
    """
    return FreshThread(fn)
