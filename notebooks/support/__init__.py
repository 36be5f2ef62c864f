"""Code that only the lessons need: pictures, checkers of exercises and small programs.

``tutorial_lib`` does not import this package.
"""

import tutorial_lib  # noqa: F401  before DGL, which would otherwise warn of what tutorial_lib/__init__.py prevents
