"""DGL's ``ip_config.txt`` with the addresses of the machines."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.jobspec import DEFAULT_PORT, Machine


def write_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the file from which DGL reads the addresses of the servers, one line ``address port`` for each machine."""
    path.write_text("".join(f"{m.address} {m.port}\n" for m in machines))


def read_ip_config(path: Path) -> list[Machine]:
    """Read one line ``address [port]`` for each machine. An InputError names a line on which DGL would fail later."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        remedy = "Write one line 'address [port]' for each machine, or use emulated machines: --emulate N"
        raise InputError(f"cannot read {path}: {error.strerror}", remedy) from None
    machines: list[Machine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        address, *rest = line.split()
        try:
            address = str(ipaddress.IPv4Address(address))
        except ValueError:
            remedy = "DGL takes IPv4 addresses only; look one up with: getent ahostsv4 NAME"
            raise InputError(f"{location}: {address!r} is not an IPv4 address", remedy) from None
        port = " ".join(rest) or str(DEFAULT_PORT)
        if not (port.isdigit() and 1024 <= int(port) <= 65535):
            raise InputError(f"{location}: port {port!r} is not a number from 1024 to 65535", "Omit it for 30050.")
        if any(m.address == address for m in machines):
            raise InputError(f"{location}: {address} is listed twice; each machine serves exactly one part")
        machines.append(Machine(f"machine-{len(machines)}", address, int(port)))
    if not machines:
        raise InputError(f"{path} lists no machines", "Write one line 'address [port]' for each machine.")
    return machines


def check_private(machines: Sequence[Machine]) -> None:
    """Raise an InputError for a public address, because DGL's RPC unpickles every message that arrives on its ports."""
    for machine in machines:
        if not ipaddress.ip_address(machine.address).is_private:
            detail = f"{machine.name}: {machine.address} is a public address. DGL unpickles all data that it receives, "
            remedy = "Use addresses of a private network, or, behind a firewall, --allow_public_addresses."
            raise InputError(f"{detail}so anyone who can reach its ports can run code", remedy)
