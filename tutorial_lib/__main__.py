"""``python -m tutorial_lib``."""

import os
import sys

for number in (0, 1, 2):  # closed by who started us: a file that is opened later must not get one of these numbers
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)

# Read when torch is loaded: threads that wait give their cores to others. On two idle cores an epoch of one process is
# a tenth longer by it, with one core busy a third shorter, and on a crowded computer ten times faster.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    from tutorial_lib.tools.cli import main
except KeyboardInterrupt:  # Ctrl-C during the imports
    sys.exit(130)

if __name__ == "__main__":
    main()
