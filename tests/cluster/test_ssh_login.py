"""What a login may do to us, and an option to the ssh client: over real ssh connections, without a job."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.cluster

NAMES = """
import json, subprocess, sys
from pathlib import Path
from tutorial_lib.cluster.spec import read_ip_config
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.errors import TutorialError
from tutorial_lib.job.remote_files import RemoteFiles

arguments, found = json.loads(sys.argv[1]), {}
try:
    machines = read_ip_config(Path(arguments["ip_config"]))
    with SshCluster(machines, username=arguments.get("user"), copy_to="~/copies") as cluster:
        found = {"names": [m.name for m in cluster.machines], "folder": cluster.copy_to}
        words = [sys.executable, "-c", "import random"]
        program = cluster.popen(cluster.machines[1], words, stdout=subprocess.DEVNULL)
        found["module"] = program.wait(timeout=20)
        files = RemoteFiles(cluster, Path(arguments["run"]), lambda event: None)
        files.uploads = [(Path(arguments["run"]), cluster.copy_to, [[], []])]
        with files:
            found["copied"] = True
except TutorialError as error:
    found = {**found, "error": error.message, "remedy": error.remedy}
print(json.dumps(found))
"""


def ask(lab, **arguments) -> dict:
    (run := lab.folder.parent / "run").mkdir(exist_ok=True)
    words = {"ip_config": str(lab.ip_config), "run": str(run), **arguments}
    done = lab.run(sys.executable, "-c", NAMES, json.dumps(words))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_bashrc_that_prints(ssh_lab, saw):
    """L24. Its text is not an answer of the machine. rsync cannot skip it, and the error says so."""
    names = {"names": ["machine-0", "machine-1"], "folder": f"{ssh_lab.home}/copies", "module": 0}
    ssh_lab.write_in_homes(".bashrc", "echo quota >&2; cd /tmp\n")
    assert ask(ssh_lab) == {**names, "copied": True}
    ssh_lab.write_in_homes(".bashrc", "echo Welcome; echo 42; printf '\\377 no end of line'; echo quota >&2; cd /tmp\n")
    found = ask(ssh_lab)
    assert found.items() >= names.items()
    assert found["error"] == "copying to machine-0: protocol version mismatch -- is your shell clean?"
    assert ".bashrc there must print to terminals only" in found["remedy"]
    saw("over ssh: files are copied to a login whose .bashrc prints", found["error"], None)


def test_a_module_in_the_home_is_not_ours(ssh_lab):
    """L29. Python starts in another folder than the home."""
    for name in ("random", "json", "copy", "tempfile"):
        ssh_lab.write_in_homes(f"{name}.py", "raise SystemExit('a file of the user was imported')\n")
    assert ask(ssh_lab)["module"] == 0


@pytest.mark.parametrize("user", ["-oProxyCommand=touch {witness}", "x -oProxyCommand=touch {witness}"])
def test_a_user_name_does_not_become_an_option(user, ssh_lab, tmp_path, saw):
    """L25."""
    witness = tmp_path / "witness"
    found = ask(ssh_lab, user=user.format(witness=witness))
    assert "ssh to 10.77.0.1: " in found["error"]
    assert list(tmp_path.glob("witness*")) == []
    saw("over ssh: --ssh_username that is an option of ssh", found["error"], None)


def test_homes_that_differ_are_no_place_for_a_copy(ssh_lab):
    other = ssh_lab.folder / "other-home"
    ssh_lab.write_in_homes(".bashrc", f'[ "$(hostname)" = machine-1 ] && HOME={other}\n')
    assert f"'{other}' on machine-1" in ask(ssh_lab)["error"]
