"""What the pods of a Job run, on emulated machines: a pod's user, environment, read-only root, and a Service's names.

There is no Kubernetes here: the manifest is held to the published schemas, and what its pods would do is done.
"""

from __future__ import annotations

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
from commands import PYTHONPATH_OF_ALL, ordinary_user, tutorial, wait_until

from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.pods import Pod
from tutorial_lib.errors import InputError
from tutorial_lib.files import find_program
from tutorial_lib.tools.cli.submit import seconds_of

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make venv installs it")

SMALL = ["--scale", "0.002", "--fanouts", "5,5", "--hidden-size", "16", "--batch-size", "100", "--root", "/srv/data"]
USER = "65534"
# As root on a machine, before it becomes the container: nothing is writable but what a pod has mounted.
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


def manifest(folder: Path, *words: str, nodes: int = 2, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The documents that ``submit --kubernetes`` writes."""
    folder.mkdir(exist_ok=True)
    more = ["--kubernetes", "--image", "registry.example/dgl:1", "--nodes", str(nodes), "--out", "runs/dgl", *options]
    tutorial("submit", *more, *words, cwd=folder)
    return list(yaml.safe_load_all((folder / "job.yaml").read_text()))


class Pods:
    """Emulated machines that are the pods of a manifest."""

    def __init__(
        self, cluster: EmulatedCluster, folder: Path, documents: list[dict], variables: dict[str, str]
    ) -> None:
        self.cluster, self.folder = cluster, folder
        objects = {document["kind"]: document for document in documents}
        job = objects["Job"]
        self.name = job["metadata"]["name"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        self.args = container["args"]
        self.env = {entry["name"]: entry["value"] for entry in container["env"]}
        for kind, where, key in (("ConfigMap", "settings", "data"), ("Secret", "settings/keys", "stringData")):
            (folder / where).mkdir(parents=True)
            for name, text in objects[kind][key].items():
                (folder / where / name).write_text(text)
        (folder / "data").mkdir()
        (folder / "data").chmod(0o777)
        hosts = ["127.0.0.1 localhost"]
        hosts += [f"{m.address} {self.name}-{k}.{self.name} {self.name}-{k}" for k, m in enumerate(cluster.machines)]
        (folder / "hosts").write_text("\n".join(hosts) + "\n")
        (folder / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\ncourse:x:{USER}:{USER}::/usr:/bin/bash\n")
        # Where the mounts of a pod are /data and /tmp, here they are folders that every computer has.
        self.env |= {"TUTORIAL_SETTINGS": "/media", "TUTORIAL_KEYS": "/media/keys", "HOME": "/mnt", "TMPDIR": "/mnt"}
        self.env |= {"PYTHONPATH": PYTHONPATH_OF_ALL, "PATH": os.environ["PATH"], **variables}

    def start(self, index: int) -> subprocess.Popen:
        """The container of a pod."""
        python, _ = ordinary_user()
        env = [f"{name}={value}" for name, value in {**self.env, "JOB_COMPLETION_INDEX": str(index)}.items()]
        inside = ["env", "-i", *env, python, "-B", "-m", "tutorial_lib", *self.args]
        script = CONTAINER.format(folder=self.folder, user=USER)
        command = ["sh", "-c", script, "container", *inside]
        log = (self.folder / f"pod-{index}.log").open("ab")
        with log:
            return self.cluster.popen(self.cluster.machines[index], command, stdout=log, stderr=log)

    def log(self, index: int) -> str:
        """What a pod printed."""
        return (self.folder / f"pod-{index}.log").read_text()


@pytest.fixture
def pods(emulation, nothing_left, tmp_path) -> Iterator[Any]:
    """``pods(documents, **variables)``: the machines of a manifest, switched off at the end."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None or find_program("sshd") is None:
        pytest.skip("needs root, setpriv and an ssh server")
    with contextlib.ExitStack() as stack:

        def make(documents: list[dict[str, Any]], **variables: str) -> Pods:
            nodes = next(d["spec"]["completions"] for d in documents if d["kind"] == "Job")
            return Pods(stack.enter_context(EmulatedCluster(nodes)), tmp_path, documents, variables)

        yield make


@pytest.mark.cluster
def test_the_pods_of_a_job_train_and_end_well(pods, tmp_path):
    documents = manifest(tmp_path / "m", "train", *SMALL, "--epochs", "2", options=("--env", "MY_SETTING=a b"))
    job = pods(documents)
    first, second = job.start(0), job.start(1)
    assert (first.wait(240), second.wait(30)) == (0, 0), job.log(0) + job.log(1)
    result = json.loads((tmp_path / "data" / "runs" / "dgl" / "result.json").read_text())
    assert (result["machines"], len(result["epochs"])) == (2, 2)
    assert sorted(result["bytes_sent"]) == ["machine-0", "machine-1"]  # host names: those of the pods, on a cluster
    # Lost after its work, before Kubernetes knew: the pods come again, and only tell each other.
    first, second = job.start(0), job.start(1)
    assert (first.wait(60), second.wait(30)) == (0, 0), job.log(0) + job.log(1)
    assert job.log(0).count("global result") == 1


@pytest.mark.cluster
def test_a_lost_pod_0_comes_again_and_goes_on(pods, tmp_path):
    """Told to end in training, as when its node is drained; the other pod waits, and the run goes on."""
    job = pods(manifest(tmp_path / "m", "train", *SMALL, "--epochs", "400"))
    first, second = job.start(0), job.start(1)
    wait_until(lambda: "epoch   2/400" in job.log(0) or first.poll() is not None, "the second epoch", 120)
    assert first.poll() is None, job.log(0)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 143, job.log(0)
    assert "told to end (SIGTERM); everything that was started has been stopped" in job.log(0)
    assert second.poll() is None, job.log(1)
    command = json.loads((tmp_path / "settings" / "command.json").read_text())
    command[command.index("400")] = str(len_of_run(tmp_path) + 3)
    (tmp_path / "settings" / "command.json").write_text(json.dumps(command))
    again = job.start(0)
    assert (again.wait(240), second.wait(30)) == (0, 0), job.log(0) + job.log(1)
    result = json.loads((tmp_path / "data" / "runs" / "dgl" / "result.json").read_text())
    assert result["resumed_epochs"] >= 1


def len_of_run(folder: Path) -> int:
    """Epochs that were finished."""
    events = (folder / "data" / "runs" / "dgl" / "events.jsonl").read_text().splitlines()
    return sum('"kind": "epoch"' in event for event in events)


@pytest.mark.cluster
def test_waits_have_limits_and_name_who_is_missing(pods, tmp_path):
    job = pods(manifest(tmp_path / "m", "train", *SMALL), TUTORIAL_WAIT="3")
    alone = job.start(0)
    assert alone.wait(60) == 1
    assert "waited 3 s for dgl-1.dgl (port 2222: " in job.log(0)
    assert "kubectl get pods -l job-name=dgl" in job.log(0)
    alone = job.start(1)
    assert alone.wait(60) == 1
    assert "pod 1: no word from pod 0 (dgl-0.dgl) for 3 s" in job.log(1)


@pytest.mark.cluster
def test_wrong_arguments_end_the_job_with_code_2(pods, tmp_path):
    """The manifest says that Kubernetes need not try again."""
    documents = manifest(tmp_path / "m", "train", "--dataset", "no-such-data")
    rules = next(d for d in documents if d["kind"] == "Job")["spec"]["podFailurePolicy"]["rules"]
    assert rules[0] == {"action": "FailJob", "onExitCodes": {"containerName": "agent", "operator": "In", "values": [2]}}
    job = pods(documents)
    first, second = job.start(0), job.start(1)
    assert first.wait(120) == 2, job.log(0)
    assert "no-such-data" in job.log(0)
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) in (143, -signal.SIGTERM)


