"""``OptionalBarrier``: a barrier that a worker may also reach alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from stratagem._src.control_plane.membership_client import MembershipClient
from stratagem._src.control_plane.suspend_aware_timer import SuspendAwareTimer
from stratagem._src.control_plane.worker_status import AGREEING, LEAVING, WorkerStatus

__all__ = ["OptionalBarrier", "Position", "is_elsewhere"]

_log = logging.getLogger("stratagem")
_POLL_SECONDS = 0.05


class Position(NamedTuple):
    """The position of a worker in the common sequence of programs and gathers.

    Attributes:
        launched: The number of common programs that it has launched.
        agreed: The number of gathers of the common sequence that it has completed.
    """

    launched: int
    agreed: int


class OptionalBarrier:
    """Waits until all workers arrive at the same place, or are known to be elsewhere.

    A late worker and one that never arrives look alike, until the first arrives or the second waits for
    this worker somewhere else: at the next program, or at its exit. So the result does not depend on
    timing, with one exception: a worker that stays in its own code longer than ``timeout`` is given up on.

    Args:
        client: The client of the membership server.
        worker: The rank of this worker.
    """

    def __init__(self, client: MembershipClient, worker: int) -> None:
        self._client = client
        self._worker = worker
        self._asked = 0

    def all_arrive(
        self,
        place: str,
        position: Position,
        begun: Callable[[], Mapping[str, int]],
        check_wait: Callable[[], None],
        timeout: float,
    ) -> bool:
        """Returns whether all workers arrived; ``False`` if this one is alone at this place.

        Args:
            place: The name of the barrier.
            position: The position of this worker.
            begun: Returns the latest iteration over each dataset that this worker has begun.
            check_wait: Raises if a worker is lost.
            timeout: Seconds to wait for workers that are in their own code.
        """
        # For example "a save after 3/5": workers at the same place of their programs make the same key.
        key = f"{place} after {position.launched}/{position.agreed}"
        # A status sent before this worker arrived does not count: its sender may have arrived since.
        first_ask = self._asked + 1
        timer = SuspendAwareTimer()
        self._client.put(key, None)
        self._client.set_barrier(key)
        try:
            while True:
                self._asked += 1
                self._client.request_status(self._asked)
                if self._client.take(key, _POLL_SECONDS) is not None:
                    return True
                check_wait()
                if self._all_others_elsewhere(key, position, begun(), first_ask):
                    break
                if timer.seconds() > timeout:
                    _log.warning(
                        "This worker has waited %g s for the others at %s, and continues alone.",
                        timeout,
                        place,
                    )
                    break
        except BaseException:
            self._client.withdraw(key)
            raise
        finally:
            self._client.set_barrier("")
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
    """Returns whether a worker will not arrive at the barrier where ``me`` waits.

    >>> def is_there(**status):
    ...     return is_elsewhere(0, 1, "a save after 3/5", Position(3, 5), WorkerStatus(**status), {})
    >>> is_there(launched=3, agreed=5), is_there(launched=4, agreed=5)  # in its own code; in program 4
    (False, True)

    Args:
        me: The rank of the worker that waits.
        worker: The rank of the other worker.
        key: The barrier, with the position.
        position: The position of ``me``.
        status: A status that the other worker sent after ``me`` began to wait.
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
    # Of two workers at different optional barriers the lower rank continues: the other one may be at the
    # barrier that the first reaches next.
    return status.meets not in ("", key) and me < worker
