"""README and docs: links lead somewhere, and what README shows of a run is what a run said."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def draw_run():
    spec = importlib.util.spec_from_file_location("draw_run", ROOT / "scripts" / "draw_run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links {target}"


def test_every_page_is_linked_from_readme():
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert linked == {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}


def test_readme_shows_what_its_picture_shows():
    """The picture is made by a script from a run; the numbers beside it are those of the same run."""
    picture = (ROOT / "docs" / "run.svg").read_text()
    readme = (ROOT / "README.md").read_text()
    shown = dict(re.findall(r"^    (loss|test accuracy|seconds|sent on the wire) +(.*)$", readme, flags=re.MULTILINE))
    assert f"loss {shown['loss']}" in picture
    assert f"test accuracy {shown['test accuracy']}, after {float(shown['seconds']):.0f} s" in picture
    for sent in re.findall(r"[\d.]+ MB", shown["sent on the wire"]):
        assert sent in picture


@pytest.mark.cluster
def test_a_run_is_drawn_from_what_it_wrote(finished_run, tmp_path):
    module = draw_run()
    result, events = module.read(finished_run.out)
    text = module.draw(result, events)
    ET.fromstring(text)
    assert f"test accuracy {result['test_accuracy']:.4f}" in text
    assert text.count("<path class=") == 2
    epochs = [event for event in events if event["kind"] == "epoch"]
    assert all(f"loss {event['loss']:.4f}" in text for event in epochs)
