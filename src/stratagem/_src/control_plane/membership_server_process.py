"""``MembershipServerProcess``: starts the membership server as a child process of the leader."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.listening import listen
from stratagem._src.core.terminal_text import printable
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials

__all__ = ["MembershipServerProcess"]

_log = logging.getLogger("stratagem")
_MODULE = "stratagem._src.control_plane.membership_server"
_REMEMBERED_LINES = 20
_EXIT_TIMEOUT = 10.0


class MembershipServerProcess:
    """A child process that runs the membership server.

    The server takes the end of its standard input as the end of this process, and exits when the last
    worker has gone. This process logs its standard error.

    Args:
        address: The address to listen at; port 0 for any free port.
        num_workers: The number of workers.
        credentials: The credentials of the cluster. The server reads them from the same environment.
        peers: The known hosts of the workers.

    Attributes:
        address: The address of the server.

    Raises:
        LaunchError: If the port is in use.
        PermissionDeniedError: If the address is not loopback and there are no credentials.
    """

    def __init__(
        self,
        address: Address,
        num_workers: int,
        credentials: Credentials,
        peers: Iterable[str] = (),
    ) -> None:
        credentials.for_host(address.host)
        self._last_lines: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)
        with contextlib.ExitStack() as stack:
            listeners = [stack.enter_context(each) for each in _listen(address, peers)]
            descriptors = [listener.fileno() for listener in listeners]
            self.address = Address(address.host, listeners[0].getsockname()[1])
            self.process = subprocess.Popen(
                # -P keeps the current directory out of sys.path: it may contain any module.
                [sys.executable, "-P", "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=descriptors,
                env=_environment(),
            )
            settings = {
                "listeners": descriptors,
                "address": str(self.address),
                "num_workers": num_workers,
            }
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(settings).encode() + b"\n")
            self.process.stdin.flush()
        self._background = Background("the membership server")
        self._background.start(self._watch, name="membership-server-log")

    def release(self) -> None:
        """Detaches from the process, which continues to serve the other workers."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        # Otherwise Popen.__del__ warns that the process is still running.
        self.process.returncode = 0

    def _watch(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                text = printable(line.decode(errors="replace").rstrip())
                self._last_lines.append(text)
                _log.warning("membership server: %s", text)
        code = self.process.wait(_EXIT_TIMEOUT)
        if code != 0:
            said = "".join(f"\n    {text}" for text in self._last_lines) or " nothing"
            _log.error(
                "The membership server must run until the last worker has left, but it exited with code "
                "%d. Its last output:%s",
                code,
                said,
            )


def _environment() -> dict[str, str]:
    """Returns an environment in which Python finds the same modules as this process."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _listen(address: Address, peers: Iterable[str]) -> list[socket.socket]:
    try:
        return listen(address, peers)
    except OSError as error:
        raise LaunchError(
            f"Cannot bind the leader's address {address}: {error.strerror or error}. Stop the process that "
            "uses the port, or choose another port for the leader in the cluster."
        ) from None
