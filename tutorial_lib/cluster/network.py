"""What the kernel knows about this machine's network: interfaces, ports, bytes, and peers that do not answer."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil

ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"
RETRIES = 3  # of one segment; fewer may be a short disturbance


def interface_of(address: str) -> str:
    """Name of the network interface of this machine that has an IPv4 address."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    known = sorted(e.address for entries in psutil.net_if_addrs().values() for e in entries if e.family == 2)
    raise SystemExit(f"address {address} of ip_config.txt does not belong to this machine; it has {', '.join(known)}")


def bytes_sent(interface: str) -> int:
    """Bytes that left through a network interface since it came up; on loopback nothing leaves the machine."""
    if interface == "lo":
        return 0
    return psutil.net_io_counters(pernic=True)[interface].bytes_sent


def _connections() -> Iterator[list[str]]:
    """Lines of the kernel's tables of TCP sockets, split at blanks."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name) as file:
            for line in file.readlines()[1:]:
                yield line.split()


def listening_ports() -> set[int]:
    """TCP ports in state LISTEN. Asked of the kernel: a trial connection would count as a DGL client."""
    return {int(fields[1].rsplit(":", 1)[1], 16) for fields in _connections() if fields[3] == LISTEN}


def ipv4_of(text: str) -> str:
    """``"02004D0A"`` (the kernel's spelling, also as the end of an IPv6 one) to ``"10.77.0.2"``."""
    return str(ipaddress.IPv4Address(bytes.fromhex(text[-8:])[::-1]))


@dataclass
class SilentPeers:
    """Finds peers that have stopped answering, from the retransmission counters of the kernel.

    A connection whose other end is gone without a word (a cut cable, a machine without power) looks healthy to a
    program that only waits. But sooner or later one side sends something, and the kernel repeats it in vain. So no
    traffic of our own is needed to notice.

    Args:
        addresses: IPv4 addresses of the other machines.
    """

    addresses: Sequence[str]
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(self) -> dict[str, float]:
        """Address -> seconds for which the kernel has been repeating itself to it; call it every few seconds."""
        now = time.monotonic()
        repeating: dict[tuple[str, str], float] = {}
        silent: dict[str, float] = {}
        for fields in _connections():
            peer = fields[2].rsplit(":", 1)[0]
            retries = int(fields[6], 16)
            if fields[3] not in (ESTABLISHED, SYN_SENT) or not retries or ipv4_of(peer) not in self.addresses:
                continue
            connection = (fields[1], fields[2])
            repeating[connection] = self._since.get(connection, now)
            if retries >= RETRIES:
                address = ipv4_of(peer)
                silent[address] = max(silent.get(address, 0.0), now - repeating[connection])
        self._since = repeating
        return silent
