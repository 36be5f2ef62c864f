"""One machine, many processes: start ranks, bring home what they return, print or raise, and leave nothing behind.

    ranks      spawn, fork: torch starts the ranks; wait, stop, collect           (in the parent)
    child      its output, life line and process group, then the user's function  (in a rank)
    failures   how a failed rank is told
    forking    fix_openmp, for what a fork breaks

Needs torch and the standard library only, on Linux.
"""

from support.processes.failures import RankFailed, RanksTimedOut
from support.processes.forking import fix_openmp
from support.processes.ranks import fork, spawn

__all__ = ["RankFailed", "RanksTimedOut", "fix_openmp", "fork", "spawn"]
