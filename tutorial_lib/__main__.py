"""``python -m tutorial_lib``."""

import os
import sys

for number in (0, 1, 2):  # closed by who started us: a file that is opened later must not get one of these numbers
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)

try:
    from tutorial_lib.tools.cli import main
except KeyboardInterrupt:  # Ctrl-C during the imports
    sys.exit(130)

if __name__ == "__main__":
    main()