@pytest.mark.parametrize("words", [["train"], ["finale", "--yes"], ["launch", "--part_config", "p.json", "x.py 'b c'"]])
@pytest.mark.parametrize("options", [(), ("--gpus-per-node", "2", "--mem", "64G", "--shm", "20Gi", "--name", "my-job")])
def test_the_manifest_is_what_kubernetes_takes(words, options, tmp_path):
    documents = manifest(tmp_path, *words, nodes=4, options=(*options, "--env", 'NCCL_DEBUG="INFO"'))
    assert [d["kind"] for d in documents] == ["Service", "NetworkPolicy", "ConfigMap", "Secret", "Job"]
    for document in documents:
        for version in ("1.29", "1.33", "1.37"):
            kubernetes_validate.validate(document, version, strict=True)
    job = documents[-1]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["completions"], job["parallelism"], job["activeDeadlineSeconds"]) == (4, 4, 3600)
    assert pod["subdomain"] == documents[0]["metadata"]["name"] == documents[-1]["metadata"]["name"]
    command = json.loads(documents[2]["data"]["command.json"])
    assert command[0] == words[0]
    assert command[-len(words) + 1 :] == words[1:] or len(words) == 1
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"] == container["resources"]["requests"]
    shm = next(v for v in pod["volumes"] if v["name"] == "shm")["emptyDir"]
    assert shm == {"medium": "Memory", "sizeLimit": "20Gi" if options else "8Gi"}
    gpus = container["resources"]["limits"].get("nvidia.com/gpu")
    assert gpus == ("2" if options else None)
    if words[0] == "train":
        assert command[1:] == (["--device", "cuda", "--trainers", "2"] if options else [])


def test_a_manifest_with_a_mistake_is_not_taken(tmp_path):
    """The check can fail."""
    *_, job = manifest(tmp_path, "train")
    job["spec"]["completionMode"] = 7
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.33", strict=True)


