"""The commands of ``python -m tutorial_lib``."""
