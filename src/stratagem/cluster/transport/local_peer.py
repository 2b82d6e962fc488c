"""Which user is at the other end of a connection within this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from pathlib import Path

from stratagem.core.errors import UnauthenticatedError

__all__ = ["check_same_user"]

_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_ROOT = 0
_RULE = (
    "Without a secret or TLS only processes of {} are trusted. Set STRATAGEM_CLUSTER_SECRET or "
    "STRATAGEM_CLUSTER_SECRET_FILE to the same in both tasks."
)


def check_same_user(connected: socket.socket) -> None:
    """Raises unless a process of this machine and this user, or of root, is at the other end.

    Loopback is open to everybody who has an account on the machine. Only Linux says who connects;
    elsewhere users are not checked. To check a server, wait until it has answered: what it has not
    yet accepted belongs to nobody.

    Raises:
        UnauthenticatedError: If it is somebody else, or cannot be found out.
    """
    if not ipaddress.ip_address(connected.getpeername()[0]).is_loopback:
        raise UnauthenticatedError(_RULE.format("this machine"))
    table = _TABLES.get(connected.family)
    if table is None or not table.exists():
        return
    wanted = (_in_hex(connected.getpeername()), _in_hex(connected.getsockname()))
    with table.open(encoding="ascii") as rows:
        for row in rows:
            _, local, remote, *_, uid = row.split(maxsplit=8)[:8]
            if (local, remote) == wanted:
                if int(uid) in (os.getuid(), _ROOT):
                    return
                break
    raise UnauthenticatedError(_RULE.format("the same user"))


def _in_hex(name: tuple[object, ...]) -> str:
    packed = ipaddress.ip_address(str(name[0])).packed
    # The kernel prints each 32-bit word as a number in its own byte order.
    words = [packed[start : start + 4] for start in range(0, len(packed), 4)]
    address = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{address}:{int(str(name[1])):04X}"
