"""``fix_openmp`` of DGL's tutorials, which runs the function of a forked process in a new thread."""

import contextvars
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any


class FreshThread:
    """A function that runs in a new thread each time it is called. ``fix_openmp`` returns such objects."""

    __name__: str
    __qualname__: str

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome: dict[str, Any] = {}
        context = contextvars.copy_context()

        def target() -> None:
            try:
                outcome["value"] = context.run(self.fn, *args, **kwargs)
            except BaseException as caught:  # also SystemExit, which a thread would ignore
                outcome["error"] = caught

        thread = threading.Thread(target=target, name=f"fix_openmp {self.__name__}", daemon=True)
        thread.start()
        thread.join()
        if "error" in outcome:
            raise outcome.pop("error")  # without a reference, because the traceback refers to this frame
        return outcome["value"]

    def __reduce__(self) -> Any:
        """Pickle a decorated function by its name, and other functions together with this wrapper."""
        named: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            named = getattr(named, part, None)
        return self.__qualname__ if named is self else (fix_openmp, (self.fn,))


def fix_openmp(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the function of a forked process to run in a new thread, so that OpenMP does not hang.

    GNU's libgomp stores its pool of worker threads in a variable of the thread that opened the first parallel region. A
    fork copies this variable but not the workers. At its next parallel region, the copied thread waits forever for
    workers that do not exist. A new thread of the child has no pool and creates one. The problem is reported as
    pytorch/pytorch#17199 (open), and DGL's multi-GPU examples solve it in this way. DGL 2.1.0 has no function of this
    name, but ``dgl.multiprocessing.Process`` does the same. The OpenMP runtimes of LLVM and Intel do not need this,
    because they start again in a forked child.

    Results and exceptions (also SystemExit) of the function reach the caller without pickling. The decorator has no
    effect on spawned processes. Each thread has a separate gradient mode and CUDA device, so set them in the function.
    """
    return FreshThread(fn)
