"""Lessons 04 and 10: a rank changes the bandwidth of its machine between two epochs of a job."""

from pyroute2 import IPRoute

from tutorial_lib.launcher.backends.emulated import parse_wire

HANDLE, ROOT = 0x10000, 0xFFFFFFFF
MOST_AT_ONCE = 256 * 1024  # bytes


def set_bandwidth(speed: str, interface: str = "eth0") -> None:
    """Limit the bandwidth of this machine: ``tc qdisc replace dev eth0 root tbf rate SPEED``, or "unshaped"."""
    rate = parse_wire(speed)  # bytes per second, None for no limit
    with IPRoute() as ip:
        (index,) = ip.link_lookup(ifname=interface)
        if rate is not None:
            burst = min(MOST_AT_ONCE, rate // 100)  # the bytes of 10 ms, because more would hide short transfers
            ip.tc("replace", "tbf", index, HANDLE, rate=rate, burst=burst, limit=burst + int(0.4 * rate))
        elif any(limited["handle"] == HANDLE for limited in ip.get_qdiscs(index)):
            ip.tc("del", index=index, handle=HANDLE, parent=ROOT)
