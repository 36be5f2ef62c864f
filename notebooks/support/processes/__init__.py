"""Run a function on several ranks of one machine, and return their results or raise the first error.

    ranks      spawn and fork: torch starts the ranks, then wait, stop and collect    (in the parent)
    child      output, lifeline and process group of a rank, then the user's function  (in a rank)
    failures   the errors of a failed rank
    forking    fix_openmp, a repair for forked processes
    attempts   stderr_of_children, the messages of processes that a notebook starts
    link       bytes_sent, limit_rate and note_all_reduces, the network traffic of a rank

This package needs torch, the standard library, and Linux.
"""

from support.processes.failures import RankFailed, RanksTimedOut
from support.processes.forking import fix_openmp
from support.processes.link import bytes_sent, limit_rate, note_all_reduces
from support.processes.ranks import fork, spawn

__all__ = ["RankFailed", "RanksTimedOut", "bytes_sent", "fix_openmp", "fork", "limit_rate", "note_all_reduces", "spawn"]
