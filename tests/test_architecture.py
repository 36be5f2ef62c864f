"""All names in docs/architecture.md exist, and a step and a run execute few files."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

from tutorial_lib.__main__ import main
from tutorial_lib.partition import partition_dataset

LIBRARY = ROOT / "tutorial_lib"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAME = re.compile(r"`([\w/]+\.py):(?:\w+\.)?(\w+)`")


def between(after: str, before: str) -> str:
    """Return the text between two phrases."""
    start = TEXT.index(after)
    return TEXT[start : TEXT.index(before, start)]


def files_named(text: str) -> set[str]:
    """Return all file names, also those without a function."""
    return {f"tutorial_lib/{name}" for name in re.findall(r"`(?!tests)([\w/]+\.py)", text)}


def test_documented_names_exist():
    for file, name in NAME.findall(TEXT):
        defined = {node.name for node in ast.walk(ast.parse((LIBRARY / file).read_text())) if hasattr(node, "name")}
        assert name in defined, f"docs/architecture.md names {file}:{name}"
    names = re.findall(r"`([\w/]+\.py)`", TEXT)
    assert [name for name in names if not ((LIBRARY / name).exists() or (ROOT / name).exists())] == []


def test_documented_step_and_run_span_few_files():
    files = files_named(between("A step, in", "Those are"))
    assert len(files) <= 12
    assert f"Those are {len(files)} files" in TEXT
    run = files_named(between("## From the command", "## One mini-batch"))
    both = run | files_named(between("## One mini-batch", "## Timeline of a run"))
    assert len(both) <= 40
    assert f"These steps are in {len(run)} files, or {len(both)} with the mini-batch below." in TEXT


@pytest.fixture(scope="module")
def calls(small_dataset, tmp_path_factory) -> list[str]:
    """Calls of functions of tutorial_lib by a rank, with "return" at their ends."""
    folder = tmp_path_factory.mktemp("traced")
    parts = partition_dataset(small_dataset, 1, folder / "parts").folder
    command = [sys.executable, str(ROOT / "tests/programs/traced_step.py"), str(parts), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def files_of(calls: list[str]) -> set[str]:
    return {call.split(":")[0] for call in calls}


@pytest.mark.whole_run
def test_the_steps_of_an_epoch_execute_at_most_twelve_files(calls):
    first, last = (calls.index(f"tutorial_lib/trainer/loop.py:train_epoch:{event}") for event in ("call", "return"))
    executed = files_of(calls[first : last + 1])
    assert files_named(between("A step, in", "Those are")) <= executed
    assert len(executed) <= 12, sorted(executed)


@pytest.mark.whole_run
def test_a_run_executes_at_most_sixty_files(calls, emulation, tmp_path, monkeypatch):
    """This process and a rank are traced. Of the other processes, every file counts that could be executed."""
    found = []
    monkeypatch.chdir(tmp_path)

    def note(frame, event, _argument) -> None:
        function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # and not the body of a module or a class
        if function and event == "call" and str(ROOT / "tutorial_lib") in frame.f_code.co_filename:
            found.append(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    command = ["train", "--emulate", "2", "--scale", "0.005", "--epochs", "1", "--root", "data", "--out", "run"]
    sys.setprofile(note)
    try:
        with pytest.raises(SystemExit, match=r"^0$"):
            main(command)
    finally:
        sys.setprofile(None)
    others = {str(path.relative_to(ROOT)) for path in (ROOT / "tutorial_lib/launcher").rglob("*.py")}
    others -= {f"tutorial_lib/launcher/{name}.py" for name in ("__init__", "backends/persistent", "backends/remote")}
    others |= {f"tutorial_lib/{name}.py" for name in ("trainer/__main__", "trainer/session", "job/dgl_hook")}
    executed = others | set(found) | files_of(calls)
    print(*sorted(executed))
    assert len(executed) <= 60


def test_package_root_has_few_modules():
    found = {path.stem for path in (ROOT / "tutorial_lib").glob("*.py")}
    assert found == {"__init__", "__main__", "errors", "files"}


def test_patches_are_where_patches_md_says():
    text = (ROOT / "docs" / "patches.md").read_text()
    places = re.findall(r"\| `([\w/]+\.py): (\w+)`", text)
    assert len(places) > 5
    for file, name in places:
        folders = (ROOT, ROOT / "tutorial_lib", ROOT / "tutorial_lib" / "launcher")
        (path,) = [path for folder in folders if (path := folder / file).exists()]
        assert re.search(rf"\b{name}\b", path.read_text()), f"docs/patches.md names {file}: {name}"
