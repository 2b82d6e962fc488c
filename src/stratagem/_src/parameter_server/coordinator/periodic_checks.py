"""What looks after a coordinator in the background: deadlines, parameter servers, new workers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Protocol

from stratagem._src.cluster import ClusterResolver, ClusterSpec
from stratagem._src.core.errors import InvalidArgumentError, PSUnavailableError
from stratagem._src.parameter_server.client.parameter_client import ServerSign
from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher

__all__ = ["watch"]

_logger = logging.getLogger("stratagem")
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_BETWEEN_WORKERS = 5.0


class Servers(Protocol):
    """The parameter servers, as far as they are watched."""

    @property
    def num_servers(self) -> int:
        """How many there are."""

    def check(self, server: int, timeout: float) -> ServerSign:
        """Returns a sign of life; raises ``PSUnavailableError`` if one of them gives no sign of life."""


def watch(
    dispatcher: Dispatcher, servers: Servers, resolver: ClusterResolver, timeout: float
) -> None:
    """Tells the dispatcher of the workers and starts to watch, in threads that end with it.

    Args:
        dispatcher: Is told what was found.
        servers: The parameter servers.
        resolver: Says who the workers are.
        timeout: After how many seconds without an answer a server counts as lost.
    """

    def find_more_workers() -> None:
        try:
            spec = resolver.cluster_spec()
        except Exception as error:  # a resolver may ask others, who may be away
            _logger.warning("The cluster resolver does not say who the workers are: %s", error)
        else:
            dispatcher.set_workers(_workers_in(spec))

    lost: dict[int, PSUnavailableError] = {}

    def check_server(server: int) -> None:
        try:
            sign = servers.check(server, timeout)
        except PSUnavailableError as error:
            if dispatcher.server_lost(error):
                lost[server] = error
        else:
            if server in lost:
                dispatcher.withdraw(lost.pop(server))
            if dispatcher.restorer is not None:
                dispatcher.restorer.take_sign(server, sign)

    dispatcher.set_workers(_workers_in(resolver.cluster_spec()))
    _every(_SECONDS_BETWEEN_WORKERS, find_more_workers, dispatcher, "coordinator-workers")
    _every(_SECONDS_BETWEEN_LOOKS, dispatcher.check, dispatcher, "coordinator-deadlines")
    # Each in a thread of its own: the client's pool ends earlier than this when a program ends.
    for server in range(servers.num_servers):
        check = functools.partial(check_server, server)
        _every(_SECONDS_BETWEEN_SIGNS, check, dispatcher, f"coordinator-server-{server}")


def _workers_in(spec: ClusterSpec) -> dict[int, str]:
    """Returns where the workers are; none if the cluster has no such job at the moment."""
    if not isinstance(spec, ClusterSpec):
        raise InvalidArgumentError(
            f"A cluster resolver's cluster_spec() must return a ClusterSpec, got {spec!r}."
        )
    if "worker" not in spec.jobs:
        return {}
    indices = spec.task_indices("worker")
    return {index: spec.task_address("worker", index) for index in indices}


def _every(seconds: float, do: Callable[[], None], dispatcher: Dispatcher, name: str) -> None:
    def run() -> None:
        while not dispatcher.ended.wait(seconds):
            do()

    dispatcher.background.start(run, name=name)
