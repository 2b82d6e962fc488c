"""What looks after a coordinator in the background: deadlines, parameter servers, new workers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from stratagem.cluster import ClusterResolver
from stratagem.coordinator.dispatcher import Dispatcher
from stratagem.core.errors import PSUnavailableError

__all__ = ["watch"]

_logger = logging.getLogger("stratagem")
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_BETWEEN_WORKERS = 5.0
_SECONDS_TO_ANSWER = 5.0


class Servers(Protocol):
    """The parameter servers, as far as they are watched."""

    def check(self, timeout: float) -> None:
        """Raises ``PSUnavailableError`` if one of them gives no sign of life."""


def watch(dispatcher: Dispatcher, servers: Servers, resolver: ClusterResolver) -> None:
    """Tells the dispatcher of the workers and starts to watch, in threads that end with it."""

    def find_workers() -> None:
        spec = resolver.cluster_spec()
        indices = spec.task_indices("worker")
        dispatcher.set_workers({index: spec.task_address("worker", index) for index in indices})

    def find_more_workers() -> None:
        try:
            find_workers()
        except Exception as error:  # a resolver may ask others, who may be away
            _logger.warning("The cluster resolver does not say who the workers are: %s", error)

    def check_servers() -> None:
        try:
            servers.check(_SECONDS_TO_ANSWER)
        except PSUnavailableError as error:
            dispatcher.abort(error)

    find_workers()
    _every(_SECONDS_BETWEEN_WORKERS, find_more_workers, dispatcher.ended, "coordinator-workers")
    _every(_SECONDS_BETWEEN_LOOKS, dispatcher.check, dispatcher.ended, "coordinator-deadlines")
    _every(_SECONDS_BETWEEN_SIGNS, check_servers, dispatcher.ended, "coordinator-servers")


def _every(seconds: float, do: Callable[[], None], ended: threading.Event, name: str) -> None:
    def run() -> None:
        while not ended.wait(seconds):
            do()

    threading.Thread(target=run, name=name, daemon=True).start()
