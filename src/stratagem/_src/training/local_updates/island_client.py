"""``IslandClient``: the client of an island's leader for outer rounds, with reconnection."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

from stratagem._src.control_plane.island_server.island_messages import (
    IslandPlace,
    island_credentials,
    read_body,
)
from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.training.local_updates.island_session import HEARTBEAT_TIMEOUT, IslandSession
from stratagem._src.training.local_updates.outer_state import Array, OuterState
from stratagem._src.transport import Message

__all__ = ["IslandClient", "Outcome"]

_log = logging.getLogger("stratagem")
_RETRY_SECONDS = 0.5
_SERVER_DROP_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a round or of joining.

    Attributes:
        kind: ``"mean"``: the mean of the parameters that islands contributed. ``"state"``: the state of the
            other islands, with which a returning island continues. ``"go"``: the island continues with its
            own state.
        num_islands: Number of islands that contributed to the mean.
        round: The round of the state.
        num_steps: Its number of inner steps.
        arrays: The arrays.
    """

    kind: Literal["mean", "state", "go"]
    num_islands: int = 0
    round: int = 0
    num_steps: int = 0
    arrays: tuple[Array, ...] = ()


class IslandClient:
    """Client of the island server; rejoins when the server dropped it or the connection is lost.

    Args:
        place: Which island this is.
        layout: Settings that must be equal in all islands.
        timeout: Maximum number of seconds to wait for other islands.
    """

    def __init__(self, place: IslandPlace, layout: str, timeout: float) -> None:
        assert place.server is not None
        self._place = place
        self._server = place.server
        self._layout = layout
        self._timeout = timeout
        self._session: IslandSession | None = None
        self._is_closed = threading.Event()
        self._held: tuple[OuterState, int] | None = None
        self.waits_for = ""
        self.bytes_sent = 0
        self.bytes_received = 0

    def hold(self, state: OuterState, num_steps: int) -> None:
        """Sets the current state of this island, for heartbeats and for islands that return."""
        self._held = (state, num_steps)

    def join(self) -> Outcome:
        """Joins the other islands, and returns their state if it differs from this island's.

        Raises:
            UnavailableError: If the client is closed meanwhile.
            DeadlineExceededError: If the server cannot be reached, or no island makes a step, for
                ``timeout`` seconds.
            InvalidArgumentError: If islands have other variables or settings, or another process has the
                number of this island.
        """
        while True:
            try:
                session = self._connect()
                return self._admission(session)
            except UnavailableError as error:
                self._drop(error)

    def run_round(self, round: int, parameters: Sequence[Array]) -> Outcome:
        """Contributes to a round and returns the mean, or the others' state if they continued without it.

        Raises:
            UnavailableError: As for ``join``.
            DeadlineExceededError: As for ``join``.
        """
        while True:
            session = self._session
            try:
                if session is None:
                    raise UnavailableError("this island has no session")
                return self._mean(session, round, parameters)
            except (UnavailableError, DeadlineExceededError) as error:
                self._drop(error)
                _log.warning(
                    "Island %d misses outer round %d (%s) and rejoins.",
                    self._place.island,
                    round,
                    error,
                )
            outcome = self.join()
            if outcome.kind != "go":
                return outcome

    def leave(self) -> None:
        """Leaves, so that other islands do not wait for this one."""
        self._is_closed.set()
        if self._session is not None:
            self._session.leave(HEARTBEAT_TIMEOUT)
            self._session = None

    def close(self) -> None:
        """Closes the connections without leaving; active calls raise ``UnavailableError``."""
        self._is_closed.set()
        self._close_session()

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- connecting -----------------------------------------------------------------------------------

    def _connect(self) -> IslandSession:
        self.waits_for = f"the island server at {self._server}"
        deadline = time.monotonic() + self._timeout
        assert self._held is not None
        state, _ = self._held
        body = {
            "island": self._place.island,
            "round": state.round,
            "digest": state.digest(),
            "layout": self._layout,
            "timeout": self._timeout,
        }
        while True:
            session = IslandSession(
                self._server, island_credentials(), self._place.island, self._now_held
            )
            try:
                session.join(body, HEARTBEAT_TIMEOUT)
            except (UnavailableError, DeadlineExceededError) as error:
                session.close()
                if self._is_closed.is_set():
                    raise
                if time.monotonic() > deadline:
                    raise DeadlineExceededError(
                        f"Island {self._place.island} could not reach the island server for "
                        f"{self._timeout:g} s: {error}"
                    ) from None
                self._is_closed.wait(_RETRY_SECONDS)
            except BaseException:
                session.close()
                raise
            else:
                self._session = session
                if self._is_closed.is_set():
                    self._close_session()
                    raise UnavailableError("This island was closed while it joined.")
                return session

    def _now_held(self) -> tuple[OuterState, int]:
        assert self._held is not None
        return self._held

    def _drop(self, error: Exception) -> None:
        """Closes the session, so that a new one can start; raises ``error`` if this client was closed."""
        self._close_session()
        if self._is_closed.is_set():
            raise error

    def _admission(self, session: IslandSession) -> Outcome:
        while True:
            body = read_body(self._until_there(session, "admission", {}, "round"))
            if not body["takes_state"]:
                return Outcome("go", round=body["round"])
            answer = self._until_there(session, "state", {}, "state", "waits_again")
            body = read_body(answer)
            if "state" in body:
                self.bytes_received += _size(answer.arrays)
                steps = body["state"]["num_steps"]
                return Outcome("state", 0, body["round"], steps, answer.arrays)

    def _mean(self, session: IslandSession, round: int, parameters: Sequence[Array]) -> Outcome:
        self.waits_for = f"the island server at {self._server}"
        session.call("contribute", {"round": round}, parameters, self._timeout)
        self.bytes_sent += _size(parameters)
        answer = self._until_there(session, "mean", {"round": round}, "num_islands")
        self.bytes_received += _size(answer.arrays)
        return Outcome("mean", read_body(answer)["num_islands"], arrays=answer.arrays)

    def _until_there(
        self, session: IslandSession, method: str, body: dict[str, Any], *keys: str
    ) -> Message:
        """Polls until a response has one of the keys; gives up if no island makes a step any more."""
        size = sum(array.nbytes for array in self._now_held()[0].arrays)
        timeout = self._timeout + size / 125_000
        while True:
            answer = session.poll(method, body, timeout)
            said = read_body(answer)
            if any(key in said for key in keys):
                return answer
            names = ", ".join(f"island {number}" for number in said["waits_for"])
            self.waits_for = names or "an outer step of the others"
            # The server drops a late member at its next tick. Only after that is it certain that no island
            # continues.
            patience = max(self._timeout, said["patience"]) + _SERVER_DROP_SECONDS
            if said["idle_seconds"] > patience:
                raise DeadlineExceededError(
                    f"Island {self._place.island} waited for {self.waits_for}, but no island has made a "
                    f"step for {said['idle_seconds']:.0f} s (timeout_seconds={self._timeout:g})."
                )


def _size(arrays: Sequence[Array]) -> int:
    return sum(array.nbytes for array in arrays)
