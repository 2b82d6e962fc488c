"""What looks after a coordinator in the background: deadlines, and the parameter servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from stratagem.coordinator.dispatcher import Dispatcher
from stratagem.core.errors import PSUnavailableError

__all__ = ["watch"]

_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_TO_ANSWER = 5.0


class Servers(Protocol):
    """The parameter servers, as far as they are watched."""

    def check(self, timeout: float) -> None:
        """Raises ``PSUnavailableError`` if one of them gives no sign of life."""


def watch(dispatcher: Dispatcher, servers: Servers) -> None:
    """Starts to watch, in threads that end with the dispatcher."""

    def check_servers() -> None:
        try:
            servers.check(_SECONDS_TO_ANSWER)
        except PSUnavailableError as error:
            dispatcher.abort(error)

    _every(_SECONDS_BETWEEN_LOOKS, dispatcher.check, dispatcher.ended, "coordinator-deadlines")
    _every(_SECONDS_BETWEEN_SIGNS, check_servers, dispatcher.ended, "coordinator-servers")


def _every(seconds: float, do: Callable[[], None], ended: threading.Event, name: str) -> None:
    def run() -> None:
        while not ended.wait(seconds):
            do()

    threading.Thread(target=run, name=name, daemon=True).start()
