"""An ssh configuration with which ``ssh -F CONFIG machine-0`` reaches the emulated machines.

The network of this computer does not reach the machines. So the ``ProxyCommand`` of ssh starts an ssh server on the
machine for each connection, and talks to it over pipes.
"""

import os
import pwd
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends.emulated import EmulatedBackend


def find_program(name: str) -> str | None:
    """Return the path of a program, or None. For each folder ``X/bin`` of PATH, ``X/sbin`` is searched as well."""
    folders = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=f"{folders}:{re.sub('/bin(?=:|$)', '/sbin', folders)}")


def write_ssh_config(cluster: EmulatedBackend) -> str:
    """Write the configurations of client and server, and return the path of the client's."""
    sshd, folder = find_program("sshd"), Path(f"{cluster.folder}/ssh")
    if sshd is None or find_program("ssh-keygen") is None:
        raise InputError("--ssh: this computer has no ssh server", "Install one: sudo apt install openssh-server")
    folder.mkdir()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server refuses to start without it
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tutorial_lib", "-f", f"{folder}/key"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    # One key identifies the servers and the user.
    server = {"HostKey": f"{folder}/key", "AuthorizedKeysFile": f"{folder}/key.pub", "PermitRootLogin": "yes"}
    server |= {"StrictModes": "no", "UsePAM": "no", "PrintMotd": "no"}
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in server.items()))
    hosts = " ".join(f"{machine.name} {machine.address}" for machine in cluster.machines)
    # Only this user can start the servers, so nobody can imitate one.
    client = {"StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}
    client |= {"User": pwd.getpwuid(os.getuid()).pw_name, "IdentityFile": f"{folder}/key", "IdentitiesOnly": "yes"}
    lines = [f"Host {hosts}", *(f"    {key} {value}" for key, value in client.items())]
    for machine in cluster.machines:
        if machine in cluster.separate:
            shutil.copytree(folder, cluster.on_disk(machine, folder))
        proxy = cluster.command(machine, [sshd, "-i", "-f", f"{folder}/sshd_config"], "/", as_user=True)
        lines += [f"Host {machine.name} {machine.address}", f"    ProxyCommand {shlex.join(proxy).replace('%', '%%')}"]
    (folder / "ssh_config").write_text("\n".join([*lines, ""]))
    return f"{folder}/ssh_config"
