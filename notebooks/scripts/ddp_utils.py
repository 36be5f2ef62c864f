"""What the tutorial keeps in its module utils."""

import functools
import threading


def prepare_mp(graph):
    """Build all sparse formats of a graph now, so that ranks which start later share them."""
    graph.create_formats_()


def fix_openmp(function):
    """Run a function in a thread of its own: a forked child's new thread makes new OpenMP workers."""

    @functools.wraps(function)
    def in_a_thread(*args):
        thread = threading.Thread(target=function, args=args)
        thread.start()
        thread.join()

    return in_a_thread
