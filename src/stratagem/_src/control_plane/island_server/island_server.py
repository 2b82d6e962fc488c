"""``IslandServer``: averages the parameters of islands (local SGD, DiLoCo)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._src.control_plane.island_server.island_messages import SERVER, read_body, with_body
from stratagem._src.control_plane.island_server.outer_rounds import IslandState, OuterRounds
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.process.background import Background
from stratagem._src.transport import Connection, Credentials, Kind, Listener, Message
from stratagem._src.transport.remote_error import exception_to_bytes

__all__ = ["IslandServer", "average"]

_log = logging.getLogger("stratagem")
_TICK_SECONDS = 0.25
_MAX_POLL_SECONDS = 5.0

Arrays = list[np.ndarray[Any, Any]]


class IslandServer:
    """Averages the contributions of islands to a round, and forwards a member's state to joining islands.

    It holds no state that training needs: the islands have it all, so the server can be restarted.
    ``OuterRounds`` makes the decisions; this class has the connections, the arrays and the clock.

    >>> from stratagem._src.control_plane.island_server.island_server import IslandServer
    >>> from stratagem._src.transport import Credentials
    >>> server = IslandServer("127.0.0.1:0", 2, Credentials(secret="correct horse battery staple"))
    >>> server.start(), server.shutdown()
    (None, None)

    Args:
        address: ``host:port`` to listen at.
        num_islands: The number of islands that the first round waits for.
        credentials: The credentials of the islands.
        log: Called with messages about islands that join, leave or are lost.
        heartbeat_timeout: Seconds without a heartbeat after which an island is lost.
    """

    def __init__(
        self,
        address: str,
        num_islands: int,
        credentials: Credentials,
        log: Callable[[str], None] = _log.info,
        heartbeat_timeout: float = 10.0,
    ) -> None:
        self._rounds = OuterRounds(num_islands, heartbeat_timeout, log)
        self._heartbeat_timeout = heartbeat_timeout
        self._changed = threading.Condition()
        self._layouts: dict[int, str] = {}
        self._contributions: dict[int, Arrays] = {}
        self._mean: tuple[int, tuple[int, ...], Arrays] | None = None
        self._state: tuple[int, dict[str, Any], Arrays] | None = None
        self._handlers: dict[str, Callable[[dict[str, Any], Message], Message]] = {
            "heartbeat": self._heartbeat,
            "admission": self._admit,
            "contribute": self._contribute,
            "mean": self._give_mean,
            "give_state": self._take_state,
            "state": self._give_state,
            "leave": self._leave,
        }
        self._is_over = threading.Event()
        self._background = Background("the island server")
        self._listener = Listener(address, credentials, SERVER, self._serve)

    @property
    def address(self) -> str:
        """The address that it listens at, with the actual port once it has started."""
        return self._listener.address

    def start(self) -> None:
        """Starts to listen.

        Raises:
            UnavailableError: If the port is in use or cannot be bound.
        """
        self._listener.start()
        self._background.start(self._keep_time, name="islands-clock")

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until it is shut down, and returns whether it is."""
        return self._listener.wait(timeout)

    def shutdown(self) -> None:
        """Stops listening and ends every connection."""
        self._is_over.set()
        with self._changed:
            self._changed.notify_all()
        self._listener.shutdown()
        self._background.join(2 * _TICK_SECONDS)

    def _keep_time(self) -> None:
        while not self._is_over.wait(_TICK_SECONDS):
            with self._changed:
                self._rounds.tick(time.monotonic())
                self._after_change()

    # --- connections ----------------------------------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        session: int | None = None
        # Otherwise the kernel retransmits data to an unreachable host for a quarter of an hour.
        connection.set_user_timeout(self._heartbeat_timeout)
        try:
            while True:
                _, method, message = connection.receive(deadline=None)
                try:
                    if method == "join":
                        session = self._join(read_body(message))
                        answer = with_body({"session": session})
                    else:
                        answer = self._handler(method)(read_body(message), message)
                except BaseException as error:
                    connection.send(
                        Kind.ERROR, "", Message(exception_to_bytes(error)), deadline=None
                    )
                else:
                    connection.send(Kind.RESULT, "", answer, deadline=None)
        finally:
            # An island keeps the connection on which it joined, so the end of it is the end of the island.
            if session is not None:
                self._lose(session, "has ended or cannot be reached")

    def _handler(self, method: str) -> Callable[[dict[str, Any], Message], Message]:
        handler = self._handlers.get(method)
        if handler is None:
            raise InvalidArgumentError(
                f"A method must be one of {sorted(self._handlers)}, got {method!r}."
            )
        return handler

    # --- request handlers -----------------------------------------------------------------------------

    def _join(self, body: dict[str, Any]) -> int:
        with self._changed:
            self._check_layout(body["island"], body["layout"])
            session = self._rounds.join(
                body["island"], body["round"], body["digest"], body["timeout"], time.monotonic()
            )
            self._after_change()
            return session

    def _check_layout(self, island: int, layout: str) -> None:
        for other in self._rounds.present():
            if other != island and self._layouts[other] != layout:
                raise InvalidArgumentError(
                    "All islands must give LocalUpdates the same variables, sync_every, overlap_steps and "
                    f"outer_optimizer, got {layout} on island {island} and {self._layouts[other]} on "
                    f"island {other}."
                )
        self._layouts[island] = layout

    def _heartbeat(self, body: dict[str, Any], _: Message) -> Message:
        with self._changed:
            self._rounds.heartbeat(body["session"], body["num_steps"], time.monotonic())
            donates = self._rounds.donor() == body["session"]
            return with_body({"donate_round": self._rounds.round if donates else None})

    def _admit(self, body: dict[str, Any], _: Message) -> Message:
        """Waits until an island is a member, for at most the requested seconds (long poll)."""
        session = body["session"]

        def is_member() -> bool:
            return self._rounds.of(session).standing is IslandState.MEMBER

        with self._changed:
            if not self._wait_until(is_member, body["seconds"]):
                return self._not_yet()
            island = self._rounds.of(session)
            return with_body({"round": self._rounds.round, "takes_state": island.takes_state})

    def _contribute(self, body: dict[str, Any], message: Message) -> Message:
        with self._changed:
            session = body["session"]
            # Stored before it is counted: the round may close with it.
            self._contributions[session] = list(message.arrays)
            try:
                self._rounds.contribute(session, body["round"], time.monotonic())
            except BaseException:
                del self._contributions[session]
                raise
            self._after_change()
            return with_body({})

    def _give_mean(self, body: dict[str, Any], _: Message) -> Message:
        """Waits until a round is closed, for at most the requested seconds (long poll)."""
        session, round = body["session"], body["round"]

        def is_there() -> bool:
            self._rounds.of(session)
            return self._mean is not None and self._mean[0] == round and session in self._mean[1]

        with self._changed:
            if not self._wait_until(is_there, body["seconds"]):
                return self._not_yet()
            assert self._mean is not None
            return with_body({"num_islands": len(self._mean[1])}, self._mean[2])

    def _take_state(self, body: dict[str, Any], message: Message) -> Message:
        with self._changed:
            if self._rounds.give_state(body["session"], body["round"]):
                self._state = (body["round"], body["state"], list(message.arrays))
                self._after_change()
            return with_body({})

    def _give_state(self, body: dict[str, Any], _: Message) -> Message:
        session = body["session"]

        def is_there() -> bool:
            island = self._rounds.of(session)
            return self._rounds.state_is_ready() or island.standing is not IslandState.MEMBER

        with self._changed:
            if not self._wait_until(is_there, body["seconds"]):
                return self._not_yet()
            if self._rounds.of(session).standing is not IslandState.MEMBER:
                return with_body({"waits_again": True})
            assert self._state is not None
            round, state, arrays = self._state
            self._rounds.took_state(session)
            return with_body({"round": round, "state": state}, arrays)

    def _leave(self, body: dict[str, Any], _: Message) -> Message:
        with self._changed:
            if self._rounds.donor() == body["session"]:
                # A joining island needs the state of this one, and would restart from its own without it.
                return with_body({"donate_round": self._rounds.round})
            self._rounds.leave(body["session"], time.monotonic())
            self._after_change()
        return with_body({})

    # --- shared by the handlers -----------------------------------------------------------------------

    def _lose(self, session: int, why: str) -> None:
        with self._changed:
            self._rounds.lose(session, why, time.monotonic())
            self._after_change()

    def _wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + min(seconds, _MAX_POLL_SECONDS)
        while not holds():
            left = deadline - time.monotonic()
            if left <= 0 or self._is_over.is_set():
                return False
            self._changed.wait(left)
        return True

    def _not_yet(self) -> Message:
        return with_body(
            {
                "waits_for": self._rounds.waited_for(),
                "idle_seconds": self._rounds.seconds_without_progress(time.monotonic()),
                "patience": self._rounds.contribution_timeout(),
            }
        )

    def _after_change(self) -> None:
        closed = self._rounds.closed
        if closed is not None and (self._mean is None or self._mean[0] != closed.round):
            parts = [self._contributions[session] for session in closed.sessions]
            self._mean = (closed.round, closed.sessions, average(parts))
            self._contributions.clear()
        if closed is None:
            self._mean = None
        if not self._rounds.state_is_ready():
            self._state = None
        self._changed.notify_all()


def average(contributions: Sequence[Sequence[np.ndarray[Any, Any]]]) -> list[np.ndarray[Any, Any]]:
    """Returns the mean of the arrays of several islands, summed in the order of the islands.

    All islands get it from here, so they have the same bits whatever the order of arrival.

    Dtypes of less than 32 bits are summed in float32, and rounded once.

    >>> import numpy as np
    >>> from stratagem._src.control_plane.island_server.island_server import average
    >>> average([[np.float32([1, 2])], [np.float32([3, 6])]])
    [array([2., 4.], dtype=float32)]
    """
    if len(contributions) == 1:
        return list(contributions[0])
    return [_mean(parts) for parts in zip(*contributions, strict=True)]


def _mean(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    dtype = parts[0].dtype
    total = parts[0].astype(np.float32 if dtype.itemsize < 4 else dtype)
    for part in parts[1:]:
        total += part
    total /= len(parts)
    return total.astype(dtype, copy=False)
