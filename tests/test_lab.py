"""make lab: updated copies of the notebooks, links, and the start of JupyterLab."""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from commands import ROOT, load_script

lab = load_script("lab")


def test_unchanged_copies_are_updated(tmp_path):
    notebooks, work = tmp_path / "notebooks", tmp_path / "work"
    names = ["00_a.ipynb", "01_b.ipynb", "02_c.ipynb", "GLOSSARY.md", "solutions/00_a.ipynb", "scripts/one.py"]
    left = ["scripts/exercise_01_1.py", "scripts/out/table.py", "scripts/mine/one.py", "scripts/__pycache__/one.py"]
    for name in [*names, *left]:
        (notebooks / name).parent.mkdir(parents=True, exist_ok=True)
        (notebooks / name).write_text("first")
    (notebooks / "solutions" / "scripts").symlink_to("../scripts")
    work.mkdir()
    assert lab.refresh_copies(notebooks, work) == []
    names[4] = "solutions/00_a_solution.ipynb"
    copied = {path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file()}
    assert {name for name in copied if not name.startswith(("solutions/scripts", ".copied"))} == set(names)
    assert (work / "solutions" / "scripts" / "one.py").samefile(work / "scripts" / "one.py")
    (work / "00_a.ipynb").write_text("my answer")
    (work / "scripts" / "one.py").write_text("first\n")  # as a cell with %%writefile writes it: no change
    for path in [*notebooks.rglob("*.ipynb"), notebooks / "scripts" / "one.py"]:
        path.write_text("second")
    (notebooks / "02_c.ipynb").unlink()
    assert lab.refresh_copies(notebooks, work) == ["00_a.ipynb"]
    assert (work / "00_a.ipynb").read_text() == "my answer"
    assert [(work / name).read_text() for name in (names[1], names[4], names[5])] == ["second"] * 3
    assert not (work / "02_c.ipynb").exists()
    assert lab.refresh_copies(notebooks, work, fresh=True) == []
    assert (work / "00_a.ipynb").read_text() == "second"
    assert [path.read_text() for path in work.glob("00_a-*.ipynb")] == ["my answer"]
    assert lab.refresh_copies(notebooks, work) == []


def text_of(path: Path) -> str:
    """Return the text of a page or of the Markdown cells of a notebook."""
    if path.suffix == ".md":
        return path.read_text()
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")


def headings(path: Path) -> set[str]:
    """Return the anchors of a page or notebook for GitHub and JupyterLab, and the explicit ones."""
    text = text_of(path)
    titles = [re.sub(r"[`*]", "", title).strip() for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)]
    github = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return {*github, *re.findall(r"<a id=\"([^\"]+)\"", text), *(title.replace(" ", "-") for title in titles)}


@pytest.fixture(scope="module", params=["notebooks", "work"])
def course(request, tmp_path_factory) -> Path:
    """The folder of the notebooks, or one of their copies beside it, as ``make lab`` makes it."""
    if request.param == "notebooks":
        return ROOT / "notebooks"
    root = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name != "work":
            (root / path.name).symlink_to(path)
    (root / "work").mkdir()
    lab.refresh_copies(ROOT / "notebooks", root / "work")
    return root / "work"


@pytest.mark.parametrize("folder", ["", "solutions"])
def test_links_in_notebooks_and_copies_resolve(course, folder):
    pages = [*(course / folder).glob("*.ipynb"), *(course / folder).glob("*.md")]
    assert len(pages) >= 16
    for page in pages:
        for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text_of(page)):
            target, _, anchor = link.partition("#")
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name} links {link}"
            if anchor and path.suffix in (".md", ".ipynb"):
                assert anchor in headings(path), f"{page.name} links {link}"


def test_lesson_ends_with_links():
    lessons = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for number, lesson in enumerate(lessons):
        for name in [f"solutions/{lesson.name}", *(path.name for path in lessons[number + 1 : number + 2])]:
            assert f"({name})" in text_of(lesson)[-1000:], lesson.name


def test_port_in_use_is_skipped():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port < lab.find_free_port(port) < port + 20


def test_lab_starts_without_display(monkeypatch, capsys):
    """PATH contains python and torchrun even if no environment is active. tests/browser opens the served pages."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    monkeypatch.setattr(sys, "argv", ["lab.py", "--port", str(port := lab.find_free_port(18888))])
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(lab.os, "execv", started := Mock())
    lab.main()
    words = " ".join(started.call_args[0][1])
    assert f"--port={port} --ServerApp.root_dir={ROOT} " in words
    assert "/lab/workspaces/course/tree/work/00_start_here.ipynb " in words
    assert f"ssh -N -L {port}:localhost:{port} " in capsys.readouterr().out
    for name in ("python", "torchrun"):
        assert Path(shutil.which(name)).parent == Path(sys.executable).parent
    status = subprocess.run(["git", "-C", str(ROOT), "status", "--short", "work"], capture_output=True, text=True)
    assert status.stdout == ""
