"""The first plugin of ``make test`` (see the Makefile): nbformat is imported in 0.2 s instead of 1.6 s.

nbformat imports jsonschema, which imports a slow parser of IRIs in every worker of pytest-xdist. Without this parser,
jsonschema does not validate IRIs. Notebooks contain none.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  an import of it fails
