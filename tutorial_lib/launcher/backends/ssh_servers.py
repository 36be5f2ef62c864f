"""An ssh server on each emulated machine, and a configuration with which ``ssh -F CONFIG machine-0`` reaches them.

The network of this computer does not reach the machines. So this module is also the ``ProxyCommand`` of ssh, which
enters the network of the machines, connects there, and passes the connection to ssh.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tutorial_lib.errors import InputError, attempts
from tutorial_lib.launcher.backends import disks, namespaces
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.environment import run_module

PORT = 2222
START_SECONDS, CONNECT_SECONDS = 20.0, 10.0


def find_program(name: str) -> str | None:
    """Return the path of a program, or None. For each folder ``X/bin`` of PATH, ``X/sbin`` is searched as well."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    servers = [f"{folder.removesuffix('bin')}sbin" for folder in folders if folder.endswith("/bin")]
    return shutil.which(name, path=os.pathsep.join([*folders, *servers]))


def check_programs() -> str:
    """Return the path of the ssh server. Raises InputError if a program of it is missing on this computer."""
    sshd = find_program("sshd")
    if sshd is None or find_program("ssh-keygen") is None:
        raise InputError("--ssh: this computer has no ssh server", "Install one: sudo apt install openssh-server")
    return sshd


def start_ssh_servers(cluster: EmulatedBackend, name: str) -> str:
    """Start a server, which ends with its machine, on each machine. Returns the path of the client's configuration."""
    sshd, folder = check_programs(), Path(f"{cluster.folder}/ssh")
    folder.mkdir()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server refuses to start without it
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"tutorial_lib {name}", "-f", f"{folder}/key"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    # One key identifies the servers and the user.
    server = {"Port": PORT, "HostKey": f"{folder}/key", "AuthorizedKeysFile": f"{folder}/key.pub", "PidFile": "none"}
    server |= {"StrictModes": "no", "UsePAM": "no", "PrintMotd": "no", "PermitRootLogin": "yes"}
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in server.items()))
    module = run_module(sys.executable, "tutorial_lib.launcher.backends.ssh_servers")
    proxy = shlex.join(["env", f"PYTHONPATH={disks.python_path()}", *module, name])
    client = {"User": pwd.getpwuid(os.getuid()).pw_name, "Port": PORT, "IdentityFile": f"{folder}/key"}
    client |= {"IdentitiesOnly": "yes", "ProxyCommand": f"{proxy} %h %p", "ProxyUseFdpass": "yes"}
    # The servers can be reached through the machines' namespaces only, so nobody can imitate them.
    client |= {"StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}
    hosts = " ".join(host for machine in cluster.machines for host in (machine.name, machine.address))
    lines = [f"Host {hosts}", *(f"    {key} {value}" for key, value in client.items())]
    (folder / "ssh_config").write_text("\n".join([*lines, ""]))
    for machine in cluster.machines:
        log = folder / f"sshd-{machine.name}.log"
        words = [sshd, "-E", str(log), "-f", f"{folder}/sshd_config"]
        if machine in cluster.separate:
            shutil.copytree(folder, cluster.on_disk(machine, folder))
            log = cluster.on_disk(machine, log)
        log.touch()
        command = cluster.command(machine, words, "/", as_user=True)
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
        for _left in attempts(f"the ssh server on {machine.name}", START_SECONDS):
            if "fatal" in (text := log.read_text(errors="replace")):
                raise InputError(f"the ssh server on {machine.name}: {text.strip()}")
            if "Server listening" in text:
                break
    return f"{folder}/ssh_config"


def main() -> None:
    """Connect to a port of a machine, and pass the connection to ssh."""
    from tutorial_lib.launcher.backends import persistent

    name, host, port = sys.argv[1:]
    found = persistent.describe(name)
    if socket.gethostname() not in found.machines:  # otherwise this process runs on a machine
        namespaces.enter(found.pids[0])  # its /etc/hosts has the names of all
    with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
        connection.settimeout(None)
        socket.send_fds(socket.socket(fileno=1), [b"\0"], [connection.fileno()])


if __name__ == "__main__":
    main()
