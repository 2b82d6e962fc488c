"""Starting the meeting point, on the leader."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from stratagem.cluster.address import Address
from stratagem.cluster.errors import LaunchError

__all__ = ["host_meeting"]

# Leaves out what importing the whole library costs: the leader waits for this process.
_BOOTSTRAP = """
import sys, types
package = types.ModuleType("stratagem")
package.__path__ = [sys.argv[1]]
sys.modules["stratagem"] = package
from stratagem.cluster.meeting.server import main
main()
"""

_PACKAGE = Path(__file__).resolve().parents[2]


def host_meeting(address: Address, num_workers: int, secret: str) -> subprocess.Popen[bytes]:
    """Starts and returns a process that serves the meeting point.

    It takes the end of its standard input for the end of this process, and ends when the last worker
    has gone.

    Raises:
        LaunchError: If the port is in use.
    """
    listener = _listen(address)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP, str(_PACKAGE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        env=environment,
    )
    assert process.stdin is not None
    settings = {"listener": listener.fileno(), "num_workers": num_workers, "secret": secret}
    process.stdin.write(json.dumps(settings).encode() + b"\n")
    process.stdin.flush()
    listener.close()
    return process


def _listen(address: Address) -> socket.socket:
    host = address.host if _is_loopback(address.host) else ""
    try:
        if host or not socket.has_dualstack_ipv6():
            return socket.create_server((host, address.port))
        return socket.create_server(
            (host, address.port), family=socket.AF_INET6, dualstack_ipv6=True
        )
    except OSError as error:
        raise LaunchError(
            f"The leader must listen on its address {address}, but: {error.strerror or error}. End what "
            "listens there, or give the leader another port in the cluster."
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
