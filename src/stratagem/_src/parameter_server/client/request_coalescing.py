"""``RequestCoalescer``: sends the concurrent requests of several threads in one message."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stratagem._src.core.errors import UnavailableError
from stratagem._src.core.fair_lock import FairLock
from stratagem._src.mesh.dispatch_queue import interrupting_error

__all__ = ["RequestCoalescer"]

T = TypeVar("T")


class _Request(Generic[T]):
    """The request of one thread, and its outcome."""

    __slots__ = ("content", "error", "is_sent")

    def __init__(self, content: T) -> None:
        self.content = content
        self.is_sent = False
        self.error: BaseException | None = None


class RequestCoalescer(Generic[T]):
    """Sends one message at a time. Requests that arrive meanwhile share the next one.

    The thread that holds the lock sends all pending requests. The others find their requests sent when
    the lock reaches them. The lock is the only state that says who sends, so an interrupt, which may come
    between any two instructions, cannot leave a message without a sender.

    Args:
        send: Sends contents in one message. Returns for each what went wrong, or ``None``.
    """

    def __init__(self, send: Callable[[Sequence[T]], Sequence[BaseException | None]]) -> None:
        self._send = send
        self._lock = FairLock()
        self._pending: deque[_Request[T]] = deque()  # each of its operations is atomic

    def submit(self, content: T) -> None:
        """Returns when ``content`` has been sent and answered; raises what went wrong with it.

        Raises:
            ContextError: In a signal handler that interrupts the same call, which would wait for itself.
        """
        if self._lock.is_wanted_here():
            raise interrupting_error()
        request = _Request(content)
        try:
            self._pending.append(request)
            self._lock.run(lambda: self._send_pending(request))
        except BaseException:  # an interrupt: what has not been sent stays unsent
            with contextlib.suppress(ValueError):
                self._pending.remove(request)
            raise
        if request.error is not None:
            raise request.error

    def _send_pending(self, own: _Request[T]) -> None:
        if own.is_sent:
            return
        requests = [own]
        with contextlib.suppress(IndexError):
            while True:
                request = self._pending.popleft()
                if request is not own and not request.is_sent:
                    requests.append(request)
        # Set before sending: if an interrupt hits the send, it is unknown whether the server applied the
        # requests, so they count as sent (never sent twice) and fail with this error.
        for request in requests:
            request.error = _interrupted()
            request.is_sent = True
        try:
            errors = self._send([request.content for request in requests])
        except Exception as error:
            # Each thread raises its own: a raised exception collects that thread's traceback.
            errors = [copy.copy(error) for _ in requests]
        for request, outcome in zip(requests, errors, strict=True):
            request.error = outcome


def _interrupted() -> UnavailableError:
    return UnavailableError(
        "The thread that sent this request together with its own was interrupted, so it is unknown "
        "whether the server applied it. Read the variables before you repeat the step."
    )
