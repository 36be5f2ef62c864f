"""What a login may do to us, and an option to the ssh client: over real ssh connections, without a job."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.cluster

NAMES = """
import json, sys
from pathlib import Path
from tutorial_lib.cluster.channel import Watch
from tutorial_lib.cluster.spec import read_ip_config
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.cluster.transfer import deliver, fetch
from tutorial_lib.errors import TutorialError

arguments = json.loads(sys.argv[1])
try:
    with SshCluster(read_ip_config(Path(arguments["ip_config"])), username=arguments.get("user")) as cluster:
        found = {"names": [m.name for m in cluster.machines], "folder": cluster.folder("~/copies")}
        if "source" in arguments:
            source, target, home = (Path(arguments[name]) for name in ("source", "target", "home"))
            deliver(cluster, cluster.machines[1], {"file": source}, str(target), 20, Watch())
            fetched = fetch(cluster, cluster.machines[1], str(target), home, 20, watch=Watch())
            found["fetched"] = list(fetched.table)
except TutorialError as error:
    found = {"error": error.message}
print(json.dumps(found))
"""


def ask(lab, **arguments) -> dict:
    done = lab.run(sys.executable, "-c", NAMES, json.dumps({"ip_config": str(lab.ip_config), **arguments}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_bashrc_that_prints_gives_neither_names_nor_answers(ssh_lab, tmp_path, saw):
    prints = "echo Welcome; echo 42; echo '[\"x\"]'; printf '\\377 no end of line'; echo quota >&2; cd /tmp\n"
    ssh_lab.write_in_homes(".bashrc", prints)
    (tmp_path / "source").write_text("content")
    found = ask(ssh_lab, source=str(tmp_path / "source"), target=str(tmp_path / "to"), home=str(tmp_path / "back"))
    assert found == {
        "names": ["machine-0", "machine-1"],
        "folder": f"{ssh_lab.home}/copies",
        "fetched": ["file"],
    }
    assert (tmp_path / "back" / "file").read_text() == "content"
    saw("over ssh: a .bashrc that prints", "none: what it prints is left out", None)


def test_a_module_in_the_home_is_not_ours(ssh_lab, tmp_path):
    for name in ("random", "json", "copy", "tempfile"):
        ssh_lab.write_in_homes(f"{name}.py", "raise SystemExit('a file of the user was imported')\n")
    (tmp_path / "source").write_text("content")
    found = ask(ssh_lab, source=str(tmp_path / "source"), target=str(tmp_path / "to"), home=str(tmp_path / "back"))
    assert found.get("fetched") == ["file"], found


@pytest.mark.parametrize("user", ["-oProxyCommand=touch {witness}", "x -oProxyCommand=touch {witness}"])
def test_a_user_name_does_not_become_an_option(user, ssh_lab, tmp_path, saw):
    witness = tmp_path / "witness"
    found = ask(ssh_lab, user=user.format(witness=witness))
    assert "ssh to 10.77.0.1: " in found["error"]
    assert list(tmp_path.glob("witness*")) == []
    saw("over ssh: --ssh_username that is an option of ssh", found["error"], None)


def test_homes_that_differ_are_no_place_for_a_copy(ssh_lab):
    other = ssh_lab.folder / "other-home"
    ssh_lab.write_in_homes(".bashrc", f'[ "$(hostname)" = machine-1 ] && HOME={other}\n')
    assert f"'{other}' on machine-1" in ask(ssh_lab)["error"]
