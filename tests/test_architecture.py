"""docs/architecture.md: every name in it exists, and a step and a run are in few files."""

import ast
import re

from commands import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAME = re.compile(r"`(tutorial_lib/\S+?\.py):(\w+)`")


def between(after: str, before: str) -> str:
    """The text from one phrase to the next place of another."""
    start = TEXT.index(after)
    return TEXT[start : TEXT.index(before, start)]


def files_named(text: str) -> set[str]:
    """With those that are named without a function."""
    return set(re.findall(r"`(tutorial_lib/[\w/]+\.py)", text))


def test_every_name_is_in_its_file():
    for file, name in NAME.findall(TEXT):
        defined = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
        assert name in defined, f"docs/architecture.md names {file}:{name}"
    assert all((ROOT / file).exists() for file in re.findall(r"`((?:tests|tutorial_lib)/[\w/]+\.py)`", TEXT))


def test_a_step_is_in_at_most_twelve_files_and_a_run_in_at_most_forty():
    files = files_named(between("A step, in", "Those are"))
    assert len(files) <= 12
    assert f"Those are {len(files)} files" in TEXT
    run = files_named(between("## From the command", "## One mini-batch"))
    both = run | files_named(between("## One mini-batch", "## What was done when"))
    assert len(both) <= 40
    assert f"Those are {len(run)} files; with those of a mini-batch below, {len(both)}." in TEXT


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
