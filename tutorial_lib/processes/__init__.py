"""One machine, many processes: start ranks, bring home what they return, print or raise, and leave nothing behind.

    ranks      spawn, fork: torch starts the ranks; wait, stop, collect           (in the parent)
    child      its output, life line and process group, then the user's function  (in a rank)
    failures   how a failed rank is told
    forking    may this process fork now, and what to do before: fork_safety, fix_openmp, prepare_mp
    devices    which device and how many threads for each rank

Needs torch and the standard library only, on Linux.
"""

from tutorial_lib.processes.devices import DevicePlan, device_plan
from tutorial_lib.processes.failures import RankFailed, RanksTimedOut
from tutorial_lib.processes.forking import ForkSafety, fix_openmp, fork_safety, prepare_mp
from tutorial_lib.processes.ranks import fork, spawn

__all__ = [
    "DevicePlan",
    "ForkSafety",
    "RankFailed",
    "RanksTimedOut",
    "device_plan",
    "fix_openmp",
    "fork",
    "fork_safety",
    "prepare_mp",
    "spawn",
]
