"""The kernel's knowledge of this machine's network: interfaces, listening ports, silent peers, and bytes sent."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import psutil

ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"
RETRIES = 3  # of one segment; fewer may be a short disturbance
SILENCE_SECONDS = 25.0  # a cable pulled for 5 s is survived by TCP; the report must come within a minute
BY_FAMILY = 20  # type of netlink's answers that are sockets


def ipv4_addresses() -> dict[str, list[str]]:
    """IPv4 addresses by interface. DGL (``local_ip4_addr_list``) sees the first one of each only."""
    found = {name: [e.address for e in es if e.family == socket.AF_INET] for name, es in psutil.net_if_addrs().items()}
    return {name: addresses for name, addresses in found.items() if addresses}


def interface_of(address: str) -> str:
    """Name of the network interface of this machine that has an IPv4 address."""
    known = {address: name for name, addresses in ipv4_addresses().items() for address in addresses}
    if address in known:
        return known[address]
    has = ", ".join(sorted(known))
    raise SystemExit(f"address {address} of ip_config.txt does not belong to this machine; it has {has}")


def bytes_sent(interface: str) -> int:
    """Bytes that left through a network interface since it came up; on loopback nothing leaves the machine."""
    return 0 if interface == "lo" else psutil.net_io_counters(pernic=True)[interface].bytes_sent


def _connections() -> Iterator[list[str]]:
    """Lines of the kernel's tables of TCP sockets, split at blanks."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name) as file:
            yield from (line.split() for line in file.readlines()[1:])


def listening_ports() -> set[int]:
    """TCP ports in state LISTEN. Asked of the kernel: a trial connection would count as a DGL client."""
    # /proc/net/tcp walks the kernel's whole table of connections, 7 ms each time, while servers are starting. A kernel
    # that answers over netlink with nothing may be one that cannot.
    with contextlib.suppress(OSError):
        if found := {told["idiag_sport"] for told in _told(states=1 << int(LISTEN, 16))}:
            return found
    return {int(fields[1].rsplit(":", 1)[1], 16) for fields in _connections() if fields[3] == LISTEN}


def ipv4_of(text: str) -> str:
    """``"02004D0A"`` (the kernel's spelling, also as the end of an IPv6 one) to ``"10.77.0.2"``."""
    return socket.inet_ntoa(bytes.fromhex(text[-8:])[::-1])


class SilentPeers:
    """Finds peers, of these IPv4 addresses, that have stopped answering, from the kernel's retransmission counters.

    A connection whose other end is gone without a word (a cut cable, a machine without power) looks healthy to a
    program that only waits. But sooner or later one side sends something, and the kernel repeats it in vain.
    """

    def __init__(self, addresses: Collection[str]) -> None:
        self._addresses, self._since = addresses, dict[tuple[str, str], float]()

    def look(self) -> dict[str, float]:
        """Address -> seconds for which the kernel has been repeating itself to it; call it every few seconds."""
        now, before, self._since = time.monotonic(), self._since, {}
        silent: dict[str, float] = {}
        for _, own, other, state, _, _, retries, *_ in _connections():
            address, times = ipv4_of(other.rsplit(":", 1)[0]), int(retries, 16)
            if state in (ESTABLISHED, SYN_SENT) and times and address in self._addresses:
                self._since[own, other] = since = before.get((own, other), now)
                if times >= RETRIES:
                    silent[address] = max(silent.get(address, 0.0), now - since)
        return silent


class SentBytes:
    """Counts the bytes that have left this machine through a network interface since this object was made.

    Attributes:
        count: the bytes as of the last ``report``.
    """

    def __init__(self, interface: str) -> None:
        self._interface, self._before, self.count = interface, bytes_sent(interface), 0

    def report(self, put: Callable[[dict[str, Any]], None]) -> None:
        """Update ``count`` and hand it on as a message if it has changed."""
        if (now := bytes_sent(self._interface) - self._before) != self.count:
            self.count = now
            put({"type": "Traffic", "bytes_sent": now, "time": time.time()})


def _told(**options: int) -> list[Any]:
    """What the kernel says over netlink of this machine's TCP sockets.

    Raises:
        OSError: it does not.
    """
    from pyroute2 import DiagSocket
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with DiagSocket() as kernel:
            families = (socket.AF_INET, socket.AF_INET6)
            found = [told for family in families for told in kernel.get_sock_stats(family=family, **options)]
            if any(told["header"]["type"] != BY_FAMILY for told in found):
                raise OSError("it refuses")
            return found
    except (OSError, NetlinkError) as error:
        raise OSError(f"the kernel does not list its TCP connections: {error}") from None
