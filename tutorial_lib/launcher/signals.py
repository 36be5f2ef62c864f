"""The signals that end a command."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


def how_it_was_ended(exit_code: object) -> str:
    """Return a sentence for a command that a person or a signal ended, or an empty text for other exit codes."""
    ended: dict[object, str] = {130: "interrupted", 143: "told to end (SIGTERM)", 129: "told to end (SIGHUP)"}
    return f"{ended[exit_code]}; everything that was started has been stopped" if exit_code in ended else ""


@contextlib.contextmanager
def first_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` at the first SIGTERM in the block, but not in threads. A second SIGTERM has its effect as before."""
    before = signal.getsignal(signal.SIGTERM)

    def handler(*_: object) -> None:
        signal.signal(signal.SIGTERM, before)
        act()

    handles = threading.current_thread() is threading.main_thread() and callable(before)
    if handles:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if handles:
            signal.signal(signal.SIGTERM, before)
