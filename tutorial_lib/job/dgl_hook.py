"""Startup file of DGL jobs, see ``sitecustomize.py``: ``import dgl`` works with any torch, and failed samplers end."""

import os
import runpy


def end_sampler_on_exception(report_and_exit):
    """End a DGL sampler that fails. Its exit handler would wait for all other clients, which wait for the sampler.

    Only processes that DGL itself starts are changed. A script handles the exceptions of processes that it starts.
    """
    from multiprocessing.process import BaseProcess

    original = BaseProcess.run

    def run(self):
        try:
            original(self)
        except Exception as error:
            if getattr(getattr(self, "_target", None), "__module__", None) != "dgl.distributed.dist_context":
                raise
            report_and_exit("sampler", error)

    BaseProcess.run = run


def start_role(role, report_and_exit):
    """Called in each process that has a role. ``report_and_exit(role, error)`` ends the process."""
    if role == "sampler":
        end_sampler_on_exception(report_and_exit)


# As ``tutorial_lib/__init__.py`` does. A script may hide our package, so this uses its path.
STACK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compat", "stack.py")
runpy.run_path(os.path.normpath(STACK))["install"]()
