"""ssh servers on emulated machines that stay, and the configuration with which ``ssh -F CONFIG machine-0`` gets there.

No address of a machine can be reached from this computer's own network. So a connection starts here in a process that
enters the network of the machines, the ``ProxyCommand`` of the configuration: ``python -m
tutorial_lib.cluster.ssh_servers NAME HOST PORT``. On the machines themselves it connects as any program does.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tutorial_lib.cluster import namespaces
from tutorial_lib.cluster.emulated import PYTHONPATH, EmulatedCluster
from tutorial_lib.cluster.environment import run_module
from tutorial_lib.cluster.spec import KILLED_SECONDS, wait_or_kill
from tutorial_lib.cluster.standing import Line, names
from tutorial_lib.errors import InputError, attempts
from tutorial_lib.files import find_program

PORT = 2222
KEYS = ("host_key", "host_key.pub", "key", "key.pub")  # of the servers, and of the only user who may log in
SERVER_SECONDS, CONNECT_SECONDS = 20.0, 10.0
PIECE = 1 << 16
MODULE = "tutorial_lib.cluster.ssh_servers"


@contextlib.contextmanager
def ssh_servers(cluster: EmulatedCluster, name: str) -> Iterator[str]:
    """Start one on each machine of an entered cluster, with keys of its own; gives the path of the configuration.

    Args:
        name: the machines'.

    Raises:
        InputError: there is no ssh server on this computer, or one does not start.
    """
    sshd = find_program("sshd")
    if sshd is None or find_program("ssh-keygen") is None:
        raise InputError("--ssh: this computer has no ssh server", "Install one: sudo apt install openssh-server")
    prefix = f"tutorial_lib-{os.getuid()}-{name}.ssh-"  # a name has no dot: not the folder of lab-ssh
    for stale in Path(tempfile.gettempdir()).glob(f"{prefix}*"):  # of a keeper that was killed
        shutil.rmtree(stale, ignore_errors=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server refuses to start without it
    with tempfile.TemporaryDirectory(prefix=prefix) as text, contextlib.ExitStack() as stack:
        folder = Path(text)
        write_keys(folder, f"tutorial_lib {name}")
        options = write_server_configuration(folder, PermitRootLogin="yes")
        hosts = [host for machine in cluster.machines for host in (machine.name, machine.address)]
        proxy = shlex.join(["env", f"PYTHONPATH={PYTHONPATH}", *run_module(sys.executable, MODULE)])
        config = write_client_configuration(folder, hosts, f"ProxyCommand {proxy} {name} %h %p")
        for machine in cluster.machines:
            if machine in cluster.separate:
                shutil.copytree(folder, cluster.on_disk(machine, folder))
            command, fds = cluster.command(machine, [sshd, *options], as_user=True)
            log = folder / f"sshd-{machine.name}.log"
            stack.enter_context(ssh_server(f"the ssh server on {machine.name}", command, log, fds))
        yield str(config)


@contextlib.contextmanager
def ssh_server(what: str, command: Sequence[str], log: Path, fds: Sequence[int] = ()) -> Iterator[subprocess.Popen]:
    """One that listens; told to end on leaving. Raises InputError with what it says, when it ends at once."""
    with log.open("wb") as stream:
        server = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        for _left in attempts(what, SERVER_SECONDS):
            if b"Server listening" in (said := log.read_bytes()):
                break
            if server.poll() is not None:
                raise InputError(f"{what}: {said.decode(errors='replace').strip()}")
        yield server
    finally:
        # Not killed: who has entered a machine for it must fetch its end, or the machine waits for that.
        server.terminate()
        wait_or_kill(server, KILLED_SECONDS)


def write_keys(folder: Path, comment: str) -> None:
    """Make new ``KEYS`` in a folder."""
    for key in ("host_key", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(folder / key)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def write_server_configuration(folder: Path, **more: object) -> list[str]:
    """``sshd_config``, with the keys of the folder; returns the options of a server that stays in the foreground."""
    settings = {
        **{"Port": PORT, "HostKey": folder / "host_key", "AuthorizedKeysFile": folder / "key.pub", "PidFile": "none"},
        **{"StrictModes": "no", "UsePAM": "no", "PrintMotd": "no", **more},
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return ["-D", "-e", "-f", f"{folder}/sshd_config"]


def write_client_configuration(folder: Path, hosts: Sequence[str], *more: str) -> Path:
    """``ssh_config``, for logins with the keys of the folder to these hosts; returns its path."""
    host_key = (folder / "host_key.pub").read_text().strip()
    (folder / "known_hosts").write_text("".join(f"[{host}]:{PORT} {host_key}\n" for host in hosts))
    lines = [f"Host {' '.join(hosts)}", f"User {pwd.getpwuid(os.getuid()).pw_name}", f"Port {PORT}", *more]
    lines += [f"IdentityFile {folder}/key", "IdentitiesOnly yes"]
    lines += [f"UserKnownHostsFile {folder}/known_hosts", "StrictHostKeyChecking yes"]
    (config := folder / "ssh_config").write_text("\n    ".join(lines) + "\n")
    return config


def main() -> None:
    """Connect standard input and output with a port of a machine."""
    name, host, port = sys.argv[1:]
    if name in names():  # else this is a machine
        line = Line(name)
        for fd in line.namespaces()[0]:  # with its /etc/hosts, which has the names of all
            namespaces.setns(fd, 0, "enter the network of the machines")
        line.close()
    with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
        connection.settimeout(None)
        while True:
            ready = select.select([0, connection], [], [])[0]
            if connection in ready:
                if not (piece := connection.recv(PIECE)):
                    return
                os.write(1, piece)
            if 0 in ready:
                if not (piece := os.read(0, PIECE)):
                    return
                connection.sendall(piece)


if __name__ == "__main__":
    main()
