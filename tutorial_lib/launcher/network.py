"""Interfaces, listening ports, silent peers and sent bytes of this machine, as the kernel reports them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Collection, Iterator

import psutil

ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"
RETRIES = 3  # of one segment; fewer can be a short disturbance
SILENCE_SECONDS = 25.0  # TCP survives a cable that is unplugged for 5 s; the report must come within a minute


def ipv4_addresses() -> dict[str, list[str]]:
    """Return the IPv4 addresses of each interface. DGL (``local_ip4_addr_list``) sees only the first one of each."""
    found = {name: [e.address for e in es if e.family == socket.AF_INET] for name, es in psutil.net_if_addrs().items()}
    return {name: addresses for name, addresses in found.items() if addresses}


def interface_of(address: str) -> str:
    """Return the name of the network interface of this machine that has an IPv4 address."""
    known = {address: name for name, addresses in ipv4_addresses().items() for address in addresses}
    if address not in known:
        has = ", ".join(sorted(known))
        raise SystemExit(f"address {address} of ip_config.txt does not belong to this machine; it has {has}")
    return known[address]


def _connections() -> Iterator[list[str]]:
    """Return the fields of each line of the kernel's tables of TCP sockets."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name) as file:
            yield from (line.split() for line in file.readlines()[1:])


def listening_ports() -> set[int]:
    """Return the TCP ports in state LISTEN. DGL would count a trial connection as a client."""
    return {int(fields[1].rsplit(":", 1)[1], 16) for fields in _connections() if fields[3] == LISTEN}


def ipv4_of(text: str) -> str:
    """Convert the kernel's notation ``"02004D0A"``, also at the end of an IPv6 address, to ``"10.77.0.2"``."""
    return socket.inet_ntoa(bytes.fromhex(text[-8:])[::-1])


class SilentPeers:
    """Finds the peers among ``addresses`` that do not answer, by the kernel's counters of retransmissions.

    If a machine loses its power or cable, its connections look healthy to a program that only waits. As soon as one
    side sends something, the kernel repeats it.
    """

    def __init__(self, addresses: Collection[str]) -> None:
        self._addresses, self._since = addresses, dict[tuple[str, str], float]()

    def look(self) -> dict[str, float]:
        """Return the seconds for which the kernel has repeated a segment to each silent peer. Call it regularly."""
        now, before, self._since = time.monotonic(), self._since, {}
        silent: dict[str, float] = {}
        for _, local, remote, state, _, _, retries, *_ in _connections():
            address, times = ipv4_of(remote.rsplit(":", 1)[0]), int(retries, 16)
            if state in (ESTABLISHED, SYN_SENT) and times and address in self._addresses:
                self._since[local, remote] = since = before.get((local, remote), now)
                if times >= RETRIES:
                    silent[address] = max(silent.get(address, 0.0), now - since)
        return silent


class SentBytes:
    """Counts the bytes that leave this machine through a network interface."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._at_start = self._read()

    def _read(self) -> int:
        # Loopback traffic stays on the machine.
        return 0 if self._interface == "lo" else psutil.net_io_counters(pernic=True)[self._interface].bytes_sent

    def count(self) -> int:
        """Return the bytes sent since this object was made."""
        return self._read() - self._at_start
