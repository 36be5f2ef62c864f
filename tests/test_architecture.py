"""docs/architecture.md: every name in it exists, and a step goes the way that it says."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tutorial_lib
from tutorial_lib.partition import partition_dataset

ROOT = Path(tutorial_lib.__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAME = re.compile(r"`(tutorial_lib/\S+?\.py):(\w+)`")


def section(after: str, before: str) -> list[str]:
    """``file:function`` of a part of the walk, in its order."""
    return [":".join(found) for found in NAME.findall(between(after, before))]


def between(after: str, before: str) -> str:
    """The text from one phrase to the next place of another."""
    start = TEXT.index(after)
    return TEXT[start : TEXT.index(before, start)]


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
    assert set(re.findall(r"`(tests/[\w/]+\.py)`", TEXT))
    assert all((ROOT / file).exists() for file in re.findall(r"`((?:tests|tutorial_lib)/[\w/]+\.py)`", TEXT))


def test_a_step_is_in_at_most_twelve_files():
    assert len(SETUP) > 5
    files = {name.split(":")[0] for name in [*THREAD, *LOOP, "tutorial_lib/trainer/loop.py:train_epoch"]}
    assert len(files) <= 12
    assert f"Those are {len(files)} files" in TEXT


def test_a_run_is_in_at_most_forty_files():
    run = files_named(between("## From the command", "## One mini-batch"))
    both = run | files_named(between("## One mini-batch", "## What was done when"))
    assert len(run) > 15
    assert len(both) <= 40
    assert f"Those are {len(run)} files; with those of a mini-batch below, {len(both)}." in TEXT


@pytest.fixture(scope="module")
def called(small_dataset, tmp_path_factory) -> dict[str, list[str]]:
    """What a rank calls in an epoch, in the order of the calls, by thread."""
    folder = tmp_path_factory.mktemp("traced")
    partition = partition_dataset(small_dataset, 1, folder / "parts")
    command = [
        sys.executable,
        str(Path(__file__).parent / "programs" / "traced_step.py"),
        str(partition.folder),
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def in_order(wanted: list[str], found: list[str]) -> None:
    """Each is called after the one before it."""
    at = 0
    for name in wanted:
        assert name in found[at:], f"{name} does not come after what stands before it in docs/architecture.md"
        at = found.index(name, at) + 1


@pytest.mark.whole_run
def test_the_walk_is_what_a_rank_does(called):
    main = called["main"]
    in_order([name for name in SETUP[2:] if "pipeline.py:from_graph" not in name], main)
    begin = next(k for k, name in enumerate(main) if name.endswith("loop.py:train_epoch"))
    in_order([THREAD[0], *LOOP], main[begin:])
    in_order(["tutorial_lib/tasks/task.py:validate", "tutorial_lib/trainer/checkpoint.py:save"], main[begin:])
    ends = ("tasks/task.py:layerwise_inference", "trainer/comm.py:gather_by_number")
    in_order([f"tutorial_lib/{name}" for name in ends], main[begin:])


@pytest.mark.whole_run
def test_the_thread_draws_and_fetches_as_the_walk_says(called):
    thread = called["batches"]
    in_order(THREAD[1:], thread)
    assert not any(name.startswith("tutorial_lib/models") for name in thread)


def test_files_are_short_and_few_at_the_root():
    package = ROOT / "tutorial_lib"
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in package.rglob("*.py")}
    assert not {path: count for path, count in lines.items() if count > 300}
    assert {path.stem for path in package.glob("*.py")} == {"__init__", "__main__", "errors", "files"}


def test_what_is_replaced_is_where_the_list_says():
    text = (ROOT / "docs" / "patches.md").read_text()
    places = re.findall(r"\| `([\w/]+\.py): (\w+)`", text)
    assert len(places) > 5
    for file, name in places:
        (path,) = [path for room in ("", "launcher") if (path := ROOT / "tutorial_lib" / room / file).exists()]
        assert re.search(rf"\b{name}\b", path.read_text()), f"docs/patches.md names {file}: {name}"
