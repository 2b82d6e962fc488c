"""The coordinator's background checks: deadlines, heartbeats of parameter servers, worker discovery."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Protocol

from stratagem._src.cluster import ClusterResolver, ClusterSpec
from stratagem._src.core.errors import InvalidArgumentError, PSUnavailableError
from stratagem._src.parameter_server.client.parameter_client import ServerStatus
from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher

__all__ = ["start_periodic_checks"]

_logger = logging.getLogger("stratagem")
_DEADLINE_CHECK_INTERVAL_SECONDS = 0.25
_HEARTBEAT_INTERVAL_SECONDS = 1.0
_WORKER_DISCOVERY_INTERVAL_SECONDS = 5.0


class Servers(Protocol):
    """The part of ``ParameterClient`` that the checks use."""

    @property
    def num_servers(self) -> int:
        """Number of parameter servers."""

    def check(self, server: int, timeout: float) -> ServerStatus:
        """Sends a heartbeat; raises ``PSUnavailableError`` if the server does not reply."""


def start_periodic_checks(
    dispatcher: Dispatcher, servers: Servers, resolver: ClusterResolver, timeout: float
) -> None:
    """Sets the dispatcher's workers and starts the checks, in threads that end with the dispatcher.

    Args:
        dispatcher: Handles the events.
        servers: The parameter servers.
        resolver: Resolves the workers' addresses.
        timeout: Seconds without a reply after which a server counts as lost.
    """

    def find_more_workers() -> None:
        try:
            spec = resolver.cluster_spec()
        except Exception as error:  # a resolver may query a service that is temporarily down
            _logger.warning("The cluster resolver failed to list the workers: %s", error)
        else:
            dispatcher.set_workers(_workers_in(spec))

    lost: dict[int, PSUnavailableError] = {}

    def check_server(server: int) -> None:
        try:
            status = servers.check(server, timeout)
        except PSUnavailableError as error:
            if dispatcher.server_lost(error):
                lost[server] = error
        else:
            if server in lost:
                dispatcher.withdraw(lost.pop(server))
            if dispatcher.restorer is not None:
                dispatcher.restorer.on_heartbeat(server, status)

    dispatcher.set_workers(_workers_in(resolver.cluster_spec()))
    _every(_WORKER_DISCOVERY_INTERVAL_SECONDS, find_more_workers, dispatcher, "coordinator-workers")
    _every(_DEADLINE_CHECK_INTERVAL_SECONDS, dispatcher.check, dispatcher, "coordinator-deadlines")
    # One thread per server, not the client's pool, which is shut down earlier when a program exits.
    for server in range(servers.num_servers):
        check = functools.partial(check_server, server)
        _every(_HEARTBEAT_INTERVAL_SECONDS, check, dispatcher, f"coordinator-server-{server}")


def _workers_in(spec: ClusterSpec) -> dict[int, str]:
    """Returns the workers' addresses by index; empty if the cluster has no worker job at the moment."""
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
