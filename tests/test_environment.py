"""requirements.lock, environment.yml and pyproject.toml say the same."""

from __future__ import annotations

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

LOCK = (ROOT / "requirements.lock").read_text()


def locked(python: str) -> dict[str, str]:
    return dict(pin.split("==") for pin in make_environment_yml.locked_pins(LOCK, python))


def direct_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["dev"]]


def test_environment_yml_has_the_pins_of_the_lock():
    conda = re.findall(r"^ +- ([\w.-]+)==(\S+)$", (ROOT / "environment.yml").read_text(), flags=re.MULTILINE)
    assert dict(conda) == locked(make_environment_yml.CONDA_PYTHON)
    assert len(conda) > 100


def test_environment_yml_is_what_the_script_writes():
    assert (ROOT / "environment.yml").read_text() == make_environment_yml.environment_yml(LOCK)


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_lock_satisfies_pyproject(python):
    pins = locked(python)
    for requirement in direct_requirements():
        assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_default_stack():
    pins = locked("3.11")
    assert (pins["torch"], pins["dgl"], pins["torchdata"]) == ("2.2.1", "2.1.0", "0.7.1")
    assert pins["numpy"].startswith("1.")


def test_every_package_in_the_lock_has_hashes_and_no_address():
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK
    for block in re.split(r"\n(?=[a-z0-9])", LOCK):
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
    assert project["requires-python"] == ">=3.10,<3.13"
    assert project["name"] == "tutorial_lib"
