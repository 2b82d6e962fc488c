"""``IslandClient``: how the leader of an island takes part in outer rounds."""

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
from stratagem._src.training.local_updates.island_contact import HEARTBEAT_TIMEOUT, IslandContact
from stratagem._src.training.local_updates.outer_state import Array, OuterState
from stratagem._src.transport import Message

__all__ = ["IslandClient", "Outcome"]

_log = logging.getLogger("stratagem")
_SECONDS_BETWEEN_ATTEMPTS = 0.5
_SECONDS_FOR_THE_SERVER_TO_DROP = 2.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an island gets from the others.

    Attributes:
        kind: ``"mean"`` of the parameters that islands contributed; ``"state"`` of an island that
            returns, which continues with it; ``"go"`` if it continues with what it has.
        num_islands: How many islands the mean is of.
        round: The round that the state belongs to.
        num_steps: The number of steps that it has.
        arrays: The arrays.
    """

    kind: Literal["mean", "state", "go"]
    num_islands: int = 0
    round: int = 0
    num_steps: int = 0
    arrays: tuple[Array, ...] = ()


class IslandClient:
    """Talks to the server of the islands; rejoins when it was dropped or has lost the server.

    Args:
        place: Which island this is.
        layout: What must be equal in all islands.
        timeout: How many seconds others may let this island wait.
    """

    def __init__(self, place: IslandPlace, layout: str, timeout: float) -> None:
        assert place.server is not None
        self._place = place
        self._server = place.server
        self._layout = layout
        self._timeout = timeout
        self._contact: IslandContact | None = None
        self._is_closed = threading.Event()
        self._held: tuple[OuterState, int] | None = None
        self.waits_for = ""
        self.bytes_sent = 0
        self.bytes_received = 0

    def hold(self, state: OuterState, num_steps: int) -> None:
        """Says what this island has, for one that returns."""
        self._held = (state, num_steps)

    def join(self) -> Outcome:
        """Meets the other islands, and returns their state if this one has another.

        Raises:
            UnavailableError: If the server cannot be reached for ``timeout`` seconds.
            DeadlineExceededError: If no member makes a step for so long.
            InvalidArgumentError: If islands have other variables or settings, or another process has the
                number of this island.
        """
        while True:
            try:
                contact = self._connect()
                return self._admission(contact)
            except UnavailableError as error:
                self._drop(error)

    def run_round(self, round: int, parameters: Sequence[Array]) -> Outcome:
        """Contributes to a round and returns the mean, or the state if the others went on without it.

        Raises:
            UnavailableError: Likewise.
            DeadlineExceededError: Likewise.
        """
        while True:
            contact = self._contact
            try:
                if contact is None:
                    raise UnavailableError("this island has no session")
                return self._mean(contact, round, parameters)
            except (UnavailableError, DeadlineExceededError) as error:
                self._drop(error)
                _log.warning(
                    "Island %d takes no part in outer round %d (%s) and joins again.",
                    self._place.island,
                    round,
                    error,
                )
            outcome = self.join()
            if outcome.kind != "go":
                return outcome

    def leave(self) -> None:
        """Leaves, so that no other island waits for this one."""
        self._is_closed.set()
        if self._contact is not None:
            self._contact.leave(HEARTBEAT_TIMEOUT)
            self._contact = None

    def close(self) -> None:
        """Ends the connections as a loss does; calls under way raise ``UnavailableError``."""
        self._is_closed.set()
        self._close_contact()

    def _close_contact(self) -> None:
        contact, self._contact = self._contact, None
        if contact is not None:
            contact.close()

    # --- connecting -----------------------------------------------------------------------------------

    def _connect(self) -> IslandContact:
        self.waits_for = f"the server of the islands at {self._server}"
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
            contact = IslandContact(
                self._server, island_credentials(), self._place.island, self._now_held
            )
            try:
                contact.join(body, HEARTBEAT_TIMEOUT)
            except (UnavailableError, DeadlineExceededError) as error:
                contact.close()
                if self._is_closed.is_set():
                    raise
                if time.monotonic() > deadline:
                    raise DeadlineExceededError(
                        f"Island {self._place.island} could not reach the server of the islands for "
                        f"{self._timeout:g} s: {error}"
                    ) from None
                self._is_closed.wait(_SECONDS_BETWEEN_ATTEMPTS)
            except BaseException:
                contact.close()
                raise
            else:
                self._contact = contact
                if self._is_closed.is_set():
                    self._close_contact()
                    raise UnavailableError("This island was closed while it joined.")
                return contact

    def _now_held(self) -> tuple[OuterState, int]:
        assert self._held is not None
        return self._held

    def _drop(self, error: Exception) -> None:
        """Gives up the session, to begin another; not if this client was closed meanwhile."""
        self._close_contact()
        if self._is_closed.is_set():
            raise error

    def _admission(self, contact: IslandContact) -> Outcome:
        while True:
            body = read_body(self._until_there(contact, "admission", {}, "round"))
            if not body["takes_state"]:
                return Outcome("go", round=body["round"])
            answer = self._until_there(contact, "state", {}, "state", "waits_again")
            body = read_body(answer)
            if "state" in body:
                self.bytes_received += _size(answer.arrays)
                steps = body["state"]["num_steps"]
                return Outcome("state", 0, body["round"], steps, answer.arrays)

    def _mean(self, contact: IslandContact, round: int, parameters: Sequence[Array]) -> Outcome:
        self.waits_for = f"the server of the islands at {self._server}"
        contact.call("contribute", {"round": round}, parameters, self._timeout)
        self.bytes_sent += _size(parameters)
        answer = self._until_there(contact, "mean", {"round": round}, "num_islands")
        self.bytes_received += _size(answer.arrays)
        return Outcome("mean", read_body(answer)["num_islands"], arrays=answer.arrays)

    def _until_there(
        self, contact: IslandContact, method: str, body: dict[str, Any], *keys: str
    ) -> Message:
        """Polls until an answer has one of the keys; gives up if no member makes a step any more."""
        size = sum(array.nbytes for array in self._now_held()[0].arrays)
        timeout = self._timeout + size / 125_000
        while True:
            answer = contact.poll(method, body, timeout)
            said = read_body(answer)
            if any(key in said for key in keys):
                return answer
            names = ", ".join(f"island {number}" for number in said["waits_for"])
            self.waits_for = names or "an outer step of the others"
            # The server drops a member that is late at its next tick. Only after that is it certain that
            # no island continues.
            patience = max(self._timeout, said["patience"]) + _SECONDS_FOR_THE_SERVER_TO_DROP
            if said["idle_seconds"] > patience:
                raise DeadlineExceededError(
                    f"Island {self._place.island} waited for {self.waits_for}, but no island has made a "
                    f"step for {said['idle_seconds']:.0f} s (timeout_seconds={self._timeout:g})."
                )


def _size(arrays: Sequence[Array]) -> int:
    return sum(array.nbytes for array in arrays)
