"""docs/architecture.md: every name in it exists, and a step goes the way that it says."""

import ast
import json
import re
import subprocess
import sys

import pytest
from commands import ROOT

from tutorial_lib.partition import partition_dataset

TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAME = re.compile(r"`(tutorial_lib/\S+?\.py):(\w+)`")


def between(after: str, before: str) -> str:
    """The text from one phrase to the next place of another."""
    start = TEXT.index(after)
    return TEXT[start : TEXT.index(before, start)]


def section(after: str, before: str) -> list[str]:
    """``file:function`` of a part of the walk, in its order."""
    return [":".join(found) for found in NAME.findall(between(after, before))]


def files_named(text: str) -> set[str]:
    """Also those that are named without a function."""
    return set(re.findall(r"`(tutorial_lib/[\w/]+\.py)", text))


SETUP = section("Until the first step", "A step, in")
THREAD = section("A step, in", "The loop meanwhile")[1:]
LOOP = section("The loop meanwhile", "Those are")


def test_every_name_is_in_its_file():
    for file, name in NAME.findall(TEXT):
        defined = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
        assert name in defined, f"docs/architecture.md names {file}:{name}"
    assert all((ROOT / file).exists() for file in re.findall(r"`((?:tests|tutorial_lib)/[\w/]+\.py)`", TEXT))


def test_a_step_is_in_at_most_twelve_files_and_a_run_in_at_most_forty():
    files = {name.split(":")[0] for name in [*THREAD, *LOOP, "tutorial_lib/trainer/loop.py:train_epoch"]}
    assert len(files) <= 12
    assert f"Those are {len(files)} files" in TEXT
    run = files_named(between("## From the command", "## One mini-batch"))
    both = run | files_named(between("## One mini-batch", "## What was done when"))
    assert len(both) <= 40
    assert f"Those are {len(run)} files; with those of a mini-batch below, {len(both)}." in TEXT


def in_order(wanted: list[str], found: list[str]) -> None:
    """Each is called after the one before it."""
    at = 0
    for name in wanted:
        assert name in found[at:], f"{name} does not come after what stands before it in docs/architecture.md"
        at = found.index(name, at) + 1


@pytest.mark.whole_run
def test_the_walk_is_what_a_rank_does(small_dataset, tmp_path):
    partition = partition_dataset(small_dataset, 1, tmp_path / "parts")
    program = ROOT / "tests" / "programs" / "traced_step.py"
    command = [sys.executable, str(program), str(partition.folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    called = json.loads(done.stdout.splitlines()[-1])
    main, thread = called["main"], called["batches"]
    assert len(SETUP) > 5
    in_order([name for name in SETUP[2:] if "pipeline.py:from_graph" not in name], main)
    begin = next(k for k, name in enumerate(main) if name.endswith("loop.py:train_epoch"))
    in_order([THREAD[0], *LOOP], main[begin:])
    in_order(["tutorial_lib/tasks/task.py:validate", "tutorial_lib/trainer/checkpoint.py:save"], main[begin:])
    ends = ("tasks/task.py:layerwise_inference", "trainer/comm.py:gather_by_number")
    in_order([f"tutorial_lib/{name}" for name in ends], main[begin:])
    in_order(THREAD[1:], thread)
    assert not any(name.startswith("tutorial_lib/models") for name in thread)


def test_few_modules_are_at_the_root():
    found = {path.stem for path in (ROOT / "tutorial_lib").glob("*.py")}
    assert found == {"__init__", "__main__", "errors", "files"}


def test_what_is_replaced_is_where_the_list_says():
    text = (ROOT / "docs" / "patches.md").read_text()
    places = re.findall(r"\| `([\w/]+\.py): (\w+)`", text)
    assert len(places) > 5
    for file, name in places:
        (path,) = [path for room in ("", "launcher") if (path := ROOT / "tutorial_lib" / room / file).exists()]
        assert re.search(rf"\b{name}\b", path.read_text()), f"docs/patches.md names {file}: {name}"
