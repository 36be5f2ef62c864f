"""``python -m tutorial_lib``."""

from tutorial_lib.cli import main

main()
