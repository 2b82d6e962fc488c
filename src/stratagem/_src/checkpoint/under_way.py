"""Saves that are being written while the program goes on."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from stratagem._src.core.background import Background, BackgroundThread
from stratagem._src.core.errors import UnavailableError

__all__ = ["SaveUnderWay", "wait_for_saves"]

_SECONDS_BETWEEN_WORDS = 60.0

_logger = logging.getLogger("stratagem")


class SaveUnderWay:
    """A save that writes what it has taken, in a thread of its own.

    Args:
        path: The checkpoint's path.
        write: Writes it.
        is_of_the_past: Whether the workers that save it have formed anew since.
    """

    def __init__(
        self, path: Path, write: Callable[[], None], is_of_the_past: Callable[[], bool]
    ) -> None:
        self.path = path
        self._write = write
        self._is_of_the_past = is_of_the_past
        self._error: BaseException | None = None
        self._thread: BackgroundThread | None = None

    def start(self) -> None:
        """Begins to write, beside the program."""
        with _lock:
            if not _waits_at_exit:
                # Before workers leave their cluster, which was joined earlier: last one first.
                atexit.register(wait_for_saves)
                _waits_at_exit.append(True)
            _under_way.append(self)
            # Within the lock: who finds it under way waits for the thread.
            background = Background(f"the checkpoint {self.path}")
            self._thread = background.start(self._run, name="saving a checkpoint")

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error
            _logger.error("The checkpoint %s was not saved: %s", self.path, error)
        finally:
            with _lock:
                _under_way.remove(self)

    def wait(self) -> None:
        """Waits for its end; what has gone wrong is known to ``check``."""
        assert self._thread is not None
        while self._thread.is_alive():
            self._thread.join(_SECONDS_BETWEEN_WORDS)
            if self._thread.is_alive():
                _logger.warning("Still waiting for the checkpoint %s to be written.", self.path)

    def check(self) -> None:
        """Raises what has gone wrong, once; not that workers were lost, if the rest have gone on since."""
        error, self._error = self._error, None
        is_known = isinstance(error, UnavailableError) and self._is_of_the_past()
        if error is not None and not is_known:
            raise error


_lock = threading.Lock()
_under_way: list[SaveUnderWay] = []
_waits_at_exit: list[bool] = []


def wait_for_saves(directory: Path | None = None) -> None:
    """Waits for the saves of this process that are under way.

    Args:
        directory: Those in this directory; default all.
    """
    with _lock:
        saves = list(_under_way)
    for save in saves:
        if directory is None or directory.absolute() == save.path.absolute().parent:
            save.wait()
