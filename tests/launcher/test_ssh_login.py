"""Logins that print text, user names that are options of ssh, and the home of a login, over real ssh connections."""

import json
import shutil
import sys

import pytest

pytestmark = pytest.mark.cluster

ENTER = """
import json, sys, tempfile
from pathlib import Path
from tutorial_lib.job.ip_config import read_ip_config
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends.ssh import SshBackend
from tutorial_lib.errors import InputError

cluster = SshBackend(read_ip_config(Path(sys.argv[1])), username=sys.argv[2] or None, copy_to="~/copies")
try:
    with tempfile.TemporaryDirectory() as logs, cluster, Agents(cluster, Path(logs)):
        print(json.dumps({"names": [machine.name for machine in cluster.machines], "copy_to": cluster.traits.copy_to}))
except InputError as error:
    print(json.dumps({"error": error.message, "remedy": error.remedy}))
"""


def enter(lab, user: str = "") -> dict[str, str]:
    """Enter a cluster with ``--copy_to ~/copies``."""
    done = lab.run(sys.executable, "-c", ENTER, str(lab.ip_config), user)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_output_of_a_bashrc_and_modules_in_the_home_are_ignored(ssh_lab, partition_of, saw):
    """L24. A shell prints lines, half a line and JSON before the program does. The home has modules of the user."""
    prints = "echo Welcome; echo 42; echo '[\"x\"]'; printf '\\377 no end of line'; echo quota >&2; cd /tmp\n"
    ssh_lab.write_in_homes(".bashrc", prints)
    for name in ("random", "json", "copy", "tempfile"):
        ssh_lab.write_in_homes(f"{name}.py", "raise SystemExit('a file of the user was imported')\n")
    assert enter(ssh_lab) == {"names": ["machine-0", "machine-1"], "copy_to": f"{ssh_lab.home}/copies"}
    part = partition_of(2)
    for disk in ssh_lab.on_disks(part.folder):
        shutil.copytree(part.folder, disk)
    done = ssh_lab.tutorial("doctor", "--ip_config", str(ssh_lab.ip_config), "--part_config", str(part.config))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "machine-1" in done.stdout
    saw("over ssh: a .bashrc that prints", "none: what it prints is left out", None)


def test_a_user_name_is_no_option_and_homes_must_agree(ssh_lab, tmp_path, saw):
    """L25. The ssh client does not run a command that a user name contains."""
    witness = tmp_path / "witness"
    for user in (f"-oProxyCommand=touch {witness}", f"x -oProxyCommand=touch {witness}"):
        found = enter(ssh_lab, user)
        assert found["error"].startswith("ssh to 10.77.0.")  # of the machine that answers first
        assert list(tmp_path.glob("witness*")) == []
    saw("over ssh: --ssh_username that is an option of ssh", found["error"], None)
    other = ssh_lab.folder / "other-home"
    ssh_lab.write_in_homes(".bashrc", f'[ "$(hostname)" = machine-1 ] && HOME={other}\n')
    assert f"and {other} on machine-1" in enter(ssh_lab)["error"]


COPY = """
import json, sys
from pathlib import Path
from tutorial_lib.job.ip_config import read_ip_config
from tutorial_lib.launcher.backends.ssh import SshBackend
from tutorial_lib.errors import TutorialError
from tutorial_lib.job.remote_files import RemoteFiles
from tutorial_lib.launcher.agents import Agents

ip_config, run = map(Path, sys.argv[1:])
try:
    with SshBackend(read_ip_config(ip_config), copy_to="~/copies") as backend, Agents(backend, run):
        with RemoteFiles(backend, run, lambda event: None):
            print(json.dumps({}))
except TutorialError as error:
    print(json.dumps({"error": error.message, "remedy": error.remedy}))
"""


def test_files_cannot_be_copied_to_a_login_whose_bashrc_prints(ssh_lab, saw):
    """L24. rsync cannot skip the text on standard output, and the error names the file to change."""

    def copy() -> dict[str, str]:
        (run := ssh_lab.folder.parent / "run").mkdir(exist_ok=True)
        done = ssh_lab.run(sys.executable, "-c", COPY, str(ssh_lab.ip_config), str(run))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    ssh_lab.write_in_homes(".bashrc", "echo quota >&2; cd /tmp\n")
    assert copy() == {}
    ssh_lab.write_in_homes(".bashrc", "echo Welcome; echo quota >&2; cd /tmp\n")
    found = copy()
    assert found["error"] == "copying to machine-0: protocol version mismatch -- is your shell clean?"
    assert ".bashrc there must print to terminals only" in found["remedy"]
    saw("over ssh: files are copied to a login whose .bashrc prints", found["error"], None)
