"""Names of standing machines, and the abstract sockets at which their keepers answer. Every user may bind those."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from pathlib import Path

from tutorial_lib.errors import InputError

NAME = re.compile(r"[A-Za-z][\w-]{0,30}", re.ASCII)


def socket_name(name: str) -> str:
    return f"\0tutorial_lib.machines.{os.getuid()}.{name}"


def user_of(connection: socket.socket) -> int:
    """Id of the user at the other end."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def check_name(name: str) -> str:
    """A name for machines, as it is; raises InputError when it cannot be one."""
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} is not a name for machines", "Letters, digits, - and _, at most 31: lab, wire_200.")
    return name


def bound() -> list[str]:
    """Names that are taken, by machines of this user or by anybody: every user may bind every abstract socket."""
    prefix = "@" + socket_name("")[1:]
    words = [line.split()[-1] for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]]
    found = {word.removeprefix(prefix) for word in words if word.startswith(prefix)}
    return sorted(name for name in found if NAME.fullmatch(name))


def names() -> list[str]:
    """Of all running machines of this user."""
    return [name for name in bound() if not _foreign(name)]


def _foreign(name: str) -> bool:
    """Whether another user answers under a name."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(socket_name(name))
        except OSError as error:  # refused: machines that are being set up; would block: many ask them at once
            return error.errno not in (errno.ECONNREFUSED, errno.EAGAIN)
        return user_of(probe) != os.getuid()
