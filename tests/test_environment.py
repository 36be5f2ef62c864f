"""The lock files, the conda file and pyproject.toml agree."""

import importlib.metadata
import re
import sys

import pytest
import yaml
from commands import ROOT
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCKS = {"default": (ROOT / "requirements.lock").read_text(), "modern": (ROOT / "requirements-modern.lock").read_text()}


def locked(python: str, stack: str = "default") -> dict[str, str]:
    """Return the version of each package of a lock file for a Python version on Linux x86-64."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": "x86_64",
        "sys_platform": "linux",
        "implementation_name": "cpython",
    }
    lines = re.findall(r"^([A-Za-z0-9][^\\\n]*==[^\\\n]*)", LOCKS[stack], flags=re.MULTILINE)
    pins = [Requirement(line.strip()) for line in lines]
    pins = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}


def direct_requirements(stack: str) -> list[Requirement]:
    """Return the requirements of pyproject.toml, with the replacements of requirements-modern.in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.10,<3.14"
    extras = project["optional-dependencies"]
    found = [Requirement(text) for text in [*project["dependencies"], *extras["lessons"], *extras["dev"]]]
    lines = (ROOT / "requirements-modern.in").read_text().splitlines() if stack == "modern" else []
    others = {r.name: r for r in (Requirement(line) for line in lines if not line.startswith("#"))}
    return [others.get(requirement.name, requirement) for requirement in found]


def test_conda_installs_the_lock_file():
    """conda passes these lines to pip as a file of requirements in the same folder."""
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, _, packages = conda["dependencies"]
    assert python == "python=3.11"
    assert packages == {"pip": ["-r requirements.lock"]}
    assert len(locked("3.11")) > 100


VERSIONS = [(python, stack) for python in ("3.10", "3.11", "3.12") for stack in LOCKS]


@pytest.mark.parametrize(("python", "stack"), [*VERSIONS, ("3.13", "modern")])
def test_lock_satisfies_pyproject(python, stack):
    pins = locked(python, stack)
    for requirement in direct_requirements(stack):
        assert requirement.specifier.contains(pins[requirement.name]), requirement
    assert pins["dgl"] == "2.1.0"
    assert pins["torch"].startswith("2.13." if stack == "modern" else "2.2.1")


@pytest.mark.parametrize("stack", LOCKS)
def test_locked_packages_have_hashes_and_no_url(stack):
    assert not re.search("://|--index|--find-links", LOCKS[stack])
    for block in re.split(r"\n(?=[a-z0-9])", LOCKS[stack]):
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_environment_matches_lock():
    pins = locked(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert {name: importlib.metadata.version(name) for name in pins} == pins
