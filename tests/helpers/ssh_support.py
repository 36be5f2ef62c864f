"""Emulated machines with private disks and real ssh servers, and a login node without a server."""

import contextlib
import functools
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import wait_until

from tutorial_lib.job.ip_config import write_ip_config
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.persistent import find_program
from tutorial_lib.launcher.jobspec import Machine

SSHD = find_program("sshd")
PORT = 2222
LEFT = """
import json, os, psutil
own = {os.getpid(), 1}
names = []
for p in psutil.process_iter():
    try:
        names += [" ".join(p.cmdline())[:90]] if p.pid not in own else []
    except psutil.Error:  # it just ended, or waits for its parent to notice
        pass
ports = sorted({c.laddr.port for c in psutil.net_connections("tcp") if c.status == "LISTEN"})
print(json.dumps([[n for n in names if n and "sshd" not in n], sorted(os.listdir("/dev/shm")), ports]))
"""


def assert_private(cluster: EmulatedBackend, machines: Sequence[Machine], folder: Path) -> None:
    """Check that machines do not see the files in a folder of this computer."""
    (witness := folder / "witness").touch()
    for machine in machines:
        assert cluster.popen(machine, ["test", "-e", str(witness)]).wait(timeout=20) == 1
    witness.unlink()


class SshLab:
    """``machines`` share no folder and run an ssh server each. ``head`` is a login node with this computer's folders.

    ``folder`` is for keys and ``ip_config.txt``. ``home`` is the empty home of the login on the machines.
    """

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.folder = folder
        self.cluster = EmulatedBackend(count + 1, private=[folder.parent])
        self.machines, self.head = self.cluster.machines[:count], self.cluster.machines[count]
        self.cluster.private_disk_machines = self.machines
        self.ip_config, self.home = folder / "ip_config.txt", folder / "home"
        self.env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> "SshLab":
        self.folder.mkdir(exist_ok=True)
        write_ip_config(self.ip_config, self.machines)
        self._make_keys()
        self.cluster.__enter__()
        assert_private(self.cluster, self.machines, self.folder.parent)
        for machine in self.machines:
            shutil.copytree(self.folder, self.cluster.on_disk(machine, self.folder))
            self.cluster.on_disk(machine, self.home).mkdir()
            self.start_server(machine)
        return self

    def on_disks(self, path: Path) -> list[Path]:
        return [self.cluster.on_disk(machine, path) for machine in self.machines]

    def write_in_homes(self, name: str, text: str) -> None:
        for path in self.on_disks(self.home / name):
            path.write_text(text)

    def _make_keys(self) -> None:
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True)
        host_key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text("".join(f"[{m.address}]:{PORT} {host_key}" for m in self.machines))
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        (self.folder / "config").write_text(
            f"Port {PORT}\nUser {pwd.getpwuid(os.getuid()).pw_name}\n"
            f"IdentityFile {self.folder}/user_key\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder}/known_hosts\nStrictHostKeyChecking yes\n"
        )
        wrapper = self.folder / "bin" / "ssh"
        wrapper.parent.mkdir(exist_ok=True)
        # The client finds the user's configuration by the password file, not by $HOME.
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/config "$@"\n')
        wrapper.chmod(0o755)

    def start_server(self, machine: Machine) -> None:
        """Start the ssh server of a machine as a child process."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        words = [f"-oPort={PORT}", f"-oHostKey={self.folder}/host_key", f"-oSetEnv=HOME={self.home}"]
        words += [f"-oAuthorizedKeysFile={self.folder}/authorized_keys", "-oPidFile=none", "-oStrictModes=no"]
        words += ["-oUsePAM=no", "-oPermitRootLogin=yes", "-oPrintMotd=no"]
        command = self.cluster.command(machine, [SSHD, "-D", "-e", "-f", "/dev/null", *words], "/", as_user=True)
        with (self.folder / f"sshd-{machine.name}.log").open("ab") as log:
            self._daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
        wait_until(lambda: PORT in self.left_on(machine)[2], "the ssh server")

    def start(self, *argv: str, **kwargs: Any) -> subprocess.Popen:
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": self.env, **kwargs}
        return self.cluster.popen(self.head, list(argv), **kwargs)

    def run(self, *argv: str, seconds: float = 200, **kwargs: Any) -> subprocess.CompletedProcess:
        """Run a command on the login node and wait for its end."""
        process = self.start(*argv, **kwargs)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"no end within {seconds} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def tutorial(self, *arguments: str, **kwargs: Any) -> subprocess.CompletedProcess:
        return self.run(sys.executable, "-m", "tutorial_lib", *arguments, **kwargs)

    def left_on(self, machine: Machine) -> tuple[list[str], list[str], list[int]]:
        """Return the processes of a machine except its ssh server, the files in /dev/shm and the listening ports."""
        process = self.cluster.popen(machine, [sys.executable, "-c", LEFT], stdout=subprocess.PIPE, text=True)
        return tuple(json.loads(process.communicate(timeout=30)[0]))

    def assert_nothing_left(self, seconds: float = 5.0) -> None:
        """Check that no machine has a process, a segment or a port, except those of the ssh server."""
        deadline = time.monotonic() + seconds
        machines = [*self.machines, self.head]
        while left := [found for m in machines if any(found := self.left_on(m)) and found != ([], [], [PORT])]:
            assert time.monotonic() < deadline, f"left behind (processes, /dev/shm, ports): {left}"
            time.sleep(0.2)

    def __exit__(self, *_exc: object) -> None:
        self.cluster.__exit__()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=5)


def needs(program: str, package: str) -> None:
    """Skip the calling test where a program is missing."""
    if find_program(program) is None:
        pytest.skip(f"no {program} on this computer (apt install {package})")


needs_rsync = functools.partial(needs, "rsync", "rsync")


@pytest.fixture
def ssh_lab(emulation: None, nothing_left: None, tmp_path: Path) -> Iterator[SshLab]:
    """Two machines with private disks and ssh servers, and a login node. Without sshd, the test is skipped."""
    for program, package in {"sshd": "openssh-server", "pkill": "procps", "rsync": "rsync"}.items():
        needs(program, package)
    with SshLab(tmp_path / "ssh") as lab:
        yield lab
