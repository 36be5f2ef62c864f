"""The pods of an Indexed Job of Kubernetes: what each container runs, ``python -m tutorial_lib agent --from-env``.

Each pod has an ssh server without privileges, with the keys of its Job's Secret. Pod 0 waits for the others under the
names that the headless Service gives them (``JOB-1.JOB``), and runs the command over ssh.

    pod 0: command --- ssh --------------------------> every pod
             `-------- OUT.finished, on the volume --> pod 1, 2, ..., which then end with code 0

Where pod 0 is lost, Kubernetes starts it again, and the run goes on from its last checkpoint: the others are there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.cluster import ssh_servers
from tutorial_lib.cluster.environment import run_module
from tutorial_lib.cluster.spec import Machine, write_ip_config
from tutorial_lib.cluster.ssh_servers import KEYS, PORT
from tutorial_lib.errors import InputError, JobError, as_a_shell_says
from tutorial_lib.files import find_program

LOOK_SECONDS, VOLUME_SECONDS, SAY_SECONDS = 0.2, 2.0, 15.0  # many pods look into one volume
TRIES, PAUSE_SECONDS = 3, 10.0
NO_NAMES = ("on", "off", "yes", "no", "y", "n", "true", "false", "null")  # YAML takes them for something else
LOGIN = ("HOME", "LOGNAME", "SHELL", "TERM", "USER", "_", "PWD", "OLDPWD", "SHLVL")  # a login has its own


@dataclass(frozen=True)
class Pod:
    """What the manifest tells a pod.

    Attributes:
        index: of this pod, from 0.
        pods: how many there are.
        job: name of the Job and of its Service.
        command: of tutorial_lib; pod 0 runs it.
        keys: folder of the Secret.
        out: run folder, on the volume that all pods share.
        wait: seconds that pod 0 waits for the others to be there, and each of them for its word: the time of the job.
    """

    index: int
    pods: int
    job: str
    command: list[str]
    keys: Path
    out: Path
    wait: float

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Pod:
        """From the variables that ``submit --kubernetes`` writes into the manifest, and Kubernetes' own.

        Raises:
            InputError: one is missing, or not what it should be.
        """
        remedy = "This is what a pod of a manifest runs; write one with: submit --kubernetes --image IMAGE train ..."
        for name in ("JOB_COMPLETION_INDEX", "TUTORIAL_PODS", "TUTORIAL_JOB", "TUTORIAL_SETTINGS", "TUTORIAL_OUT"):
            if not env.get(name):
                raise InputError(f"agent --from-env: the variable {name} is not set", remedy)
        try:
            index, pods = int(env["JOB_COMPLETION_INDEX"]), int(env["TUTORIAL_PODS"])
            wait = float(env.get("TUTORIAL_WAIT", 600))
        except ValueError as error:
            raise InputError(f"agent --from-env: {error}", remedy) from None
        if not 0 <= index < pods:
            raise InputError(f"agent --from-env: pod {index} of {pods}; they are counted from 0", remedy)
        folder = Path(env["TUTORIAL_SETTINGS"])
        try:
            command = json.loads((folder / "command.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"agent --from-env: {folder / 'command.json'}: {error}", remedy) from None
        keys = Path(env.get("TUTORIAL_KEYS", folder / "keys"))
        if missing := [name for name in KEYS if not (keys / name).exists()]:
            raise InputError(f"agent --from-env: {keys / missing[0]} is missing", remedy)
        return cls(index, pods, env["TUTORIAL_JOB"], command, keys, Path(env["TUTORIAL_OUT"]), wait)

    @property
    def finished(self) -> Path:
        """The file beside the run folder that says that all is done."""
        return self.out.with_name(f"{self.out.name}.finished")

    def has_finished(self) -> bool:
        """Whether it is there; a volume that does not answer now will later."""
        with contextlib.suppress(OSError):
            return self.finished.exists()
        return False

    def host(self, index: int) -> str:
        """Name of a pod within its namespace: that of an Indexed Job's pod, and its Service's."""
        return f"{self.job}-{index}.{self.job}"


def run(pod: Pod) -> int:
    """What this pod has to do; the exit code of its container.

    Raises:
        InputError, JobError: another pod cannot be reached, nobody came, or the ssh server has ended.
    """
    if pod.has_finished():  # and this pod was lost before Kubernetes knew
        print(f"{pod.out}: this run has ended well before; to run again: submit --out another folder", flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="pod-") as folder, _ssh_server(pod, Path(folder)) as server:
        return _coordinate(pod, Path(folder)) if pod.index == 0 else _attend(pod, server)


def _ssh_server(pod: Pod, folder: Path) -> contextlib.AbstractContextManager[subprocess.Popen]:
    sshd = find_program("sshd")
    if sshd is None:
        raise InputError("this image has no ssh server", "In its Dockerfile: apt-get install openssh-server")
    for name in KEYS:  # a Secret's files are root's; ssh wants them to be its own
        (folder / name).touch(0o600)
        (folder / name).write_bytes((pod.keys / name).read_bytes())
    # What the manifest sets (NCCL_DEBUG, LD_LIBRARY_PATH) is for every process; a login would begin without it.
    kept = {name: value for name, value in os.environ.items() if name not in LOGIN and "\n" not in value}
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in kept.items()}
    options = ssh_servers.write_server_configuration(
        folder,
        **{"PasswordAuthentication": "no", "AllowTcpForwarding": "no", "X11Forwarding": "no", "PermitRootLogin": "no"},
        # A pod 0 that is gone without a word (its node has no power) is noticed within twenty seconds.
        **{"UseDNS": "no", "ClientAliveInterval": 5, "ClientAliveCountMax": 4},
        SetEnv=" ".join(f'{name}="{value}"' for name, value in escaped.items()),
    )
    return ssh_servers.ssh_server("the ssh server of this pod", [sshd, *options], folder / "sshd.log")


def _attend(pod: Pod, server: subprocess.Popen) -> int:
    """Be there until pod 0 says that all is done."""
    deadline = time.monotonic() + pod.wait
    print(f"pod {pod.index} of {pod.pods}: here until {pod.host(0)} says that all is done", flush=True)
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise JobError(f"the ssh server of this pod ended with code {server.returncode}")
        if pod.has_finished():
            return 0
        time.sleep(VOLUME_SECONDS)
    raise JobError(
        f"pod {pod.index}: no word from pod 0 ({pod.host(0)}) for {pod.wait:g} s",
        f"Does it run? kubectl get pods -l job-name={pod.job}. And: kubectl logs job/{pod.job}",
    )


def _coordinate(pod: Pod, folder: Path) -> int:
    """Wait for the others, run the command on all, and say when it has ended well."""
    code = 0
    for attempt in range(TRIES):
        addresses = _addresses(pod)
        write_ip_config(folder / "ip_config.txt", [Machine(pod.host(k), found) for k, found in enumerate(addresses)])
        ssh_servers.write_client_configuration(folder, addresses)
        code = _run_command(pod, folder)
        # Wrong arguments, or a pod that went away just before it was asked: another attempt finds its successor.
        if code != InputError.exit_code or attempt == TRIES - 1:
            break
        time.sleep(PAUSE_SECONDS)
    if code == 0:
        pod.finished.touch()
    return code


def _addresses(pod: Pod) -> list[str]:
    """IPv4 addresses of all pods, when their ssh servers answer."""
    found: dict[int, str] = {}
    said, deadline = time.monotonic(), time.monotonic() + pod.wait
    while True:
        why = {}
        for k in set(range(pod.pods)) - set(found):
            name = pod.host(k)
            try:
                address = socket.gethostbyname(name)
                socket.create_connection((address, PORT), timeout=2).close()
                found[k] = address
            except OSError as error:
                unknown = isinstance(error, socket.gaierror)
                why[k] = f"{name} ({'the name is not known yet' if unknown else f'port {PORT}: {error}'})"
        if not why:
            return [found[k] for k in range(pod.pods)]
        missing = ", ".join(why[k] for k in sorted(why))
        if time.monotonic() > deadline:
            raise JobError(
                f"waited {pod.wait:g} s for {missing}",
                f"Are all pods running? kubectl get pods -l job-name={pod.job}. And: kubectl describe job {pod.job}",
            )
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            print(f"waiting for {missing}", flush=True)
        time.sleep(LOOK_SECONDS)


def _run_command(pod: Pod, folder: Path) -> int:
    """The command, with the machines; it continues where an earlier pod 0 has left a checkpoint."""
    kind, *rest = pod.command
    more = ["--ssh_config", str(folder / "ssh_config"), "--out", str(pod.out)]
    if kind == "launch":  # the script reads the addresses too: where its options say
        given: dict[str, str] = {}
        for word, following in itertools.pairwise([*rest, ""]):
            name, equals, value = word.partition("=")
            given.setdefault(name, value if equals else following)
        where = Path(given.get("--workspace", ""), given.get("--ip_config", "ip_config.txt"))
        shutil.copy(folder / "ip_config.txt", where)
    else:
        more += ["--ip_config", str(folder / "ip_config.txt")]
    begun = {"train": "checkpoint/manifest*.json", "finale": "options.json"}.get(kind)
    if begun and any(pod.out.glob(begun)):
        more.append("--resume")
    elif pod.out.exists():  # an earlier pod 0 has not come so far
        pod.out.rename(pod.out.with_name(f"{pod.out.name}-broken-{time.time_ns()}"))
    process = subprocess.Popen([*run_module(sys.executable, "tutorial_lib"), kind, *more, *rest])
    for number in (signal.SIGTERM, signal.SIGINT):  # Kubernetes wants the node: the run ends in order
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    return as_a_shell_says(process.wait())


def new_keys(job: str) -> dict[str, str]:
    """Of a Job: of its ssh servers, and of pod 0, by the names of their files."""
    if shutil.which("ssh-keygen") is None:
        raise InputError("no ssh-keygen on this computer", "Install it: sudo apt install openssh-client")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", job) or job in NO_NAMES:
        raise InputError(f"--name {job}: Kubernetes takes small letters, digits and dashes, at most 42")
    with tempfile.TemporaryDirectory() as folder:
        ssh_servers.write_keys(Path(folder), job)
        return {name: Path(folder, name).read_text() for name in KEYS}
