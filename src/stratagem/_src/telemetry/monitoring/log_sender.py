"""``LogSender``: sends the output of a node's tasks to the collector, where the dashboard searches it."""

from __future__ import annotations

import collections
import itertools
import json
import logging
import threading
import time
from typing import TypeAlias

from stratagem._src.core.errors import InvalidArgumentError, StratagemError
from stratagem._src.core.terminal_text import plain_output
from stratagem._src.process.background import Background
from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR
from stratagem._src.transport import Credentials, Identity, Message, TransportClient

__all__ = ["LOGS", "NOT_WANTED", "LogSender", "parse_lines"]

LOGS = "observation/logs"
NOT_WANTED = b"not wanted"
"""The collector's answer if the job has no dashboard: then nothing more is sent."""
_SECONDS = 0.5
_SEND_TIMEOUT = 5.0
_SHUTDOWN_TIMEOUT = 2.0
# Between two sends. A task that prints faster loses lines here, and in no other place.
_MAX_LINES = 2000
_MAX_LINE_CHARACTERS = 4000
_logger = logging.getLogger("stratagem")


Lines: TypeAlias = list[tuple[float, bool, str]]
"""Lines of a task: the time of each, whether it is error output, and its text."""


def parse_lines(body: bytes) -> list[tuple[str, Lines]]:
    """Returns the lines of a message in their order: of one task, then of another.

    Raises:
        InvalidArgumentError: If the message is not one of a ``LogSender``.
    """
    try:
        return [
            (
                str(task),
                [(float(when), bool(is_error), str(text)) for when, is_error, text in lines],
            )
            for task, lines in json.loads(body)
        ]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "Lines of logs must come from a launcher of the same version of stratagem, but some could not "
            f"be decoded ({type(error).__name__}: {error})."
        ) from None


class LogSender:
    """Sends lines in the background, in batches, until closed.

    The launcher never waits for it. Lines that cannot be sent in time are counted, and a line says how many
    are missing.

    Args:
        address: The address of the collector.
        secret: The secret of the job's monitoring.
    """

    def __init__(self, address: str, secret: str) -> None:
        self._client = TransportClient(
            address,
            Credentials(secret=secret),
            wanted=COLLECTOR,
            own=Identity("launcher"),
            name="the job's collector",
        )
        self._lock = threading.Lock()
        self._lines: collections.deque[tuple[str, float, bool, str]] = collections.deque()
        self._num_missing: collections.Counter[str] = collections.Counter()
        self._closed = threading.Event()
        self._background = Background("the sender of logs to the job's collector")
        self._background.start(self._run, name="log-sender")

    def line(self, task: str, text: str, is_error: bool) -> None:
        """Takes a line of a task."""
        if self._closed.is_set():
            return
        with self._lock:
            if len(self._lines) < _MAX_LINES:
                self._lines.append((task, time.time(), is_error, text[:_MAX_LINE_CHARACTERS]))
            else:
                self._num_missing[task] += 1

    def close(self) -> None:
        """Stops without sending the rest: the dashboard ends with the job, too."""
        self._closed.set()
        self._background.join(_SHUTDOWN_TIMEOUT)
        self._client.close()

    def _run(self) -> None:
        while not self._closed.wait(_SECONDS):
            batch = self._take()
            if batch and not self._send(batch):
                self._closed.set()

    def _take(self) -> list[tuple[str, Lines]]:
        with self._lock:
            lines, self._lines = self._lines, collections.deque()
            missing, self._num_missing = self._num_missing, collections.Counter()
        batch = [
            (task, [(when, is_error, plain_output(text)) for _, when, is_error, text in group])
            for task, group in itertools.groupby(lines, key=lambda line: line[0])
        ]
        for task, number in missing.items():
            text = (
                f"({number} lines are missing here: they came too fast, or the connection was lost)"
            )
            batch.append((task, [(time.time(), False, text)]))
        return batch

    def _send(self, batch: list[tuple[str, Lines]]) -> bool:
        """Sends lines; returns whether more are wanted."""
        try:
            answer = self._client.call(
                LOGS, Message(json.dumps(batch).encode()), timeout=_SEND_TIMEOUT
            )
        except (StratagemError, OSError) as error:
            _logger.debug("Lines did not reach the job's collector: %s", error)
            with self._lock:
                for task, lines in batch:
                    self._num_missing[task] += len(lines)
            return True
        return bytes(answer.body) != NOT_WANTED
