"""Saves that are being written while the program goes on."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem._src.core.background import Background, BackgroundThread
from stratagem._src.core.errors import UnavailableError
from stratagem._src.core.forking import ProcessOwner, at_exit, in_child
from stratagem._src.core.hard_exit import FailedExit

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
        self._owner = ProcessOwner(f"the save of the checkpoint {path}")
        self._thread: BackgroundThread | None = None
        self._ended = threading.Event()
        self._starts_in: int | None = None
        self._claim = threading.Lock()

    def start(self) -> None:
        """Begins to write, beside the program."""
        with _lock:
            if not _is_prepared:
                # Before workers leave their cluster, which was joined earlier: last one first.
                at_exit(wait_for_saves)
                FailedExit(_unheard_failures)
                sys.addaudithook(_wait_before_removal)
                _is_prepared.append(True)
            self._starts_in = threading.get_ident()
            _under_way.append(self)
        # Without the lock: a signal handler that saves, too, may interrupt this and wait for other saves.
        background = Background(f"the checkpoint {self.path}")
        try:
            background.start(self._run, name="saving a checkpoint")
        except RuntimeError:
            self._ended.set()  # there is no thread
            raise
        finally:
            self._starts_in = None

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return  # a signal handler has written it
        self._thread = threading.current_thread()
        try:
            self._write()
        except BaseException as error:
            self._error = error
            _unheard.append(self)
            _logger.error("The checkpoint %s was not saved: %s", self.path, error)
        finally:
            with _lock:
                _under_way.remove(self)
            self._ended.set()

    def wait(self) -> None:
        """Waits for its end; what has gone wrong is known to ``check``.

        Raises:
            ContextError: In a child that was forked since it began: the parent writes it.
        """
        self._owner.check()
        if self._starts_in == threading.get_ident():
            # A signal handler interrupts start(): the thread may not exist before the handler returns.
            self._run()
        while not self._ended.wait(_SECONDS_BETWEEN_WORDS):
            _logger.warning("Still waiting for the checkpoint %s to be written.", self.path)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def check(self) -> None:
        """Raises what has gone wrong, once; not that workers were lost, if the rest have gone on since."""
        failure, self._error = self.failure, None
        if self in _unheard:
            _unheard.remove(self)
        if failure is not None:
            raise failure

    @property
    def failure(self) -> BaseException | None:
        """What has gone wrong, and the program should hear of."""
        error = self._error
        is_known = isinstance(error, UnavailableError) and self._is_of_the_past()
        return None if is_known else error

    def is_in(self, directory: str) -> bool:
        """Returns whether this thread would take the save's directory away by removing another."""
        return (
            threading.current_thread() is not self._thread
            and os.path.commonpath([directory, os.path.realpath(self.path)]) == directory
        )


# Reentrant: a signal handler that saves may interrupt a save.
_lock = threading.RLock()
_under_way: list[SaveUnderWay] = []
_unheard: list[SaveUnderWay] = []
_is_prepared: list[bool] = []


@in_child
def _leave_to_the_parent() -> None:
    global _lock
    _lock = threading.RLock()
    for saves in (_under_way, _unheard, _is_prepared):
        saves.clear()


def _unheard_failures() -> str | None:
    failed = [(save.path, error) for save in _unheard if (error := save.failure) is not None]
    if not failed:
        return None
    shown = "; ".join(f"{path}: {error}" for path, error in failed)
    return f"The program ends with a failure, because checkpoints were not saved: {shown}"


def _wait_before_removal(event: str, arguments: tuple[Any, ...]) -> None:
    """Has ``shutil.rmtree`` wait for saves in what it removes. Called for every audit event.

    Otherwise the save would write into a directory that disappears, and fail, or leave files in one that
    the program has removed.
    """
    if event == "shutil.rmtree" and _under_way:
        directory = os.path.realpath(os.fsdecode(arguments[0]))
        # Without the lock, which the interrupted code below a signal handler may hold.
        for save in list(_under_way):
            if save.is_in(directory):
                save.wait()


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
