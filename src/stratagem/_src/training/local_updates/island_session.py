"""``IslandSession``: one session of an island's leader with the island server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.control_plane.island_server.island_messages import SERVER, read_body, with_body
from stratagem._src.core.errors import UnavailableError
from stratagem._src.process.background import Background
from stratagem._src.training.local_updates.outer_state import OuterState
from stratagem._src.transport import (
    Connection,
    Credentials,
    Identity,
    Kind,
    Message,
    TransportClient,
    connect,
)
from stratagem._src.transport.remote_error import exception_from_bytes

__all__ = ["HEARTBEAT_TIMEOUT", "IslandSession"]

HEARTBEAT_TIMEOUT = 10.0
_HEARTBEAT_SECONDS = 1.0
_POLL_SECONDS = 2.0
_MIN_BYTES_PER_SECOND = 125_000  # 1 Mbit/s
_NAME = "the island server"


class IslandSession:
    """A session with the server: heartbeats on one connection, requests on others.

    The heartbeat connection lives as long as the island: when it breaks, the server considers the island
    lost. A server that does not answer a heartbeat for ten seconds is lost, and further requests raise
    ``UnavailableError``.

    Args:
        server: Its address.
        credentials: Credentials for mutual authentication.
        island: The number of this island.
        held: Returns the current outer state and the number of inner steps, for heartbeats and for islands
            that return.
    """

    def __init__(
        self,
        server: str,
        credentials: Credentials,
        island: int,
        held: Callable[[], tuple[OuterState, int]],
    ) -> None:
        self._server = server
        self._own = Identity("island", island)
        self._credentials = credentials
        self._held = held
        self._client = TransportClient(
            server, credentials, wanted=SERVER, own=self._own, name=_NAME
        )
        self._control: Connection | None = None
        self._session = 0
        self._lost: Exception | None = None
        self._is_over = threading.Event()
        self._donated: int | None = None
        self._background = Background(f"the session of island {island}", on_failure=self._mark_lost)

    def join(self, body: dict[str, Any], timeout: float) -> None:
        """Starts the session.

        Raises:
            UnavailableError: If the server cannot be reached in time.
            InvalidArgumentError: If it rejects this island.
        """
        deadline = time.monotonic() + timeout
        self._control = connect(
            self._server,
            self._credentials,
            own=self._own,
            wanted=SERVER,
            deadline=deadline,
            name=_NAME,
        )
        self._control.set_user_timeout(HEARTBEAT_TIMEOUT)
        answer = self._request(self._control, "join", with_body(body))
        self._session = read_body(answer)["session"]
        self._background.start(self._send_heartbeats, self._control, name="islands-heartbeat")

    def call(
        self, method: str, body: dict[str, Any], arrays: Sequence[Any], timeout: float
    ) -> Message:
        """Sends a request that the server answers at once.

        Raises:
            UnavailableError: If the server, or the session, is lost.
            DeadlineExceededError: If the round trip takes longer than ``timeout`` plus the time to send the
                arrays at 1 Mbit/s.
        """
        message = with_body({**body, "session": self._session}, arrays)
        seconds = timeout + sum(array.nbytes for array in arrays) / _MIN_BYTES_PER_SECOND
        try:
            return self._client.call(method, message, timeout=seconds)
        except UnavailableError as error:
            raise (self._lost or error) from None

    def poll(self, method: str, body: dict[str, Any], timeout: float) -> Message:
        """Polls the server once; it answers within two seconds, even if the result is not ready."""
        seconds = max(timeout, HEARTBEAT_TIMEOUT) + _POLL_SECONDS
        return self.call(method, {**body, "seconds": _POLL_SECONDS}, (), seconds)

    def leave(self, timeout: float) -> None:
        """Ends the session; first donates its state to an island that needs it."""
        with contextlib.suppress(Exception):
            if self._lost is None and "donate_round" in read_body(
                self.call("leave", {}, (), timeout)
            ):
                self._donate(self._held()[0])
                self.call("leave", {}, (), timeout)
        self.close()

    def close(self) -> None:
        """Closes the connections. If the island has not left, the server considers it lost."""
        self._is_over.set()
        if self._control is not None:
            self._control.interrupt()
        self._client.close()
        self._background.join(HEARTBEAT_TIMEOUT)
        if self._control is not None:
            self._control.close()

    def _send_heartbeats(self, control: Connection) -> None:
        while not self._is_over.wait(_HEARTBEAT_SECONDS):
            state, num_steps = self._held()
            body = {"session": self._session, "num_steps": num_steps}
            try:
                answer = read_body(self._request(control, "heartbeat", with_body(body)))
            except Exception as error:
                self._mark_lost(error)
                return
            wanted = answer["donate_round"]
            if wanted == state.round and wanted != self._donated:
                self._donated = wanted
                self._background.start(self._donate, state, name="islands-donation")

    def _donate(self, state: OuterState) -> None:
        body = {"round": state.round, "state": {"num_steps": state.num_steps}}
        try:
            self.call("give_state", body, state.arrays, HEARTBEAT_TIMEOUT)
        except Exception as error:
            self._mark_lost(error)

    def _request(self, connection: Connection, method: str, message: Message) -> Message:
        deadline = time.monotonic() + HEARTBEAT_TIMEOUT
        peer = f"{_NAME} at {self._server}"
        try:
            connection.send(Kind.REQUEST, method, message, deadline)
            kind, _, answer = connection.receive(deadline)
        except TimeoutError:
            raise UnavailableError(
                f"{peer} has not answered a heartbeat for {HEARTBEAT_TIMEOUT:g} s."
            ) from None
        except OSError as error:
            raise UnavailableError(f"{peer} cannot be reached: {error}.") from None
        if kind == Kind.ERROR:
            raise exception_from_bytes(answer.body, peer)
        return answer

    def _mark_lost(self, error: BaseException) -> None:
        if self._is_over.is_set():
            return
        if self._lost is None and isinstance(error, Exception):
            self._lost = error
        self._client.close()
