"""A second solution of watchdog.py, written from its docstrings and public tests."""

import faulthandler
import os
import sys
import time


class Watchdog:
    def feed(self):
        self.fed = time.monotonic()

    def report(self):
        rank = os.environ.get("RANK", 0)
        print(f"watchdog: rank {rank} has made no progress for {self.seconds} s", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr, all_threads=True)

    def watch(self):
        while not self.stopped.wait(max(0.0, self.fed + self.seconds - time.monotonic())):
            fed = self.fed
            if time.monotonic() < fed + self.seconds:
                continue
            self.report()
            if not self.stopped.wait(self.grace) and self.fed == fed:
                os._exit(1)


def guard(task, watchdog):
    def feed_before(method):
        def run(*args, **options):
            watchdog.feed()
            return method(*args, **options)

        return run

    for name in ("read", "evaluate", "save"):
        setattr(task, name, feed_before(getattr(task, name)))
