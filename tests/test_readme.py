"""Links in README and docs resolve, and the output in README agrees with a run."""

import re
import shlex
import subprocess

import pytest
import yaml
from commands import ROOT, load_script, tutorial

from tutorial_lib.job.ip_config import read_ip_config
from tutorial_lib.tools.options import parse

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links {target}"


def test_every_page_is_linked_from_readme():
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", README))
    assert linked == {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}


def summary(text: str) -> dict[str, str]:
    """Return the table at the end of a run, from README or from the output of a run."""
    text = text[text.index("synthetic-products: global result") :]
    keys = ("machines", "epochs", "loss", "valid accuracy", "test accuracy", "seconds", "bytes sent")
    return {key: re.search(rf"^[\s│]*{key}[\s│]+(.*?)[\s│]*$", text, flags=re.MULTILINE)[1] for key in keys}


def without_numbers(text: str) -> str:
    return re.sub(r"[\d.,]*\d", "#", text)


def test_readme_agrees_with_its_picture():
    """A script draws the picture from the run whose numbers README shows."""
    picture = (ROOT / "docs" / "run.svg").read_text()
    shown = summary(README)
    assert f"loss {shown['loss']}" in picture
    assert f"test accuracy {shown['test accuracy']}, after {float(shown['seconds']):.0f} s" in picture
    for sent in re.findall(r"[\d.]+ MB", shown["bytes sent"]):
        assert sent in picture


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_readme_agrees_with_make_run(emulation, nothing_left, data_root, tmp_path):
    """The same command gives the same lines, and all numbers except seconds are within their tolerance."""
    makefile = (ROOT / "Makefile").read_text()
    words = re.search(r"^run: venv\n\t\$\(PY\) -m tutorial_lib (.*)$", makefile, flags=re.MULTILINE)[1].split()
    printed = tutorial(*words, "--root", str(data_root), "--out", str(tmp_path / "run")).stdout
    shown, real = summary(README), summary(printed)
    assert {key: without_numbers(value) for key, value in shown.items()} == {
        key: without_numbers(value) for key, value in real.items()
    }
    for key in ("machines", "epochs"):
        assert shown[key].split(",")[0] == real[key].split(",")[0]
    for key, tolerance in [("loss", 0.02), ("valid accuracy", 0.01), ("test accuracy", 0.01)]:
        assert float(shown[key]) == pytest.approx(float(real[key]), abs=tolerance), key
    sent = [[float(n) for n in re.findall(r"([\d.]+) MB", each["bytes sent"])] for each in (shown, real)]
    assert len(sent[0]) == 2
    assert sent[0] == pytest.approx(sent[1], rel=0.1)
    drawing = load_script("draw_run")
    result, events = drawing.read_run(tmp_path / "run")
    picture = drawing.draw_svg(result, events)
    assert without_numbers((ROOT / "docs" / "run.svg").read_text()) == without_numbers(picture)
    assert f"test accuracy {result['test_accuracy']:.4f}" in picture
    assert all(f"loss {event['loss']:.4f}" in picture for event in events if event["kind"] == "epoch")


def test_readme_commands_for_own_machines(tmp_path):
    """Commands are parsed or run without machines. tests/launcher/test_ssh.py runs such commands over ssh."""
    section = README.split("## On your own machines")[1].split("\n## ")[0]
    (writes,) = re.findall(r"^ +(printf .*)$", section, flags=re.MULTILINE)
    subprocess.run(["bash", "-c", writes], check=True, cwd=tmp_path)
    assert [m.address for m in read_ip_config(tmp_path / "ip_config.txt")] == ["10.0.0.1", "10.0.0.2"]
    lines = [shlex.split(line) for line in re.findall(r"^ +python -m tutorial_lib (.*)$", section, flags=re.MULTILINE)]
    assert sorted(words[0] for words in lines) == ["doctor", "submit", "submit", "train"]
    for words in lines:
        parse(words)
        if words[0] == "submit":
            tutorial(*words, cwd=tmp_path)
    subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=True)
    assert "#SBATCH --nodes=4\n" in (tmp_path / "job.sh").read_text()
    assert list(yaml.safe_load_all((tmp_path / "job.yaml").read_text()))[-1]["spec"]["completions"] == 4
