"""``MeetingHost``: the meeting point's process, as the leader sees it."""

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

__all__ = ["MeetingHost"]

_log = logging.getLogger("stratagem")
_MODULE = "stratagem._src.control_plane.membership_server"
_REMEMBERED_LINES = 20
_SECONDS_TO_END = 10.0


class MeetingHost:
    """A process that serves the meeting point.

    It takes the end of its standard input for the end of this process, and ends when the last worker
    has gone. What it says on standard error goes to the log of this process.

    Args:
        address: Where workers meet; port 0 for any that is free.
        num_workers: How many there are.
        credentials: What they prove to each other. The process finds them as this one did.
        peers: The hosts of the workers, as far as they are known.

    Attributes:
        address: Where workers meet.

    Raises:
        LaunchError: If the port is in use.
        PermissionDeniedError: If the address is not loopback and nobody has anything to prove.
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
                # Not the folder where the program was started: it may hold anything.
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
        self._background = Background("the meeting point")
        self._background.start(self._watch, name="meeting-log")

    def release(self) -> None:
        """Lets the process go on for the other workers, without this one."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        # Else Python warns that it still runs.
        self.process.returncode = 0

    def _watch(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                text = printable(line.decode(errors="replace").rstrip())
                self._last_lines.append(text)
                _log.warning("meeting point: %s", text)
        code = self.process.wait(_SECONDS_TO_END)
        if code != 0:
            said = "".join(f"\n    {text}" for text in self._last_lines) or " nothing"
            _log.error(
                "The meeting point must be there until the last worker has left, but it ended with "
                "code %d. The last that it said:%s",
                code,
                said,
            )


def _environment() -> dict[str, str]:
    """Returns an environment in which modules are found where this process finds them."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _listen(address: Address, peers: Iterable[str]) -> list[socket.socket]:
    try:
        return listen(address, peers)
    except OSError as error:
        raise LaunchError(
            f"The leader must listen on its address {address}, but: {error.strerror or error}. End what "
            "listens there, or give the leader another port in the cluster."
        ) from None
