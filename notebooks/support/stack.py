"""Lessons on a stack without GraphBolt (docs/installation.md) skip some cells and print the reason."""

from IPython.core.getipython import get_ipython

from tutorial_lib.compat.stack import graphbolt_problem


def has_graphbolt(skipped: str = "The rest of this cell is") -> bool:
    """Return whether DGL has GraphBolt for this torch. If not, print one sentence with the reason.

    DGL is not imported, because lesson 08 first chooses its backend.
    """
    why = graphbolt_problem()
    if why:
        print(f"{skipped} skipped because it needs GraphBolt, and {why}.")
    return why is None


def skip_without_graphbolt() -> None:
    """Skip the cells below the current one if DGL has no GraphBolt for this torch, and print one sentence."""
    shell = get_ipython()
    if has_graphbolt("The rest of this notebook is") or shell is None:
        return
    if _skip not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_skip)


def _skip(lines: list[str]) -> list[str]:
    """Replace a cell by one that prints that it is skipped, except the cell that calls ``skip_without_graphbolt``."""
    if any(skip_without_graphbolt.__name__ in line for line in lines):
        return lines
    return ["print('Skipped: this cell needs GraphBolt.')\n"]
