"""End a process that makes no progress, and print where each of its threads waits (lesson 11)."""

import faulthandler
import os
import sys
import threading
import time


class Watchdog:
    """A thread that ends this process if the program does not call ``feed`` for some time.

    All ranks of a job wait for a rank that hangs. So all of them report at about the same time, and each of them waits
    for ``grace`` seconds before it ends. Otherwise, the launcher would stop the others before they have reported.

    Attributes:
        seconds: time limit between two calls of ``feed``. It must be longer than the slowest step of the program.
        grace: seconds between the report and the end of the process.
        fed: time of the last call of ``feed`` (``time.monotonic()``).
        stopped: ``threading.Event`` that ``stop`` sets. ``stopped.wait(seconds)`` waits, and returns True if it is set.
    """

    def __init__(self, seconds, grace=5.0):
        self.seconds, self.grace = seconds, grace
        self.fed, self.stopped = time.monotonic(), threading.Event()

    def start(self):
        """Start the thread. A daemon thread does not keep the process alive, and runs while exit handlers wait."""
        self.feed()
        threading.Thread(target=self.watch, name="watchdog", daemon=True).start()

    def stop(self):
        """End the thread."""
        self.stopped.set()

    def feed(self):
        """Start the time limit again, which ends ``seconds`` after this call."""
        self.fed = time.monotonic()

    def report(self):
        """Print the rank and the stacks of all threads to ``sys.stderr``.

        The first line is "watchdog: rank 1 has made no progress for 10 s", with the variable RANK (or 0 without it) and
        ``seconds``. ``faulthandler.dump_traceback`` prints the stacks. Flush the first line before, because the
        function bypasses the buffer of ``sys.stderr``.
        """
        rank = os.environ.get("RANK", "0")
        print(f"watchdog: rank {rank} has made no progress for {self.seconds} s", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr, all_threads=True)

    def watch(self):
        """Wait until the time limit of the last ``feed`` has passed, call ``report``, and wait for ``grace`` seconds.

        If the program has not called ``feed`` since the report, end the process with ``os._exit(1)``. This function
        skips exit handlers, because DGL's exit handler waits for all trainers. If the program has called ``feed``, it
        was only slow. Then watch again from the beginning. Return as soon as ``stopped`` is set.
        """
        while True:
            while (left := self.fed + self.seconds - time.monotonic()) > 0:
                if self.stopped.wait(left):
                    return
            fed = self.fed
            self.report()
            if self.stopped.wait(self.grace):
                return
            if self.fed == fed:
                os._exit(1)


def guard(task, watchdog):
    """Let ``watchdog.feed`` run before each call of ``task.read``, ``task.evaluate`` and ``task.save``.

    Replace these three methods of the object ``task`` by functions with the same arguments and results. So every step
    of ``train.fit`` starts the time limit again, and ``train.py`` does not change.
    """

    def feed_before(method):
        def call(*args, **options):
            watchdog.feed()
            return method(*args, **options)

        return call

    for name in ("read", "evaluate", "save"):
        setattr(task, name, feed_before(getattr(task, name)))
