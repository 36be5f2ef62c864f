"""Functions that the tutorial imports from its module utils."""

import functools
import threading


def prepare_mp(graph):
    """Build all sparse formats of a graph now, so that ranks started later share them."""
    graph.create_formats_()


def fix_openmp(function):
    """Make a function run in a new thread. In a forked child, a new thread creates new OpenMP workers."""

    @functools.wraps(function)
    def in_a_thread(*args):
        thread = threading.Thread(target=function, args=args)
        thread.start()
        thread.join()

    return in_a_thread
