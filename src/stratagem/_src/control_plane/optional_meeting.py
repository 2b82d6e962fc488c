"""``OptionalMeeting``: workers find out whether all of them do something together, or one does it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from stratagem._src.control_plane.membership_client import MeetingClient
from stratagem._src.control_plane.suspend_aware_timer import Patience
from stratagem._src.control_plane.worker_status import AGREEING, LEAVING, WorkerStatus

__all__ = ["OptionalMeeting", "Position", "is_elsewhere"]

_log = logging.getLogger("stratagem")
_POLL_SECONDS = 0.05


class Position(NamedTuple):
    """Where a worker is between the common programs and exchanges.

    Attributes:
        launched: How many common programs it has launched.
        agreed: How many exchanges of the common sequence it has completed.
    """

    launched: int
    agreed: int


class OptionalMeeting:
    """Waits until all workers come to the same place, or are seen elsewhere.

    A worker that is late and one that does not come look alike, until the late one comes, or the other
    one waits for this worker somewhere else: at the next program, or at the end. So nothing depends on
    time, except that a worker which stays in its own code for longer than ``timeout`` is not waited for.

    Args:
        client: The line to the membership server.
        worker: The number of this worker.
    """

    def __init__(self, client: MeetingClient, worker: int) -> None:
        self._client = client
        self._worker = worker
        self._asked = 0

    def all_come(
        self,
        place: str,
        position: Position,
        begun: Callable[[], Mapping[str, int]],
        look: Callable[[], None],
        timeout: float,
    ) -> bool:
        """Returns whether all workers came; ``False`` if this one is alone at this place.

        Args:
            place: What they may do together.
            position: Where this worker is.
            begun: Returns the latest iteration over each dataset that this worker has begun.
            look: Raises if a worker is lost.
            timeout: Seconds to wait for workers that are in their own code.
        """
        key = f"{place} after {position.launched}/{position.agreed}"
        # What the others said before this worker came does not count: they may have come since.
        first_ask = self._asked + 1
        patience = Patience()
        self._client.put(key, None)
        self._client.set_meets(key)
        try:
            while True:
                self._asked += 1
                self._client.ask(self._asked)
                if self._client.take(key, _POLL_SECONDS) is not None:
                    return True
                look()
                if self._all_others_elsewhere(key, position, begun(), first_ask):
                    break
                if patience.seconds() > timeout:
                    _log.warning(
                        "This worker has waited %g s for the others at %s, and goes on alone.",
                        timeout,
                        place,
                    )
                    break
        except BaseException:
            self._client.withdraw(key)
            raise
        finally:
            self._client.set_meets("")
        self._client.withdraw(key)
        return False

    def _all_others_elsewhere(
        self, key: str, position: Position, begun: Mapping[str, int], first_ask: int
    ) -> bool:
        return all(
            view.status.heard_of(self._worker) >= first_ask
            and is_elsewhere(self._worker, worker, key, position, view.status, begun)
            for worker, view in enumerate(self._client.views())
            if worker != self._worker
        )


def is_elsewhere(
    me: int,
    worker: int,
    key: str,
    position: Position,
    status: WorkerStatus,
    begun: Mapping[str, int],
) -> bool:
    """Returns whether a worker does not come to a place where ``me`` waits.

    >>> def is_there(**status):
    ...     return is_elsewhere(0, 1, "a save after 3/5", Position(3, 5), WorkerStatus(**status), {})
    >>> is_there(launched=3, agreed=5), is_there(launched=4, agreed=5)  # in its own code; in program 4
    (False, True)

    Args:
        me: The worker that waits.
        worker: The other worker.
        key: The place, with the position.
        position: Where ``me`` is.
        status: What the other worker said of itself since ``me`` began to wait.
        begun: The latest iteration over each dataset that ``me`` has begun.
    """
    if status.phase == LEAVING or status.launched > position.launched:
        return True
    if status.agreed > position.agreed:
        return True
    if status.launched < position.launched or status.agreed < position.agreed:
        return False
    if status.phase == AGREEING:
        return True
    if status.main_begins is not None:
        return begun.get(status.main_begins.dataset, -1) < status.main_begins.number
    # Of two workers at different optional places, the first goes on: the other one may be where the
    # first will come to next.
    return status.meets not in ("", key) and me < worker
