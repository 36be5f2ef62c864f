"""Run folders of other users and damaged ones: no file in them runs a program, and each defect is one sentence."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tutorial_lib.tools.options import NEEDS_TRUST

EVIL = "ProxyCommand touch \x1b[2Jpwned"
PENDING = {"folder": "/scratch/results/run-0123abcd", "machines": [["machine-0", "192.0.2.1"]]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def ssh_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that exists when an ssh client was started. It contains the arguments of the client."""
    started, folder = tmp_path / "ssh-started", tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(f'#!/bin/sh\necho "$@" >> {started}\nexit 255\n')
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return started


def refused(done: subprocess.CompletedProcess) -> str:
    """Return the error line of a command that exited with code 2."""
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.isprintable()
    return line


def options(run: Path, **values: object) -> None:
    (run / "options.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ip_config", "/tmp/stranger/ip_config.txt"),
        ("ssh_config", f"/tmp/stranger/{EVIL}"),
        ("ssh-config", f"/tmp/stranger/{EVIL}"),
        ("remote_python", "/tmp/stranger/python"),
        ("root", "/tmp/stranger/data"),
    ],
)
def test_options_that_run_programs_are_refused(name, value, run, run_here, ssh_started):
    options(run, **{"ip_config": "/tmp/stranger/ip.txt", name: value})
    name = name.replace("-", "_")
    assert name in NEEDS_TRUST
    done = run_here("train", "--resume", "--out", str(run))
    for words in (str(run / "options.json"), str(value).replace("\x1b", "\\x1b"), f"--{name}"):
        assert words in refused(done)
    assert "add --trust" in done.stderr
    assert not ssh_started.exists()


def test_trusted_or_given_options_are_accepted(run, run_here, tmp_path, monkeypatch):
    options(run, root=str(tmp_path / "data"))
    goes_on = "error: --resume: no checkpoint in"
    assert goes_on in run_here("train", "--resume", "--out", str(run), "--trust").stderr
    assert goes_on in run_here("train", "--resume", "--out", str(run), "--root", str(tmp_path / "other")).stderr
    monkeypatch.setattr("tutorial_lib.errors.ask_yes_no", lambda _question: True)
    assert goes_on in run_here("train", "--resume", "--out", str(run)).stderr
    monkeypatch.setattr("tutorial_lib.errors.ask_yes_no", lambda _question: False)
    assert "add --trust" in run_here("train", "--resume", "--out", str(run)).stderr


def test_stored_trust_is_ignored(run, run_here):
    stored = {"emulate": 2, "trust": True}
    options(run, **stored)
    assert "error: --resume: no checkpoint in" in run_here("train", "--resume", "--out", str(run)).stderr
    options(run, **stored, root="/tmp/stranger")
    assert "/tmp/stranger" in refused(run_here("train", "--resume", "--out", str(run)))


def test_fetch_does_not_connect_without_trust(run, run_here, ssh_started):
    (run / "pending_download.json").write_text(json.dumps({**PENDING, "config": "/tmp/stranger/config"}))
    done = run_here("fetch", str(run))
    line = refused(done)
    for shown in ("pending_download.json", "/tmp/stranger/config", "192.0.2.1", PENDING["folder"]):
        assert shown in line
    assert "add --trust" in done.stderr
    assert not ssh_started.exists()
    assert run_here("fetch", str(run), "--trust").returncode == 1
    assert "-F /tmp/stranger/config" in ssh_started.read_text()


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", DEEP, '{"epochs": 1' + "0" * 5000 + "}", '{"epochs": "three"}', '{"trainers": 1e9}'),
        *('{"scale": NaN}', '{"root": {"path": 5}}', '{"fanouts": [5, 5]}'),
    ],
)
def test_options_of_wrong_types(content, run, run_here):
    (run / "options.json").write_text(content)
    assert "options.json is damaged" in refused(run_here("train", "--resume", "--out", str(run), "--trust"))


def test_options_path_that_is_not_a_file(run, run_here):
    os.mkfifo(run / "options.json")
    assert "options.json" in refused(run_here("train", "--resume", "--out", str(run)))


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "5", DEEP, "{}", '{"starts": []}'),
        json.dumps({**PENDING, "folder": "/home/victim"}),
        json.dumps({**PENDING, "folder": "/scratch/results/../../home-0123abcd/x"}),
        json.dumps({**PENDING, "port": "-oProxyCommand=x"}),
        json.dumps({**PENDING, "machines": []}),
    ],
)
def test_a_pending_download_with_wrong_fields(content, run, run_here, ssh_started):
    (run / "pending_download.json").write_text(content)
    assert "pending_download.json is damaged" in refused(run_here("fetch", str(run), "--trust"))
    assert not ssh_started.exists()


def event(**fields: object) -> str:
    return json.dumps({"kind": "span", "time": 1.0, "rank": 0, "name": "x", "seconds": 1.0, **fields})


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "5", DEEP, '{"kind": 3, "time": 1.0}', '{"kind": "step", "time": "x"}', "\x00\x01"),
        event(machine=[]),
        event(time=float("inf")),
        event(kind="clock", machine="a") + "\n" + event(machine="a"),
        event(kind="clock", machine="a", offset="x", error=1) + "\n" + event(machine="a"),
        event(kind="step", epoch=[], step=1),
        event(kind="traffic", machine="a", bytes_sent="x") + "\n" + event(),
        event(seconds="long"),
    ],
)
def test_events_of_wrong_types(content, run, run_here):
    """The timeline shows the readable events, or the command reports the damage."""
    (run / "events.jsonl").write_text(content + "\n")
    done = run_here("trace", str(run))
    assert done.returncode == 0 or refused(done)
    assert "Traceback" not in done.stderr


def test_links_are_not_followed(run, run_here, single_run, tmp_path):
    """A continued run never writes through a link."""
    precious = tmp_path / "precious"
    precious.write_text("half a line")
    shutil.copytree(single_run.out, run, dirs_exist_ok=True)
    (run / "trace.json").symlink_to(precious)
    assert run_here("trace", str(run)).returncode == 0
    assert not (run / "trace.json").is_symlink()
    words = ["train", *single_run.options, "--epochs", "4", "--resume", "--out", str(run)]
    for name in ("events.jsonl", "logs", "checkpoint/x", "result.json", "pipe"):
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        os.mkfifo(path) if name == "pipe" else path.symlink_to(precious)
        assert str(path) in refused(run_here(*words))
        path.unlink()
    assert precious.read_text() == "half a line"


def test_escape_sequences_are_not_sent_to_the_terminal(run, run_here):
    (run / "trainer-0.log").write_text("\x1b]0;title\x07ValueError: \x1b[2Jout of memory\nConnection closed by peer\n")
    done = run_here("explain", str(run))
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x1b" not in run_here("fetch", "no\x1b[2Jwhere").stderr
