"""The checks that need a GPU: ``make test-gpu``. Needs torch; DGL for some. See ``tutorial_lib/gpu_checks.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also where tutorial_lib is not installed

from tutorial_lib.gpu_checks import main

if __name__ == "__main__":
    sys.exit(main())
