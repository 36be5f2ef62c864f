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
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.cluster import namespaces
from tutorial_lib.cluster.emulated import PYTHONPATH, EmulatedCluster
from tutorial_lib.cluster.plan import run_module
from tutorial_lib.cluster.spec import KILLED_SECONDS, wait_or_kill
from tutorial_lib.cluster.standing import Line, names
from tutorial_lib.errors import InputError, attempts

PORT = 2222
SERVER_SECONDS, CONNECT_SECONDS = 20.0, 10.0
PIECE = 1 << 16
MODULE = "tutorial_lib.cluster.ssh_servers"
SBIN = "/usr/sbin:/usr/local/sbin"


@contextlib.contextmanager
def ssh_servers(cluster: EmulatedCluster, name: str) -> Iterator[str]:
    """Start one on each machine of an entered cluster, with keys of its own; gives the path of the configuration.

    Args:
        name: the machines'.

    Raises:
        InputError: there is no ssh server on this computer, or one does not start.
    """
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SBIN}")
    if sshd is None or shutil.which("ssh-keygen") is None:
        raise InputError("--ssh: this computer has no ssh server", "Install one: sudo apt install openssh-server")
    prefix = f"tutorial_lib-{os.getuid()}-{name}.ssh-"  # a name has no dot: not the folder of lab-ssh
    for stale in Path(tempfile.gettempdir()).glob(f"{prefix}*"):  # of a keeper that was killed
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, contextlib.ExitStack() as stack:
        config = _write_configuration(cluster, name, Path(folder))
        for machine in cluster.machines:
            log = Path(folder, f"sshd-{machine.name}.log")
            with log.open("wb") as stream:
                command, fds = cluster.command(machine, [sshd, "-D", "-e", "-f", f"{folder}/sshd_config"], as_user=True)
                server = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
            stack.callback(wait_or_kill, server, KILLED_SECONDS)
            # Not killed: who has entered the machine for it must fetch its end, or the machine waits for that.
            stack.callback(server.terminate)
            for _left in attempts(f"the ssh server on {machine.name}", SERVER_SECONDS):
                if b"Server listening" in (said := log.read_bytes()):
                    break
                if server.poll() is not None:
                    raise InputError(f"the ssh server on {machine.name}: {said.decode(errors='replace').strip()}")
        yield str(config)


def _write_configuration(cluster: EmulatedCluster, name: str, folder: Path) -> Path:
    for key in ("host_key", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"tutorial_lib {name}", "-f", str(folder / key)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    host_key = (folder / "host_key.pub").read_text().strip()
    hosts = [host for machine in cluster.machines for host in (machine.name, machine.address)]
    (folder / "known_hosts").write_text("".join(f"[{host}]:{PORT} {host_key}\n" for host in hosts))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server refuses to start without it
    server = {
        **{"Port": PORT, "HostKey": folder / "host_key", "AuthorizedKeysFile": folder / "key.pub"},
        **{"PidFile": "none", "StrictModes": "no", "UsePAM": "no", "PermitRootLogin": "yes", "PrintMotd": "no"},
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in server.items()))
    proxy = shlex.join(["env", f"PYTHONPATH={PYTHONPATH}", *run_module(sys.executable, MODULE)])
    lines = [
        f"Host {' '.join(hosts)}",
        f"    User {pwd.getpwuid(os.getuid()).pw_name}",
        f"    Port {PORT}",
        f"    IdentityFile {folder}/key",
        "    IdentitiesOnly yes",
        f"    UserKnownHostsFile {folder}/known_hosts",
        "    StrictHostKeyChecking yes",
        f"    ProxyCommand {proxy} {name} %h %p",
    ]
    config = folder / "ssh_config"
    config.write_text("\n".join(lines) + "\n")
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
