"""The checks that need a GPU: ``make test-gpu``. Needs torch; DGL for some. See ``tests/gpu/gpu_checks.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = map(str, (ROOT, ROOT / "notebooks", ROOT / "tests" / "gpu"))  # also where tutorial_lib is not installed

from gpu_checks import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
