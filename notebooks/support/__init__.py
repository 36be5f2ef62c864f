"""What only the lessons need: pictures, checkers of exercises, small programs. ``tutorial_lib`` never imports it."""

import tutorial_lib  # noqa: F401  before DGL, which would otherwise warn of what tutorial_lib/__init__.py prevents