def test_the_manifest_holds_keys_and_is_private(tmp_path):
    first, second = (manifest(tmp_path / name, "train")[3]["stringData"] for name in "ab")
    assert first["key"] != second["key"]
    assert (tmp_path / "a" / "job.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kubernetes", "train"], "--kubernetes needs --image"),
        (
            ["--kubernetes", "--image", "x", "--name", "My_Job", "train"],
            "--name My_Job: Kubernetes takes small",
        ),
        (["--kubernetes", "--image", "x", "--mem", "much", "train"], "--mem and --shm take sizes like 32G, not much"),
        (["--kubernetes", "--image", "x", "--time", "soon", "train"], "--time soon: write it like 30"),
        (["--kubernetes", "--image", "x", "partition"], "submit partition: it runs train, finale, launch"),
        (["--kubernetes", "--image", "x", "--shm", "32G", "--mem", "32G", "train"], "it is a part of the pod's memory"),
        (["--kubernetes", "--image", "x", "--partition", "gpu", "train"], "--partition is for Slurm"),
        (["--image", "x", "train"], "--image is for Kubernetes"),
        (["--partition", "a\n#SBATCH --nodes=9", "train"], "letters, digits and dashes only"),
        (["--time", "soon", "train"], "--time soon: write it like 30"),
        (["--time", "0", "train"], "--time 0: a job needs some time"),
        (["train", "--out", "x"], "--out is what the script says"),
        (["train", "--dataset", "ogbn-prodcts"], "unknown data set 'ogbn-prodcts'"),
        (["finale", "--dataset", "my_grpah"], "unknown data set 'my_grpah'"),
        (["train", "--scale", "9"], "scale"),
        (["--kubernetes", "--image", "x", "train", "--dataset", "ogbn-prodcts"], "Did you mean ogbn-products?"),
        (["train", "--epohcs", "3"], "Unknown option: --epohcs"),
        (["train", "--epochs", "many"], "Invalid value for --epochs"),
    ],
)
def test_what_submit_refuses(words, says, tmp_path):
    done = tutorial("submit", *words, code=2, cwd=tmp_path)
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_submit_warns_of_paths_that_pods_do_not_have(tmp_path, run_here):
    """A graph on this computer, and not one on the volume; Slurm's nodes share the files."""
    (tmp_path / "my_graph").mkdir()
    (tmp_path / "my_graph" / "x.npz").touch()
    where = ["--kubernetes", "--image", "x", "--script"]
    for number, (words, options) in enumerate(
        [
            (["train", "--dataset", "my_graph"], ["--dataset my_graph"]),
            (["train", "--dataset", f"{tmp_path}/my_graph"], [f"--dataset {tmp_path}/my_graph"]),
            (["launch", "--part_config", "/home/me/g.json", "true"], ["--part_config /home/me/g.json"]),
            (["train", "--dataset", "graphs/mine", "--root", "/data/cache"], []),  # as on the volume
            (["train", "--dataset", "ogbn-products"], []),
        ]
    ):
        done = run_here("submit", *where, f"{number}.yaml", *words)
        assert done.returncode == 0, done.stderr
        wanted = [f"warning: {option} is a path of this computer. The pods read it below /data" for option in options]
        assert [line.partition(", from")[0] for line in done.stderr.splitlines()] == wanted
    done = run_here("submit", "--mem", "32GB", "train", "--dataset", "my_graph")
    assert (done.returncode, done.stderr) == (0, "")
    assert "#SBATCH --mem=32G\n" in (tmp_path / "job.sh").read_text()


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("1:30", 90), ("4:00:00", 14400), ("1-12", 129600), ("1-12:30", 131400), ("2-0:0:5", 172805)],
)
def test_times_as_slurm_writes_them(time, seconds):
    assert seconds_of(time) == seconds


def test_a_pod_s_variables(tmp_path):
    (tmp_path / "command.json").write_text('["train"]')
    (tmp_path / "keys").mkdir()
    for name in ("host_key", "host_key.pub", "key", "key.pub"):
        (tmp_path / "keys" / name).touch()
    env = {"JOB_COMPLETION_INDEX": "1", "TUTORIAL_PODS": "2", "TUTORIAL_JOB": "dgl", "TUTORIAL_OUT": "runs/dgl"}
    env["TUTORIAL_SETTINGS"] = str(tmp_path)
    assert Pod.from_env(env).host(1) == "dgl-1.dgl"
    for change, says in [
        ({"TUTORIAL_JOB": ""}, "the variable TUTORIAL_JOB is not set"),
        ({"JOB_COMPLETION_INDEX": "2"}, "pod 2 of 2; they are counted from 0"),
        ({"TUTORIAL_PODS": "two"}, "invalid literal"),
        ({"TUTORIAL_SETTINGS": "/nowhere"}, "/nowhere/command.json"),
        ({"TUTORIAL_KEYS": "/nowhere"}, "/nowhere/host_key is missing"),
    ]:
        with pytest.raises(InputError, match=says):
            Pod.from_env({**env, **change})
