"""Write the conda files for Python 3.11 with the pins of the lock files."""

import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CONDA_PYTHON = "3.11"
HEADER = """\
# For conda users: conda env create -f {file} && conda activate {name}
# Written by scripts/make_environment_yml.py from {lock}; do not edit.
# The packages come through pip: the same files as in {lock}.
name: {name}
channels:
  - conda-forge
dependencies:
  - python={python}
  - pip
  - pip:
"""
# conda file: name of the environment, lock file
FILES = {
    "environment.yml": ("tutorial", "requirements.lock"),
    "environment-modern.yml": ("tutorial-modern", "requirements-modern.lock"),
}


def locked_pins(lock: str, python: str = CONDA_PYTHON) -> list[str]:
    """Return ``name==version`` of each package of a lock file for a Python version on Linux x86-64."""
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


def format_conda_file(lock: str, file: str = "environment.yml") -> str:
    """Return the content of a conda file from that of its lock file."""
    pins = locked_pins(lock)
    name, lock_name = FILES[file]
    header = HEADER.format(file=file, name=name, lock=lock_name, python=CONDA_PYTHON)
    return header + "".join(f"      - {pin}\n" for pin in pins) + "      - -e .\n"


if __name__ == "__main__":
    for file, (_, lock_name) in FILES.items():
        (ROOT / file).write_text(format_conda_file((ROOT / lock_name).read_text(), file))
