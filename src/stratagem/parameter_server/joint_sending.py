"""``JointSending``: threads that have something to send at the same time send it together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stratagem.core.errors import UnavailableError

__all__ = ["JointSending"]

T = TypeVar("T")

_INTERRUPTED = UnavailableError(
    "The thread that was sending this together with its own message was interrupted."
)


class _Parcel(Generic[T]):
    """What one thread wants to have sent."""

    __slots__ = ("content", "done", "error", "turn")

    def __init__(self, content: T) -> None:
        self.content = content
        # Held until it is the waiting thread's turn: an Event costs ten times as much to make.
        self.turn = threading.Lock()
        self.turn.acquire()
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
        self._under_way = False

    def submit(self, content: T) -> None:
        """Returns when ``content`` has been sent and answered; raises what went wrong with it."""
        parcel = _Parcel(content)
        with self._lock:
            self._waiting.append(parcel)
            must_wait, self._under_way = self._under_way, True
        if must_wait:
            self._wait(parcel)
        if not parcel.done:
            self._lead(parcel)
        if parcel.error is not None:
            raise parcel.error

    def _wait(self, parcel: _Parcel[T]) -> None:
        """Waits until the parcel has been sent, or it is this thread's turn to send."""
        try:
            parcel.turn.acquire()
        except BaseException:  # an interrupt
            with self._lock:
                if parcel in self._waiting:
                    self._waiting.remove(parcel)
                    if not parcel.turn.locked():
                        self._next_leader()
            raise

    def _lead(self, own: _Parcel[T]) -> None:
        """Sends everything that waits, this thread's own among it, then lets another thread lead."""
        with self._lock:
            parcels, self._waiting = self._waiting, []
        errors: Sequence[BaseException | None] = [_INTERRUPTED] * len(parcels)
        try:
            errors = self._send([parcel.content for parcel in parcels])
        except Exception as error:
            errors = [error] * len(parcels)
        finally:
            for parcel, outcome in zip(parcels, errors, strict=True):
                parcel.error = outcome
                parcel.done = True
                if parcel is not own:
                    parcel.turn.release()
            with self._lock:
                self._next_leader()

    def _next_leader(self) -> None:
        if self._waiting:
            self._waiting[0].turn.release()
        else:
            self._under_way = False
