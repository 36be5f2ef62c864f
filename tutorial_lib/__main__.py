"""``python -m tutorial_lib``."""

import sys

try:
    from tutorial_lib.cli import main
except KeyboardInterrupt:  # Ctrl-C during the imports
    sys.exit(130)

if __name__ == "__main__":
    main()
