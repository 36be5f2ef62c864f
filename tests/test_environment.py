"""The lock files, the conda files and pyproject.toml say the same."""

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

spec = importlib.util.spec_from_file_location("make_environment_yml", ROOT / "scripts" / "make_environment_yml.py")
make_environment_yml = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_environment_yml)

LOCKS = {"default": (ROOT / "requirements.lock").read_text(), "modern": (ROOT / "requirements-modern.lock").read_text()}
CONDA_FILES = {"default": "environment.yml", "modern": "environment-modern.yml"}
both_stacks = pytest.mark.parametrize("stack", LOCKS)


def locked(python: str, stack: str = "default") -> dict[str, str]:
    return dict(pin.split("==") for pin in make_environment_yml.locked_pins(LOCKS[stack], python))


def direct_requirements(stack: str) -> list[Requirement]:
    """Those of pyproject.toml; for the modern stack, with the few that requirements-modern.in puts in their place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["dev"]]
    lines = (ROOT / "requirements-modern.in").read_text().splitlines() if stack == "modern" else []
    others = {r.name: r for r in (Requirement(line) for line in lines if not line.startswith("#"))}
    return [others.get(requirement.name, requirement) for requirement in found]


@both_stacks
def test_conda_files_have_the_pins_of_the_lock(stack):
    conda = re.findall(r"^ +- ([\w.-]+)==(\S+)$", (ROOT / CONDA_FILES[stack]).read_text(), flags=re.MULTILINE)
    assert dict(conda) == locked(make_environment_yml.CONDA_PYTHON, stack)
    assert len(conda) > 100


@both_stacks
def test_conda_files_are_what_the_script_writes(stack):
    file = CONDA_FILES[stack]
    assert (ROOT / file).read_text() == make_environment_yml.environment_yml(LOCKS[stack], file)


VERSIONS = [(python, stack) for python in ("3.10", "3.11", "3.12") for stack in LOCKS]


@pytest.mark.parametrize(("python", "stack"), [*VERSIONS, ("3.13", "modern")])
def test_lock_satisfies_pyproject(python, stack):
    pins = locked(python, stack)
    for requirement in direct_requirements(stack):
        assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_default_stack():
    pins = locked("3.11")
    assert (pins["torch"], pins["dgl"], pins["torchdata"]) == ("2.2.1", "2.1.0", "0.7.1")
    assert pins["numpy"].startswith("1.")


def test_modern_stack():
    """The same DGL with a current torch and numpy."""
    pins = locked("3.11", "modern")
    assert pins["dgl"] == "2.1.0"
    assert pins["torch"].startswith("2.13.")


@both_stacks
def test_every_package_in_the_lock_has_hashes_and_no_address(stack):
    lock = LOCKS[stack]
    assert "://" not in lock
    assert "--index" not in lock
    assert "--find-links" not in lock
    for block in re.split(r"\n(?=[a-z0-9])", lock):
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_this_environment_is_the_locked_one():
    pins = locked(f"{sys.version_info.major}.{sys.version_info.minor}")
    wrong = {
        name: (importlib.metadata.version(name), version)
        for name, version in pins.items()
        if importlib.metadata.version(name) != version
    }
    assert not wrong


def test_python_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.10,<3.14"
    assert project["name"] == "tutorial_lib"
