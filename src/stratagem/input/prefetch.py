"""Prepares the next steps in a thread of its own while the present one runs."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["Prefetcher"]


class Prefetcher:
    """Runs an iterator ahead by up to ``buffer_size`` items, in a background thread.

    The thread starts with the first item that is asked for and ends with the iterator, with its
    first exception (which reaches the consumer with its own traceback), or with ``close``.
    """

    def __init__(self, iterator: Iterator[Any], buffer_size: int) -> None:
        self._iterator = iterator
        self._buffer_size = buffer_size
        self._items: collections.deque[Any] = collections.deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def next(self) -> Any:
        """Returns the next item.

        Raises:
            StopIteration: At the end.
        """
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="input-prefetch", daemon=True)
            self._thread.start()
        with self._changed:
            while not self._items:
                if self._error is not None:
                    error, self._error = self._error, None
                    self._ended = True
                    raise error
                if self._ended or self._closed:
                    raise StopIteration
                self._changed.wait()
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        try:
            for item in self._iterator:
                with self._changed:
                    while len(self._items) >= self._buffer_size and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._items.append(item)
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._ended = self._error is None
                self._changed.notify_all()
