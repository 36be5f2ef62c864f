"""The contract of ``Backend``, the same for all backends. For Slurm, test_slurm.py checks it in an allocation."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import wait_until
from runtime_support import MARK, marked_processes
from ssh_support import needs

from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import Backend, LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.persistent import PersistentBackend, start_machines, stop_machines
from tutorial_lib.launcher.backends.remote import ClientBackend, SshBackend
from tutorial_lib.launcher.jobspec import JobSpec, Machine

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]
# Print the name of the machine, and return each line of the input at once.
ECHO = """
import os, socket, sys
print(socket.gethostname(), flush=True)
for line in sys.stdin.buffer:
    os.write(1, line)
sys.exit(7)
"""
BINARY_LINE = b"\x00\xff\r neither a text nor JSON\n"


class ShellBackend(ClientBackend):
    """A new client needs only its command."""

    machines = [Machine(socket.gethostname(), "127.0.0.1")]  # noqa: RUF012

    def client(self, machine: Machine) -> list[str]:  # noqa: ARG002
        return ["sh", "-c"]


@pytest.fixture(params=["local", "client", "emulated", "private disks", "persistent", "ssh"])
def backend(request, emulation) -> Iterator[Backend]:
    """A backend that has not been entered. The machines of ssh run real servers and have private disks."""
    kinds = {"local": LocalBackend, "client": ShellBackend, "emulated": lambda: EmulatedBackend(2)}
    kinds["private disks"] = lambda: EmulatedBackend(2, own_disks=True)
    if request.param in kinds:
        yield kinds[request.param]()
        return
    if ssh := request.param == "ssh":
        needs("sshd", "openssh-server")
    state = start_machines(2, name="contract", ttl="5m", ssh=ssh, own_disks=ssh)
    machines = list(map(Machine, state.machines, state.addresses))
    yield SshBackend(machines, config=state.ssh_config, copy_to="~/copy") if ssh else PersistentBackend("contract")
    stop_machines("contract")


def check_contract(backend: Backend, folder: Path) -> None:
    """Check what ``Backend`` documents, with files in ``folder``, which is in /tmp."""
    mark = os.environ[MARK]  # ssh passes no variables
    before = marked_processes(mark)
    (folder / "witness").touch()
    with backend, Agents(backend, folder) as agents:  # which calls ``resolve``
        findings = agents.prepare(JobSpec(backend.machines, [], cwd="", log_dir="", master_port=0))
        assert {finding.status for finding in findings} == {"ok"}, findings  # each machine has its address
        for machine in backend.machines:
            command = ["env", f"{MARK}={mark}", sys.executable, "-c", ECHO]  # the interpreter of the machine
            with backend.popen(machine, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert os.getsid(process.pid) == process.pid
                name = socket.gethostname() if isinstance(backend, LocalBackend) else machine.name
                assert next(line for line in process.stdout if line.strip()) == f"{name}\n".encode()
                process.stdin.write(BINARY_LINE)
                process.stdin.flush()
                assert process.stdout.readline() == BINARY_LINE
                process.stdin.close()
                assert process.wait(timeout=20) == 7
            if backend.traits.silence_seconds is None:  # no client has an exit code of its own
                assert backend.popen(machine, ["sh", "-c", "kill -9 $$"]).wait(timeout=20) == -signal.SIGKILL
            copy_to, shell = backend.traits.copy_to, backend.rsync_shell(machine)
            hidden = backend.popen(machine, ["test", "-e", str(folder / "witness")]).wait(timeout=20)
            assert (hidden, bool(shell)) == ((0, False) if copy_to is None else (1, True))
            assert copy_to is None or copy_to.startswith("/")
            if shell:
                assert subprocess.check_output([*shell, machine.address, "hostname"]).decode().strip() == machine.name
            assert {machine.name, machine.address} & set(backend.traits.label.format(machine).split())
            assert not any("{" in backend.remedy(machine, line) for line in ("", "Permission denied"))
    wait_until(lambda: marked_processes(mark) <= before, "the end of all processes of the backend")


def test_contract_of_backends(backend, tmp_path):
    check_contract(backend, tmp_path)
