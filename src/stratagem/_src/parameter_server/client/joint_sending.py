"""``JointSending``: threads that have something to send at the same time send it together."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stratagem._src.core.errors import UnavailableError
from stratagem._src.mesh.program_queue import interrupting_error

__all__ = ["JointSending"]

T = TypeVar("T")


class _Parcel(Generic[T]):
    """What one thread wants to have sent."""

    __slots__ = ("content", "done", "error", "leads", "turn")

    def __init__(self, content: T) -> None:
        self.content = content
        # Held until it is the waiting thread's turn: an Event costs ten times as much to make.
        self.turn = threading.Lock()
        self.turn.acquire()
        self.leads = False
        self.done = False
        self.error: BaseException | None = None


class JointSending(Generic[T]):
    """Sends one message at a time. What comes meanwhile waits and goes into the next one together.

    Args:
        send: Sends contents in one message. Returns for each what went wrong, or ``None``.
    """

    def __init__(self, send: Callable[[Sequence[T]], Sequence[BaseException | None]]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: list[_Parcel[T]] = []
        self._threads: set[int] = set()
        self._under_way = False

    def submit(self, content: T) -> None:
        """Returns when ``content`` has been sent and answered; raises what went wrong with it.

        Raises:
            ContextError: In a signal handler that interrupts the same, which could not go on before.
        """
        thread = threading.get_ident()
        if thread in self._threads:
            raise interrupting_error()
        parcel = _Parcel(content)
        try:
            self._threads.add(thread)
            with self._lock:
                self._waiting.append(parcel)
                parcel.leads, self._under_way = not self._under_way, True
            if not parcel.leads:
                parcel.turn.acquire()
            if not parcel.done:
                self._lead(parcel)
        except BaseException:  # an interrupt
            self._abandon(parcel)
            raise
        finally:
            self._threads.discard(thread)
        if parcel.error is not None:
            raise parcel.error

    def _lead(self, own: _Parcel[T]) -> None:
        """Sends everything that waits, this thread's own among it, then lets another thread lead."""
        parcels: list[_Parcel[T]] = []
        errors: Sequence[BaseException | None] = ()
        try:
            with self._lock:
                parcels, self._waiting = self._waiting, []
            errors = self._send([parcel.content for parcel in parcels])
        except Exception as error:
            # Each thread raises its own: a raised exception collects that thread's traceback.
            errors = [copy.copy(error) for _ in parcels]
        finally:
            outcomes = errors or map(_interrupted, parcels)
            for parcel, outcome in zip(parcels, outcomes, strict=True):
                parcel.error = outcome
                parcel.done = True
                if parcel is not own:
                    parcel.turn.release()
            if parcels:
                with self._lock:
                    self._next_leader()

    def _abandon(self, parcel: _Parcel[T]) -> None:
        """Takes back what has not been sent, and lets another thread lead if this one would have."""
        with self._lock:
            if parcel in self._waiting:
                self._waiting.remove(parcel)
                if parcel.leads:
                    self._next_leader()

    def _next_leader(self) -> None:
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].turn.release()
        else:
            self._under_way = False


def _interrupted(_: object) -> UnavailableError:
    return UnavailableError(
        "The thread that was sending this together with its own message was interrupted."
    )
