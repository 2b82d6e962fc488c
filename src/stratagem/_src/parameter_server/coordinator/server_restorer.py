"""``ServerRestorer``: brings parameter servers that were lost back to the last checkpoint."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stratagem._src.core.errors import PSUnavailableError
from stratagem._src.parameter_server.client.parameter_client import ParameterClient, ServerSign
from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher
from stratagem._src.parameter_server.coordinator.server_recovery import Progress, ServerRecovery

__all__ = ["CheckpointSource", "ServerRestorer"]

_logger = logging.getLogger("stratagem")
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_ANSWER = 5.0
_HAS_ENDED = "The coordinator has ended."

T = TypeVar("T")


class CheckpointSource(Protocol):
    """Where the last checkpoint is found: a ``CheckpointManager``."""

    @property
    def checkpoint(self) -> Any:
        """What ``restore(path)`` is called of."""

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the last complete checkpoint."""

    def after_saves(self, listener: Callable[[str], None]) -> None:
        """Has ``listener`` called with the path after each save."""


class ServerRestorer:
    """Waits for lost servers, and sets everything back to the last checkpoint when they are there again.

    No function is given to a worker meanwhile, and those that run are waited for: they end, or fail because
    of the lost server and run again later. If a server was only out of reach and still holds what it held,
    nothing is set back.

    Args:
        dispatcher: What gives functions to workers.
        client: The way to the servers. It is not kept alive, nor is ``source``: they are the
            coordinator's, which ends when nobody uses it any more.
        source: Where the last checkpoint is found.
        patience: How many seconds to wait for servers and for functions that run.

    Attributes:
        recoveries: What has been recovered so far.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        client: ParameterClient,
        source: CheckpointSource,
        patience: float,
    ) -> None:
        self.recoveries: list[ServerRecovery] = []
        self._dispatcher = dispatcher
        self._client_if_alive = weakref.ref(client)
        self._source_if_alive = weakref.ref(source)
        self._patience = patience
        self._is_active = False
        self._num_updates = [0] * client.num_servers
        # A server that is away now is noticed like one that is lost later.
        with contextlib.suppress(PSUnavailableError):
            self._all_signs()
        self._begun = self._progress()
        self._saved: dict[str, Progress] = {}

    def note_saved(self, path: str) -> None:
        """Takes in that a checkpoint was saved."""
        try:
            self._all_signs()
        except PSUnavailableError:
            return  # it is lost already, and what is known of it is older
        # The one before may be the last that is complete for some time yet.
        self._saved = {**dict([*self._saved.items()][-1:]), path: self._progress()}

    def take_sign(self, server: int, sign: ServerSign) -> None:
        """Takes in a sign of life."""
        if sign.is_same:
            self._num_updates[server] = sign.num_updates
        elif not self._is_active:
            with self._dispatcher.lock:
                self.begin(PSUnavailableError(f"/job:ps/task:{server} was started anew."))

    def begin(self, error: BaseException) -> None:
        """Begins, unless it has begun; called with the dispatcher's lock."""
        if self._is_active or self._dispatcher.stopped:
            return
        self._is_active = True
        _logger.warning("%s It is waited for, and will be restored.", error)
        self._dispatcher.pause()
        self._dispatcher.background.start(self._recover, name="coordinator-recovery")

    def lose(self, server: int) -> None:
        """Takes in that a server did not answer to this process itself."""
        with self._dispatcher.lock:
            self.begin(PSUnavailableError(f"/job:ps/task:{server} does not answer."))

    def _recover(self) -> None:
        begun = time.monotonic()
        failure: BaseException | None = None
        try:
            self._recover_until(begun + self._patience)
        except Exception as error:
            failure = error
        with self._dispatcher.lock:
            self._is_active = False
        self._dispatcher.resume(failure)

    def _recover_until(self, deadline: float) -> None:
        lost_at, begun = time.time(), time.monotonic()
        while True:
            try:
                self._wait_for_servers(deadline)
                self._wait_for_functions(deadline)
                anew = self._started_anew()
                if not anew:
                    _logger.warning("The parameter servers are there, with all that they held.")
                    return
                path, lost = self._restore(anew)
            except PSUnavailableError as error:
                if time.monotonic() >= deadline or isinstance(error, _NotRecoverable):
                    raise
                _logger.warning("%s It is waited for again.", error)
                continue
            recovery = ServerRecovery(
                tuple(anew),
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
                self._all_signs()
                return
            except PSUnavailableError as error:
                if self._dispatcher.ended.wait(_SECONDS_BETWEEN_LOOKS):
                    raise _NotRecoverable(_HAS_ENDED) from None
                if time.monotonic() >= deadline:
                    raise _NotRecoverable(
                        f"{error} It was waited for, to be restored, for {self._patience:g} s. Start it "
                        "again at the same address; stratagem run does."
                    ) from error

    def _wait_for_functions(self, deadline: float) -> None:
        while True:
            with self._dispatcher.lock:
                count = self._dispatcher.state.num_in_flight
            if not count:
                return
            if time.monotonic() >= deadline:
                raise _NotRecoverable(
                    f"A parameter server was lost, and {count} functions that ran at that time have not "
                    f"ended within {self._patience:g} s, so it cannot be restored."
                )
            if self._dispatcher.ended.wait(_SECONDS_BETWEEN_LOOKS):
                raise _NotRecoverable(_HAS_ENDED)

    def _restore(self, anew: list[int]) -> tuple[str, Progress]:
        """Restores the last checkpoint; returns its path and what is lost since, and since when."""
        client, source = self._client, self._source
        path = source.latest_checkpoint
        names = ", ".join(f"/job:ps/task:{server}" for server in anew)
        if path is None:
            raise _NotRecoverable(
                f"{names} was lost with its variables, and there is no checkpoint yet to restore them from."
            )
        before = self._saved.get(path, self._begun)
        now = self._progress()
        for server in anew:
            client.create_again(server)
        try:
            source.checkpoint.restore(path)
        except PSUnavailableError:
            raise
        except Exception as error:
            raise _NotRecoverable(
                f"{names} was lost with its variables, and {path} could not be restored: {error}"
            ) from error
        missing = [name for server in anew for name in client.ask(server, "ps/blank")["names"]]
        if missing:
            raise _NotRecoverable(
                f"{names} was lost with the variables {missing}, which are not in {path}. Put every "
                "variable that lives on parameter servers into the Checkpoint."
            )
        for server in anew:
            client.restored(server)
        self._num_updates = [0 if s in anew else n for s, n in enumerate(self._num_updates)]
        self._all_signs()
        self._saved[path] = self._progress()
        updates = [max(0, b - a) for a, b in zip(before.num_updates, now.num_updates, strict=True)]
        functions = now.num_functions - before.num_functions
        return path, Progress(before.moment, functions, tuple(updates))

    def _started_anew(self) -> list[int]:
        client = self._client
        signs = [client.check(s, _SECONDS_TO_ANSWER) for s in range(client.num_servers)]
        return [server for server, sign in enumerate(signs) if not sign.is_same]

    def _all_signs(self) -> None:
        client = self._client
        for server in range(client.num_servers):
            sign = client.check(server, _SECONDS_TO_ANSWER)
            if sign.is_same:
                self._num_updates[server] = sign.num_updates

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
    """A server that will not be waited for any longer."""
