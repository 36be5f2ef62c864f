"""Who sent how much to this machine: the kernel counts the bytes of every TCP connection, by its two addresses.

The counters of a network interface give one sum for all peers. Those of the connections (``ss -ti`` shows them; they
come over netlink, no root needed) tell the peers apart, and count what programs received, without headers and repeats.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Sequence

LOOK_SECONDS = 0.25
INET_DIAG_INFO = 2  # number of the extension with a connection's counters


def received_by_peer() -> dict[str, int]:
    """IPv4 address of the other end -> bytes received over the connections that are open now, since they were opened.

    Connections of this machine with itself are included, under its own addresses.

    Raises:
        OSError: this kernel has no list of connections with counters.
    """
    return _sums(_connections())


class Traffic:
    """Adds up over the time of a job what came from other machines, also over connections that are closed by now.

    Args:
        addresses: IPv4 addresses of the other machines.

    What a connection received between the last look and its end is missed, at most ``LOOK_SECONDS`` of it.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = set(addresses)
        self._seen: dict[tuple[str, int], int] = {}
        self._before: dict[tuple[str, int], int] = {}
        self._next = 0.0
        self.look()
        self._before = dict(self._seen)  # what other programs' connections had before is not the job's

    def look(self) -> None:
        """Take the counters, if the last time is long enough ago."""
        if not self._addresses or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        try:
            found = _connections()
        except OSError:  # the sums over network interfaces remain
            self._addresses.clear()
        else:
            self._seen.update({key: count for key, count in found.items() if key[0] in self._addresses})

    def received(self) -> dict[str, int]:
        """Address -> bytes received from it since this object was made; empty where the kernel does not tell."""
        seen = {key: count - self._before.get(key, 0) for key, count in self._seen.items()}
        return {**dict.fromkeys(sorted(self._addresses), 0), **_sums(seen)} if self._addresses else {}


def _sums(connections: dict[tuple[str, int], int]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for (peer, _cookie), count in connections.items():
        sums[peer] += count
    return dict(sums)


def _connections() -> dict[tuple[str, int], int]:
    """(peer, the kernel's number of the socket) -> bytes received so far."""
    from pyroute2 import DiagSocket
    from pyroute2.netlink.exceptions import NetlinkError

    found: dict[tuple[str, int], int] = {}
    try:
        with DiagSocket() as kernel:
            for family in (socket.AF_INET, socket.AF_INET6):
                for message in kernel.get_sock_stats(family=family, extensions=1 << (INET_DIAG_INFO - 1)):
                    info = message.get_attr("INET_DIAG_INFO")
                    if info and info["tcpi_bytes_received"]:
                        peer = message["idiag_dst"].removeprefix("::ffff:")
                        found[peer, message["idiag_cookie"]] = info["tcpi_bytes_received"]
    except (OSError, NetlinkError) as error:
        raise OSError(f"the kernel does not list its TCP connections: {error}") from None
    return found
