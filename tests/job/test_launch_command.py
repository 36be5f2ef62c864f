"""``launch`` runs scripts unchanged and reports mistakes before it starts a process."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from commands import launch

from tutorial_lib.tools.after_job import trace
from tutorial_lib.tools.options import parse

SCRIPT = Path(__file__).parents[1] / "programs" / "guide_script.py"


@pytest.mark.cluster
def test_guide_script_runs_unchanged(emulation, nothing_left, partition_of, tmp_path):
    workspace = tmp_path / "a work space"
    workspace.mkdir()
    shutil.copytree(partition_of(2).folder, workspace / "parts")
    shutil.copy(SCRIPT, workspace / "train dist.py")
    part_config = f"parts/{partition_of(2).graph_name}.json"
    words = ["python3", "train dist.py", "--ip_config", "ip_config.txt", "--part_config", part_config]
    words += ["--graph_name", partition_of(2).graph_name, "--num_epochs", "2", "--title", 'it\'s "quoted"']
    done = launch(
        *("--emulate", "2", "--workspace", str(workspace), "--part_config", part_config),
        *("--num_trainers", "1", "--num_servers", "1", "--num_samplers", "1", "--num_omp_threads", "1"),
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
    assert "logs in logs/machine-1" in done.stdout  # relative to the working directory of the user


@pytest.mark.cluster
def test_sys_exit_of_script_ends_the_job(emulation, nothing_left, partition_of, tmp_path):
    """Otherwise, Python would run DGL's exit handler, which waits forever for all other trainers."""
    part_config = str(partition_of(2).config)
    script = ["python3", str(SCRIPT), "--ip_config", "ip_config.txt", "--part_config", part_config]
    script += ["--graph_name", partition_of(2).graph_name, "--num_epochs", "1", "--fault", "exit on 1"]
    options = ["--emulate", "2", "--num_trainers", "2", "--part_config", part_config, "--out", "logs"]
    done = launch(*options, shlex.join(script), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: trainer 1 (rank 1) on machine-0: SystemExit: no such option\nlog: ")
    # The terminal does not show messages of the other ranks, which the agents stop on both machines.
    for noise in ("User pressed Ctrl+C", "terminate called", "LIBXSMM", "rpc.cc"):
        assert noise not in done.stdout + done.stderr
    logs = (tmp_path / "logs").glob("machine-*/trainer-*.log")
    assert any("User pressed Ctrl+C, Exiting" in log.read_text() for log in logs)


@pytest.mark.cluster
def test_command_uses_shell_syntax(emulation, nothing_left, partition_of, tmp_path):
    """The command changes the folder and sets a variable, as with DGL's tool, and names another interpreter."""
    part_config = str(partition_of(2).config)
    (tmp_path / "here").mkdir()
    (tmp_path / "my python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "my python").chmod(0o755)
    command = f"cd here && TITLE=x '{tmp_path}/my python' {SCRIPT} --ip_config ../ip.txt --part_config {part_config}"
    command += f" --graph_name {partition_of(2).graph_name} --num_epochs 1"
    options = ["--emulate", "2", "--part_config", part_config, "--ip_config", "ip.txt", "--num_trainers", "2"]
    done = launch(*options, "--out", "logs", command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 3 epoch 0 loss" in (tmp_path / "logs" / "machine-1" / "trainer-1.log").read_text()


@pytest.mark.cluster
def test_one_machine_without_namespaces_runs_a_script(nothing_left, partition_of, tmp_path):
    part_config = str(partition_of(1).config)
    words = ["--ip_config", "ip.txt", "--part_config", part_config, "--graph_name", partition_of(1).graph_name]
    command = shlex.join(["python3", str(SCRIPT), *words, "--num_epochs", "1"])
    options = ["--machines", "1", "--part_config", part_config, "--ip_config", "ip.txt", "--out", "logs"]
    done = launch(*options, command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 0 epoch 0 loss" in (tmp_path / "logs" / "machine-0" / "trainer-0.log").read_text()
    trace(tmp_path / "logs", out=tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["tid"] for event in found if event["ph"] == "X"}
    assert tracks == {"stages", "server 0", "trainer 0"}


def test_extra_envs_may_be_a_list():
    arguments = parse(["launch", "--extra_envs", "A=1", "--extra-envs", "B=2", "C=3", "cmd", "x=1"])[1].arguments
    assert (arguments["request"].extra_envs, arguments["command"]) == (["A=1", "B=2", "C=3"], ["cmd", "x=1"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--emulate": "3"}, "has 2 parts for 3 machines"),
        ({"--part_config": "no.json"}, "No such file"),
        ({"--workspace": "no-folder", "--part_config": "p.json"}, "no-folder/p.json: No such file"),
        ({"--extra_envs": "A"}, "'A' is not NAME=VALUE"),
        ({"--ssh_port": "22"}, "several options choose the machines"),
        ({"command": "python3 'x.py"}, "cannot parse the command"),
    ],
)
def test_mistakes_are_reported_before_the_start(partition_of, changes, words, tmp_path, run_here):
    options = {"--emulate": "2", "--part_config": str(partition_of(2).config), "--ip_config": "ip.txt", **changes}
    command = options.pop("command", "python3 x.py")
    done = run_here("launch", *[word for pair in options.items() for word in pair], command)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.splitlines()[0]
    assert os.listdir(tmp_path) == []


PLAIN = SCRIPT.with_name("ddp_ranks.py")


@pytest.mark.cluster
def test_ddp_program_without_graph(emulation, nothing_left, tmp_path):
    """Without --part_config, the ranks start immediately, and rank 0, which has the store, may exit first."""
    done = launch("--emulate", "3", "--num_trainers", "2", "--out", "logs", f"python3 {PLAIN}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(6):
        assert f"rank {rank} of 6 on machine-{rank // 2}: equal replicas True" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"logs"}
    assert not list((tmp_path / "logs").rglob("server-*.log"))


@pytest.mark.cluster
def test_rpc_program_without_graph(emulation, nothing_left, tmp_path):
    """The machines share no folder, so each gets a copy of the workspace."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    shutil.copy(PLAIN, workspace)
    done = launch("--emulate", "2", "--own-disks", "--out", "logs", "python3 ddp_ranks.py rpc", cwd=workspace)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 got [1.0, 1.0]" in done.stdout
    assert "rank 1 got [2.0, 2.0]" in done.stdout
