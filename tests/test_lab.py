"""make lab: copies of the notebooks that follow the originals until they are changed, and a layout for JupyterLab."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lab():
    spec = importlib.util.spec_from_file_location("lab", ROOT / "scripts" / "lab.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_copies_follow_the_originals_until_they_are_changed(lab, tmp_path):
    notebooks, work = tmp_path / "notebooks", tmp_path / "work"
    (notebooks / "solutions").mkdir(parents=True)
    for name in ("00_a.ipynb", "01_b.ipynb", "solutions/00_a.ipynb"):
        (notebooks / name).write_text("first")
    work.mkdir()
    assert lab.refresh_copies(notebooks, work) == []
    (work / "00_a.ipynb").write_text("my answer")
    for path in notebooks.rglob("*.ipynb"):
        path.write_text("second")
    assert lab.refresh_copies(notebooks, work) == ["00_a.ipynb"]
    assert (work / "00_a.ipynb").read_text() == "my answer"
    assert (work / "01_b.ipynb").read_text() == (work / "solutions" / "00_a.ipynb").read_text() == "second"
    assert lab.refresh_copies(notebooks, work, fresh=True) == []
    assert (work / "00_a.ipynb").read_text() == "second"
    assert [path.read_text() for path in work.glob("00_a-*.ipynb")] == ["my answer"]


def test_a_port_in_use_is_passed_over(lab):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port < lab.free_port(port) < port + 20


def test_jupyterlab_serves_lesson_00_with_the_repository_as_its_root(tmp_path):
    """Started as ``make lab`` does, on a machine without a display: the address, the way to it, and what it serves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "JUPYTER_TOKEN": "t", "JUPYTER_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):
        environment.pop(name, None)
    command = [sys.executable, str(ROOT / "scripts" / "lab.py"), "--port", str(port)]
    log = tmp_path / "log"
    with log.open("w") as stream:
        server = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + 60
        while "is running at" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        said = log.read_text()
        assert f"ssh -N -L {port}:localhost:{port} " in said
        assert f"http://localhost:{port}/lab/workspaces/course/tree/work/00_start_here.ipynb" in said
        for path in ("work/00_start_here.ipynb", "README.md", "docs/own-graph.md"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/contents/{path}?content=0&token=t") as answer:
                assert json.load(answer)["path"] == path
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/lab/api/workspaces/course?token=t") as answer:
            assert json.load(answer)["data"]["layout-restorer:data"]["left"]["current"] == "@jupyterlab/toc:plugin"
    finally:
        server.terminate()
        server.wait(timeout=30)
    status = subprocess.run(["git", "-C", str(ROOT), "status", "--short", "work"], capture_output=True, text=True)
    assert status.stdout == ""
