"""``ServerRestorer``: restores lost parameter servers from the latest checkpoint."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from stratagem._src.core.errors import PSUnavailableError
from stratagem._src.parameter_server.client.parameter_client import ParameterClient, ServerStatus
from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher
from stratagem._src.parameter_server.coordinator.server_recovery import Progress, ServerRecovery

__all__ = ["CheckpointSource", "ServerRestorer"]

_logger = logging.getLogger("stratagem")
_POLL_INTERVAL_SECONDS = 0.1
_RESPONSE_TIMEOUT_SECONDS = 5.0
_HAS_ENDED = "The coordinator has ended."

T = TypeVar("T")


class CheckpointSource(Protocol):
    """The part of ``CheckpointManager`` that recovery uses."""

    @property
    def checkpoint(self) -> Any:
        """The object whose ``restore(path)`` restores a checkpoint."""

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the latest complete checkpoint."""

    def after_saves(self, listener: Callable[[str], None]) -> None:
        """Registers ``listener``, which is called with the path after each save."""


class ServerRestorer:
    """Waits for lost servers to restart, and restores all variables from the latest checkpoint.

    Meanwhile no function is assigned to a worker, and running functions drain: they end, or fail because of
    the lost server and run again later. If a server was only unreachable and still holds its variables,
    nothing is restored.

    Args:
        dispatcher: Assigns functions to workers.
        client: The client of the servers. It is held weakly, as is ``source``: the coordinator owns both,
            and must be collectable when the user drops it.
        source: Provides the latest checkpoint.
        timeout: Seconds to wait for servers, and for running functions.

    Attributes:
        recoveries: The recoveries so far.
        num_losses: How often servers were lost, also those that came back with their variables.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        client: ParameterClient,
        source: CheckpointSource,
        timeout: float,
    ) -> None:
        self.recoveries: list[ServerRecovery] = []
        self.num_losses: int = 0
        self._dispatcher = dispatcher
        self._client_if_alive = weakref.ref(client)
        self._source_if_alive = weakref.ref(source)
        self._timeout = timeout
        self._is_active = False
        self._num_updates = [0] * client.num_servers
        # A server that is down now is detected like one that is lost later.
        with contextlib.suppress(PSUnavailableError):
            self._poll_servers()
        self._begun = self._progress()
        self._saved: dict[str, Progress] = {}

    def note_saved(self, path: str) -> None:
        """Records the progress at which a checkpoint was saved."""
        try:
            self._poll_servers()
        except PSUnavailableError:
            return  # the server is already lost, and its counts are stale
        # Keep the previous checkpoint too: this one may not be complete yet.
        self._saved = {**dict([*self._saved.items()][-1:]), path: self._progress()}

    def on_heartbeat(self, server: int, status: ServerStatus) -> None:
        """Handles a heartbeat reply; starts a recovery if the server was restarted."""
        if status.is_same:
            self._num_updates[server] = status.num_updates
        elif not self._is_active:
            with self._dispatcher.lock:
                self.begin(PSUnavailableError(f"/job:ps/task:{server} was restarted."))

    def begin(self, error: BaseException) -> None:
        """Starts a recovery, unless one is running; called with the dispatcher's lock."""
        if self._is_active or self._dispatcher.stopped:
            return
        self._is_active = True
        self.num_losses += 1
        _logger.warning("%s Waiting for it to restart; its variables will be restored.", error)
        self._dispatcher.pause()
        self._dispatcher.background.start(self._recover, name="coordinator-recovery")

    def lose(self, server: int) -> None:
        """Handles a server that did not reply to a request of this process."""
        with self._dispatcher.lock:
            self.begin(PSUnavailableError(f"/job:ps/task:{server} does not answer."))

    def _recover(self) -> None:
        begun = time.monotonic()
        failure: BaseException | None = None
        try:
            self._recover_until(begun + self._timeout)
        except Exception as error:
            failure = error
        with self._dispatcher.lock:
            self._is_active = False
        self._dispatcher.resume(failure)

    def _recover_until(self, deadline: float) -> None:
        lost_at, begun = time.time(), time.monotonic()
        # A server whose shards exist again counts as the same, but is empty until the restore is complete.
        empty: set[int] = set()
        while True:
            try:
                self._wait_for_servers(deadline)
                self._wait_for_functions(deadline)
                empty.update(self._restarted_servers())
                restarted = sorted(empty)
                if not restarted:
                    _logger.warning("All parameter servers are back, with their variables.")
                    return
                path, lost = self._restore(restarted)
            except PSUnavailableError as error:
                if time.monotonic() >= deadline or isinstance(error, _NotRecoverable):
                    raise
                _logger.warning("%s Waiting for it again.", error)
                continue
            recovery = ServerRecovery(
                tuple(restarted),
                path,
                lost.moment,
                lost_at,
                time.monotonic() - begun,
                lost.num_functions,
                sum(lost.num_updates),
            )
            self.recoveries.append(recovery)
            _logger.warning("%s", recovery)
            return

    def _wait_for_servers(self, deadline: float) -> None:
        while True:
            try:
                self._poll_servers()
                return
            except PSUnavailableError as error:
                if self._dispatcher.ended.wait(_POLL_INTERVAL_SECONDS):
                    raise _NotRecoverable(_HAS_ENDED) from None
                if time.monotonic() >= deadline:
                    raise _NotRecoverable(
                        f"{error} It did not come back within {self._timeout:g} s. Restart it at the same "
                        "address, as stratagem run does."
                    ) from error

    def _wait_for_functions(self, deadline: float) -> None:
        while True:
            with self._dispatcher.lock:
                count = self._dispatcher.state.num_in_flight
            if not count:
                return
            if time.monotonic() >= deadline:
                raise _NotRecoverable(
                    f"A parameter server was lost, and {count} functions that were running then have not "
                    f"ended within {self._timeout:g} s, so it cannot be restored."
                )
            if self._dispatcher.ended.wait(_POLL_INTERVAL_SECONDS):
                raise _NotRecoverable(_HAS_ENDED)

    def _restore(self, restarted: list[int]) -> tuple[str, Progress]:
        """Restores the latest checkpoint; returns its path, and the progress since that is lost."""
        client, source = self._client, self._source
        path = source.latest_checkpoint
        names = ", ".join(f"/job:ps/task:{server}" for server in restarted)
        if path is None:
            raise _NotRecoverable(
                f"{names} was lost with its variables, and there is no checkpoint to restore them from."
            )
        before = self._saved.get(path, self._begun)
        now = self._progress()
        for server in self._restarted_servers():
            client.recreate_shards(server)
        for reference in list(client.restarting_at_zero.values()):
            variable = reference()
            if variable is not None:
                variable.assign(np.zeros(tuple(variable.shape), variable.dtype))
        try:
            source.checkpoint.restore(path)
        except PSUnavailableError:
            raise
        except Exception as error:
            raise _NotRecoverable(
                f"{names} was lost with its variables, and {path} could not be restored: {error}"
            ) from error
        missing = [
            name for server in restarted for name in client.request(server, "ps/blank")["names"]
        ]
        if missing:
            raise _NotRecoverable(
                f"{names} was lost with the variables {missing}, which are not in {path}. Add every "
                "variable on parameter servers to the Checkpoint."
            )
        for server in restarted:
            client.mark_restored(server)
        self._num_updates = [0 if s in restarted else n for s, n in enumerate(self._num_updates)]
        self._poll_servers()
        self._saved[path] = self._progress()
        updates = [max(0, b - a) for a, b in zip(before.num_updates, now.num_updates, strict=True)]
        functions = now.num_functions - before.num_functions
        return path, Progress(before.moment, functions, tuple(updates))

    def _restarted_servers(self) -> list[int]:
        client = self._client
        statuses = [client.check(s, _RESPONSE_TIMEOUT_SECONDS) for s in range(client.num_servers)]
        return [server for server, status in enumerate(statuses) if not status.is_same]

    def _poll_servers(self) -> None:
        client = self._client
        for server in range(client.num_servers):
            status = client.check(server, _RESPONSE_TIMEOUT_SECONDS)
            if status.is_same:
                self._num_updates[server] = status.num_updates

    @property
    def _client(self) -> ParameterClient:
        return _alive(self._client_if_alive)

    @property
    def _source(self) -> CheckpointSource:
        return _alive(self._source_if_alive)

    def _progress(self) -> Progress:
        return Progress.now(self._dispatcher.state.num_returned, tuple(self._num_updates))


def _alive(reference: weakref.ref[T]) -> T:
    found = reference()
    if found is None:
        raise _NotRecoverable(_HAS_ENDED)
    return found


class _NotRecoverable(PSUnavailableError):
    """The recovery has failed for good; do not retry."""
