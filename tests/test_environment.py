"""The lock files, the conda files and pyproject.toml agree."""

import importlib.metadata
import re
import sys

import pytest
from commands import ROOT, load_script
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

make_environment_yml = load_script("make_environment_yml")
LOCKS = {"default": (ROOT / "requirements.lock").read_text(), "modern": (ROOT / "requirements-modern.lock").read_text()}
CONDA_FILES = {"default": "environment.yml", "modern": "environment-modern.yml"}


def locked(python: str, stack: str = "default") -> dict[str, str]:
    return dict(pin.split("==") for pin in make_environment_yml.locked_pins(LOCKS[stack], python))


def direct_requirements(stack: str) -> list[Requirement]:
    """Return the requirements of pyproject.toml, with the replacements of requirements-modern.in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.10,<3.14"
    extras = project["optional-dependencies"]
    found = [Requirement(text) for text in [*project["dependencies"], *extras["lessons"], *extras["dev"]]]
    lines = (ROOT / "requirements-modern.in").read_text().splitlines() if stack == "modern" else []
    others = {r.name: r for r in (Requirement(line) for line in lines if not line.startswith("#"))}
    return [others.get(requirement.name, requirement) for requirement in found]


@pytest.mark.parametrize("stack", LOCKS)
def test_conda_files_are_current_and_pinned(stack):
    file = CONDA_FILES[stack]
    text = (ROOT / file).read_text()
    assert text == make_environment_yml.format_conda_file(LOCKS[stack], file)
    conda = re.findall(r"^ +- ([\w.-]+)==(\S+)$", text, flags=re.MULTILINE)
    assert dict(conda) == locked(make_environment_yml.CONDA_PYTHON, stack)
    assert len(conda) > 100


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
