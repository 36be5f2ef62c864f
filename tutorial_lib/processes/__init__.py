"""One machine, many processes: start ranks, bring home what they return, print or raise, and leave nothing behind.

Needs torch and the standard library only, on Linux.

spawn / fork            start the ranks, collect, stop                    (runner.py, in the parent)
  └─ torch's start_processes, a fresh interpreter or a copy of this process
       └─ rank_main     output, life line, process group, fn(rank, ...)   (child.py, in the rank)
  └─ Payload            what must be pickled, and how it travels          (passing.py)
  └─ wait, failure_of   what the ranks report; the first failure; stop    (collecting.py, in the parent)
fix_openmp, prepare_mp  what to do before a fork                           (openmp.py)
fork_safety             may this process fork now, and why                 (safety.py)
device_plan             which device and how many threads for each rank    (devices.py)
pss_of                  what a process really adds to the used memory      (memory.py)
"""

from tutorial_lib.processes.devices import DevicePlan, device_plan
from tutorial_lib.processes.failures import RankFailed, RanksTimedOut
from tutorial_lib.processes.memory import pss_of
from tutorial_lib.processes.openmp import fix_openmp, prepare_mp
from tutorial_lib.processes.runner import fork, spawn
from tutorial_lib.processes.safety import ForkSafety, OpenMPRuntime, fork_safety

__all__ = [
    "DevicePlan",
    "ForkSafety",
    "OpenMPRuntime",
    "RankFailed",
    "RanksTimedOut",
    "device_plan",
    "fix_openmp",
    "fork",
    "fork_safety",
    "prepare_mp",
    "pss_of",
    "spawn",
]
