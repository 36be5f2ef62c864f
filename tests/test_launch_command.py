"""``launch``: a script of somebody else's runs unchanged; what is wrong is said before anything starts."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("guide_script.py")


def launch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tutorial_lib", "launch", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
    )


@pytest.mark.cluster
@pytest.mark.parametrize("samplers", ["0", "1"])
def test_the_guide_s_script_runs_unchanged(samplers, emulation, nothing_left, partition_of, tmp_path):
    workspace = tmp_path / "a work space"
    workspace.mkdir()
    shutil.copytree(partition_of(2).folder, workspace / "parts")
    shutil.copy(SCRIPT, workspace / "train dist.py")
    part_config = f"parts/{partition_of(2).graph_name}.json"
    words = ["python3", "train dist.py", "--ip_config", "ip_config.txt", "--part_config", part_config]
    words += ["--graph_name", partition_of(2).graph_name, "--num_epochs", "2", "--title", 'it\'s "quoted"']
    done = launch(
        *("--emulate", "2", "--workspace", str(workspace), "--part_config", part_config),
        *("--num_trainers", "1", "--num_servers", "1", "--num_samplers", samplers, "--num_omp_threads", "1"),
        *("--num_server_threads", "1", "--extra_envs", "GUIDE_TITLE=from-the-environment", "--graph_format", "csc,coo"),
        *("--out", str(tmp_path / "logs"), shlex.join(words)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (workspace / "ip_config.txt").read_text() == "10.77.0.1 30050\n10.77.0.2 30050\n"
    for rank in range(2):
        log = (tmp_path / "logs" / f"machine-{rank}" / "trainer-0.log").read_text()
        assert f'it\'s "quoted" from-the-environment: rank {rank} epoch 1 loss' in log
    assert "machine-1: sent" in done.stdout


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("fault", "words"),
    [("raise on 1", "ValueError: a mistake in somebody's script"), ("exit on 1", "SystemExit: no such option")],
)
def test_a_script_that_fails_ends_the_job(fault, words, emulation, nothing_left, partition_of, tmp_path):
    """Left to itself, Python would run DGL's exit handler, which waits for all other trainers for ever."""
    part_config = str(partition_of(2).config)
    script = ["python3", str(SCRIPT), "--ip_config", "ip_config.txt", "--part_config", part_config]
    script += ["--graph_name", partition_of(2).graph_name, "--num_epochs", "1", "--fault", fault]
    done = launch("--emulate", "2", "--part_config", part_config, "--out", "logs", shlex.join(script), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"error: trainer 0 (rank 1) on machine-1: {words}" in done.stderr
    assert "log: " in done.stderr


@pytest.fixture
def good(partition_of) -> dict[str, str]:
    return {"--emulate": "2", "--part_config": str(partition_of(2).config), "--ip_config": "ip.txt"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--emulate": "3"}, "has 2 parts for 3 machines"),
        ({"--part_config": "no.json"}, "No such file"),
        ({"--workspace": "no-folder"}, "is not a folder"),
        ({"--num_trainers": "0"}, "--num_trainers must be at least 1"),
        ({"--graph_format": "csc,abc"}, "unknown 'abc'"),
        ({"--wire": "fast"}, "'fast' is not a rate"),
        ({"--extra_envs": "A"}, "'A' is not NAME=VALUE"),
        ({"--ip_config": "no-folder/ip.txt"}, "cannot write --ip_config"),
    ],
)
def test_mistakes_are_found_first(good, changes, words, tmp_path):
    options = [word for pair in {**good, **changes}.items() for word in pair]
    done = launch(*options, "python3 x.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.splitlines()[0]
    assert os.listdir(tmp_path) == []


def test_an_unclosed_quote_is_named(good, tmp_path):
    done = launch(*[word for pair in good.items() for word in pair], "python3 'x.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot read the command" in done.stderr


def test_an_address_file_without_ports_will_do(good, tmp_path):
    """The ports are DGL's own; the command then runs, and fails for a reason of its own."""
    (tmp_path / "ip.txt").write_text("10.77.0.1\n\n10.77.0.2\n")
    done = launch(*[word for pair in good.items() for word in pair], "--out", "logs", "false", cwd=tmp_path)
    assert done.returncode == 1
    assert "server 0 on machine-" in done.stderr
    assert "exit code 1" in done.stderr


def test_an_address_file_of_another_cluster_is_kept(good, tmp_path):
    (tmp_path / "ip.txt").write_text("192.168.1.1 30050\n192.168.1.2 30050\n")
    done = launch(*[word for pair in good.items() for word in pair], "python3 x.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "lists other machines than the emulated ones" in done.stderr
    assert (tmp_path / "ip.txt").read_text().startswith("192.168.1.1")
