"""Machines, clusters and DGL's ``ip_config.txt``."""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tutorial_lib.errors import InputError

SSH_FAILED = 255  # exit code of the ssh client for its own failures
DEFAULT_PORT = 30050  # the port that DGL's own launch tool uses for server 0


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster.

    Attributes:
        name: host name, used in log folders and messages.
        address: IPv4 address that the other machines reach it at (DGL takes no host names here).
        port: first port of its DGL servers; server k listens on ``port + k``.
        interface: network interface that carries ``address``; None lets the agent find it.
        cpus: CPU numbers its processes may use; empty means all of them.
    """

    name: str
    address: str
    port: int = DEFAULT_PORT
    interface: str | None = None
    cpus: tuple[int, ...] = ()


class Cluster(Protocol):
    """Machines, and one way to start a process on each of them.

    A cluster is a context manager: on leaving, everything it started on any machine is gone.
    """

    machines: list[Machine]
    master_port: int  # where the trainers' process group meets, on the first machine

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine; the arguments are those of ``subprocess.Popen``."""
        ...

    def __enter__(self) -> Cluster: ...

    def __exit__(self, *exc: object) -> None: ...


def write_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the file that tells DGL where the servers are: one line ``address port`` a machine."""
    path.write_text("".join(f"{m.address} {m.port}\n" for m in machines))


def read_ip_config(path: Path) -> list[Machine]:
    """Read an ``ip_config.txt``: one ``address [port]`` a line, machine k on line k.

    Raises:
        InputError: with the line number, for anything DGL would only trip over later: a host name or
            an IPv6 address, a port out of range, the same machine twice, an empty file.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not a text file") from None
    machines: list[Machine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        fields = line.split()
        if len(fields) > 2:
            raise InputError(f"{where}: expected 'address' or 'address port', got {line.strip()!r}")
        try:
            address = str(ipaddress.IPv4Address(fields[0]))
        except ValueError:
            raise InputError(
                f"{where}: {fields[0]!r} is not an IPv4 address",
                "DGL takes IPv4 addresses only; look one up with: getent ahostsv4 NAME",
            ) from None
        port = DEFAULT_PORT
        if len(fields) == 2:
            if not fields[1].isdigit() or not 1024 <= int(fields[1]) <= 65535:
                raise InputError(f"{where}: port {fields[1]!r} is not a number from 1024 to 65535")
            port = int(fields[1])
        if any(m.address == address for m in machines):
            raise InputError(f"{where}: {address} is listed twice; each machine serves exactly one part")
        machines.append(Machine(name=f"machine-{len(machines)}", address=address, port=port))
    if not machines:
        raise InputError(f"{path}: no machine in it")
    return machines
