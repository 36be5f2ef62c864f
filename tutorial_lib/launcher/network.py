"""Interfaces, listening ports, silent peers and sent bytes of this machine, as the kernel reports them."""

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
    cards = {name: [e.address for e in es if e.family == socket.AF_INET] for name, es in psutil.net_if_addrs().items()}
    return {name: addresses for name, addresses in cards.items() if addresses}


def find_interface(address: str) -> str:
    """Return the name of the interface with this IPv4 address, or ``lo``. A check reports a missing address."""
    return next((name for name, addresses in ipv4_addresses().items() if address in addresses), "lo")


def tcp_connections() -> Iterator[list[str]]:
    """Yield the fields of the kernel's tables of TCP sockets. psutil would also read the files of all processes."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name) as file:
            yield from (line.split() for line in file.readlines()[1:])


def listening_ports() -> set[int]:
    """Return the TCP ports in state LISTEN. DGL would count a trial connection as a client."""
    return {int(fields[1].split(":")[1], 16) for fields in tcp_connections() if fields[3] == LISTEN}


class SilentPeers:
    """Finds peers that do not acknowledge TCP segments. To a waiting program, such a connection looks healthy."""

    def __init__(self, addresses: Collection[str]) -> None:
        self._addresses = addresses
        self._since: dict[str, float] = {}

    def silent_seconds(self) -> dict[str, float]:
        """Return the seconds for which the kernel has repeated segments to each silent peer. Call it regularly."""
        repeated = {  # the kernel writes 10.77.0.2 as 02004D0A, also at the end of an IPv6 address
            socket.inet_ntoa(bytes.fromhex(remote.split(":")[0][-8:])[::-1])
            for _, _, remote, state, _, _, retries, *_ in tcp_connections()
            if state in (ESTABLISHED, SYN_SENT) and int(retries, 16) >= RETRIES
        }
        now = time.monotonic()
        self._since = {a: self._since.get(a, now) for a in repeated.intersection(self._addresses)}
        return {address: now - since for address, since in self._since.items()}


def bytes_sent(interface: str) -> int:
    """Return the bytes that have left this machine through a network interface. Loopback traffic counts as 0."""
    return 0 if interface == "lo" else psutil.net_io_counters(pernic=True)[interface].bytes_sent
