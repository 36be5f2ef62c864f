"""The manifest of ``submit --kubernetes``: its schema, and the script of its pods on emulated machines.

A machine has the user, the environment, the read-only root and the host names of a pod.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import PYTHONPATH_OF_ALL, ordinary_user, read_events, tutorial, wait_until

from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.persistent import find_program

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make venv installs it")

SMALL = ["--scale", "0.002", "--fanouts", "5,5", "--hidden-size", "16", "--batch-size", "100", "--root", "/data/root"]
LAUNCH = ["launch", "--workspace", "w", "--ip_config", "a b.txt", "--part_config", "p.json", "x.py 'b c'"]
USER = "65534"
# Root runs this on a machine before the pod starts. Afterwards only the volumes of a pod are writable.
CONTAINER = """
if ! mountpoint -q /media; then
    umount /etc/hosts  # the machine's own
    set -e
    mount --bind {folder}/hosts /etc/hosts
    mount --bind {folder}/passwd /etc/passwd
    mount --bind {folder}/data /srv
    mount -t tmpfs -o size=64m tmpfs /mnt
    mount --bind {folder}/settings /media
    chmod 1777 /dev/shm
    mount -o remount,bind,ro /
fi
cd /srv
exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


def manifest(folder: Path, *words: str, nodes: int = 2, options: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """The documents that ``submit --kubernetes`` writes, by kind."""
    folder.mkdir(exist_ok=True)
    more = ["--kubernetes", "--image", "registry.example/dgl:1", "--nodes", str(nodes), "--out", "runs/dgl", *options]
    tutorial("submit", *more, *words, cwd=folder)
    documents = yaml.safe_load_all((folder / "job.yaml").read_text())
    return {document["kind"]: document for document in documents}


class Pods:
    """Emulated machines that act as the pods of a manifest. Here the volume ``/data`` is ``/srv``."""

    def __init__(self, cluster: EmulatedBackend, folder: Path, objects: dict[str, Any], variables: dict) -> None:
        self.cluster, self.folder, self.run = cluster, folder, folder / "data" / "runs" / "dgl"
        (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
        self.args = [word.replace("/data/root", "/srv/root") for word in container["args"]]
        (folder / "settings" / "bin").mkdir(parents=True)
        for name, text in {**objects["ConfigMap"]["data"], **objects["Secret"]["stringData"]}.items():
            (folder / "settings" / name).write_text(text)
        python = folder / "settings" / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {ordinary_user()[0]} -B "$@"\n')
        python.chmod(0o755)
        (folder / "data").mkdir()
        (folder / "data").chmod(0o777)
        names = [f"{machine.address} dgl-{k}.dgl dgl-{k}" for k, machine in enumerate(cluster.machines)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        (folder / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\ncourse:x:{USER}:{USER}::/usr:/bin/bash\n")
        self.env = {entry["name"]: entry["value"] for entry in container["env"]}
        self.env |= {"TUTORIAL_KEYS": "/media", "HOME": "/mnt", "TMPDIR": "/mnt"}
        self.env |= {"PYTHONPATH": PYTHONPATH_OF_ALL, "PATH": f"/media/bin:{os.environ['PATH']}", **variables}

    def start(self, index: int) -> subprocess.Popen:
        """Start the container of a pod."""
        env = [f"{name}={value}" for name, value in {**self.env, "JOB_COMPLETION_INDEX": str(index)}.items()]
        script = CONTAINER.format(folder=self.folder, user=USER)
        command = ["sh", "-c", script, "container", "env", "-i", *env, "bash", "/media/pod.sh", *self.args]
        with (self.folder / f"pod-{index}.log").open("ab") as log:
            return self.cluster.popen(self.cluster.machines[index], command, stdout=log, stderr=log)

    def log(self, index: int) -> str:
        """Return the output of a pod."""
        return (self.folder / f"pod-{index}.log").read_text()


@pytest.fixture
def pods(emulation, nothing_left, tmp_path) -> Iterator[Any]:
    """``pods(objects, **variables)`` starts the machines of a manifest, which stop at the end of the test."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None or find_program("sshd") is None:
        pytest.skip("needs root, setpriv and an ssh server")
    with contextlib.ExitStack() as stack:

        def make(objects: dict[str, Any], **variables: str) -> Pods:
            cluster = EmulatedBackend(objects["Job"]["spec"]["completions"])
            return Pods(stack.enter_context(cluster), tmp_path, objects, variables)

        yield make


@pytest.mark.cluster
def test_run_resumes_after_loss_of_pod_0(pods, tmp_path):
    """L2. As on a drained node: SIGTERM ends the run with a checkpoint, and the other pod waits for its successor."""
    job = pods(manifest(tmp_path / "m", "train", *SMALL, "--epochs", "400"))
    first, second = job.start(0), job.start(1)
    wait_until(lambda: "epoch   2/400" in job.log(0) or first.poll() is not None, "the second epoch", 120)
    assert first.poll() is None, job.log(0)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 143, job.log(0)
    assert "terminated by SIGTERM; all started processes have been stopped" in job.log(0)
    assert second.poll() is None, job.log(1)
    epochs = sum(event["kind"] == "epoch" for event in read_events(job.run))
    job.args[job.args.index("400")] = str(epochs + 2)
    first = job.start(0)
    assert (first.wait(240), second.wait(30)) == (0, 0), job.log(0) + job.log(1)
    result = json.loads((job.run / "result.json").read_text())
    assert result["resumed_epochs"] >= 1
    assert sorted(result["bytes_sent"]) == ["machine-0", "machine-1"]
    # Both pods are lost after the end of the run. Their successors do not run it again.
    first, second = job.start(0), job.start(1)
    assert (first.wait(60), second.wait(30)) == (0, 0), job.log(0) + job.log(1)
    assert "this run has finished" in job.log(0)
    assert job.log(0).count("global result") == 1


@pytest.mark.cluster
def test_pod_waits_time_out(pods, tmp_path):
    """L25. ssh asks no question, and a failed login is reported with its reason."""
    job = pods(manifest(tmp_path / "m", "train", *SMALL), TUTORIAL_WAIT="4")
    assert job.start(0).wait(60) == 1
    assert "error: pod 0: waited 4 s for pod 1 (dgl-1.dgl): ssh: connect to host 10.77.0.2 port 2222: " in job.log(0)
    assert "kubectl get pods -l job-name=dgl" in job.log(0)
    assert job.start(1).wait(60) == 1
    assert "error: pod 1: waited 4 s for pod 0 (dgl-0.dgl) to finish" in job.log(1)


@pytest.mark.parametrize("words", [["train"], LAUNCH])
@pytest.mark.parametrize("options", [(), ("--gpus-per-node", "2", "--mem", "64G", "--shm", "20Gi", "--name", "on")])
def test_manifest_matches_kubernetes_schema(words, options, tmp_path):
    objects = manifest(tmp_path, *words, nodes=4, options=options)
    assert list(objects) == ["Service", "NetworkPolicy", "ConfigMap", "Secret", "Job"]
    for document in objects.values():
        for version in ("1.29", "1.37"):
            kubernetes_validate.validate(document, version, strict=True)
    job = objects["Job"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["completions"], job["parallelism"], job["activeDeadlineSeconds"]) == (4, 4, 3600)
    assert pod["subdomain"] == objects["Service"]["metadata"]["name"]
    assert container["args"][0] == words[0]
    script = objects["ConfigMap"]["data"]["pod.sh"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert ("--ip_config" in script) == (words is not LAUNCH)
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    assert given.get("TUTORIAL_IP_CONFIG") == ("w/a b.txt" if words is LAUNCH else None)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"].get("nvidia.com/gpu") == ("2" if options else None)
    assert (tmp_path / "job.yaml").stat().st_mode & 0o777 == 0o600  # it contains a key
