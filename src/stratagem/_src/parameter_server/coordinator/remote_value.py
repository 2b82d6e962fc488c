"""``RemoteValue``: the future result of a scheduled function."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from stratagem._src.core.wakeup import Wakeup
from stratagem._src.parameter_server.coordinator.closure import Closure, Status
from stratagem._src.parameter_server.protocol.serialization import ByReference, Payload

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher

__all__ = ["RemoteValue"]


class RemoteValue(ByReference):
    """The future result of a scheduled function; returned by ``ClusterCoordinator.schedule``.

    It may be an argument of another scheduled function, which runs when the result is available. Small
    results are sent to the coordinator; a large one stays on the worker that computed it, until
    ``fetch``, and is dropped there with the last reference to it here.

    Differs from tf.distribute: can be passed to ``schedule``.
    """

    def __init__(self, dispatcher: Dispatcher, closure: Closure) -> None:
        self.keeps_alive: Any = None
        """An object that must live as long as this one."""
        self._dispatcher = dispatcher
        self._closure = closure
        # Set by the dispatcher, under its lock.
        self._payload: Payload | None = None
        self._waiters: collections.deque[Wakeup] = collections.deque()

    def fetch(self) -> Any:
        """Waits for the result and returns it, with JAX arrays as NumPy arrays.

        Raises:
            CancelledError: If the function did not run because another one failed.
            Exception: The function's error, with the worker's traceback as a note.
        """
        return self._dispatcher.fetch(self, as_jax=False)

    def get(self) -> Any:
        """Waits for the result and returns it, with JAX arrays as they are."""
        return self._dispatcher.fetch(self, as_jax=True)

    def __del__(self, held: Status = Status.HELD) -> None:  # bound now: modules may be gone by then
        if self._closure.status is held:
            self._dispatcher.dropped.append(self._closure)

    def __repr__(self) -> str:
        status = "pending" if not self._closure.settled else self._closure.status.value
        return f"<RemoteValue of function {self._closure.number}: {status}>"
