"""What the kernel knows about this machine's network: interfaces, ports, bytes, and peers that do not answer."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from socket import AF_INET

import psutil

ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"
RETRIES = 3  # of one segment; fewer may be a short disturbance


def interface_of(address: str) -> str:
    """Name of the network interface of this machine that has an IPv4 address."""
    known = {e.address: name for name, found in psutil.net_if_addrs().items() for e in found if e.family == AF_INET}
    if address in known:
        return known[address]
    has = ", ".join(sorted(known))
    raise SystemExit(f"address {address} of ip_config.txt does not belong to this machine; it has {has}")


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
    program that only waits. But sooner or later one side sends something, and the kernel repeats it in vain.

    Args:
        addresses: IPv4 addresses of the other machines.
    """

    addresses: Sequence[str]
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(self) -> dict[str, float]:
        """Address -> seconds for which the kernel has been repeating itself to it; call it every few seconds."""
        now, before, self._since = time.monotonic(), self._since, {}
        silent: dict[str, float] = {}
        for _, own, other, state, _, _, retries, *_ in _connections():
            address, times = ipv4_of(other.rsplit(":", 1)[0]), int(retries, 16)
            if state in (ESTABLISHED, SYN_SENT) and times and address in self.addresses:
                self._since[own, other] = since = before.get((own, other), now)
                if times >= RETRIES:
                    silent[address] = max(silent.get(address, 0.0), now - since)
        return silent
