"""Write environment.yml (conda) from requirements.lock: the same pins, for Python 3.11."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CONDA_PYTHON = "3.11"
HEADER = f"""\
# For conda users: conda env create -f environment.yml && conda activate tutorial
# Written by scripts/make_environment_yml.py from requirements.lock; do not edit.
# The packages come through pip: the same files as in requirements.lock.
name: tutorial
channels:
  - conda-forge
dependencies:
  - python={CONDA_PYTHON}
  - pip
  - pip:
"""


def locked_pins(lock: str, python: str = CONDA_PYTHON) -> list[str]:
    """``name==version`` of each package in the lock that applies to a Python version on Linux x86-64."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": "x86_64",
        "sys_platform": "linux",
        "implementation_name": "cpython",
    }
    pins = []
    for line in re.findall(r"^([A-Za-z0-9][^\\\n]*==[^\\\n]*)", lock, flags=re.MULTILINE):
        requirement = Requirement(line.strip())
        if requirement.marker is None or requirement.marker.evaluate(environment):
            pins.append(f"{requirement.name}{requirement.specifier}")
    return pins


def environment_yml(lock: str) -> str:
    """Content of environment.yml."""
    pins = locked_pins(lock)
    return HEADER + "".join(f"      - {pin}\n" for pin in pins) + "      - -e .\n"


if __name__ == "__main__":
    text = environment_yml((ROOT / "requirements.lock").read_text())
    (ROOT / "environment.yml").write_text(text)
