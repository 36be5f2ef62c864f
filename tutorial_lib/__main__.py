"""``python -m tutorial_lib``."""

import os
import sys

for number in (0, 1, 2):  # if the parent process closed one of these, a file that is opened later would get its number
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)

# OpenMP reads this variable when torch is loaded. Threads that wait then release their cores. An epoch of one process
# takes 10 % longer on two idle cores, a third less if one core is busy, and a tenth of the time on a crowded computer.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    from tutorial_lib.tools.cli import main
except KeyboardInterrupt:  # Ctrl-C during the imports
    sys.exit(130)

if __name__ == "__main__":
    main()
