"""Saves that are being written while the program goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem._src.core.errors import ContextError, UnavailableError
from stratagem._src.core.wakeup import Wakeup
from stratagem._src.process.background import Background, BackgroundThread
from stratagem._src.process.fork import ProcessOwner, at_exit, in_child
from stratagem._src.process.hard_exit import FailedExit

__all__ = ["SaveUnderWay", "wait_for_saves"]

_SECONDS_BETWEEN_WORDS = 60.0
_SECONDS_TO_BEGIN = 0.1
_JOIN_SECONDS = 1.0

_logger = logging.getLogger("stratagem")


class SaveUnderWay:
    """A save that writes what it has taken, in a thread of its own.

    Signal handlers save too. One may interrupt any method here between two bytecodes, and wait for the very
    save whose method it interrupts. So nothing here holds a lock while it could be interrupted, not even
    for a moment, as ``threading.Event`` does: the handler would wait for it for ever.

    Args:
        path: The checkpoint's path.
        write: Writes it.
        abandon: Called in place of ``write`` if an interrupt keeps the save from being started.
        is_of_the_past: Whether the workers that save it have formed anew since.
    """

    def __init__(
        self,
        path: Path,
        write: Callable[[], None],
        abandon: Callable[[], None],
        is_of_the_past: Callable[[], bool],
    ) -> None:
        self.path = path
        self._write = write
        self._abandon = abandon
        self._is_of_the_past = is_of_the_past
        self._error: BaseException | None = None
        self._owner = ProcessOwner(f"the save of the checkpoint {path}")
        self._thread: BackgroundThread | None = None
        self._written_in: int | None = None
        self._claims: list[object] = []  # the first one writes it
        self._has_ended = False
        self._waiting: list[Wakeup] = []

    def start(self) -> None:
        """Begins to write, beside the program."""
        try:
            if not _is_prepared:
                # Twice, if two threads come here at once: that is harmless, and a lock could be left taken.
                # Before workers leave their cluster, which was joined earlier: last one first.
                at_exit(wait_for_saves)
                FailedExit(_unheard_failures)
                sys.addaudithook(_wait_before_removal)
                _is_prepared.append(True)
            _under_way.append(self)
            background = Background(f"the checkpoint {self.path}")
            self._thread = background.start(self._do_once, self._write, name="saving a checkpoint")
        except BaseException:
            # Unless a thread writes it already, nobody will: those who wait for it must not.
            self._do_once(self._abandon)
            raise

    def _do_once(self, do: Callable[[], None]) -> None:
        """Writes or abandons the save, and ends it; nothing if that is done already."""
        claim = object()
        try:
            self._claims.append(claim)
            if self._claims[0] is claim:
                self._written_in = threading.get_ident()
                do()
        except BaseException as error:
            if self._claims[:1] != [claim]:
                raise  # an interrupt
            self._error = error
            _unheard.append(self)
            _logger.error("The checkpoint %s was not saved: %s", self.path, error)
        finally:
            # Also if it had ended before: a handler may have written it before start() has noted it.
            if self._claims[:1] == [claim] or self._has_ended:
                self._end()

    def _end(self) -> None:
        # Operations on lists are atomic.
        with contextlib.suppress(ValueError):
            _under_way.remove(self)
        self._has_ended = True
        for waiting in tuple(self._waiting):
            waiting.wake()

    def wait(self) -> None:
        """Waits for its end; what has gone wrong is known to ``check``.

        Raises:
            ContextError: In a child that was forked since it began: the parent writes it. In a signal
                handler that interrupts another one which writes it.
        """
        self._owner.check()
        if self._written_in == threading.get_ident() and not self._has_ended:
            raise ContextError(
                "A signal handler cannot save, or wait for saves, while it interrupts another handler that "
                f"writes the checkpoint {self.path}. Set a flag in the handler, and do it in the loop when "
                "the flag is set."
            )
        wakeup = Wakeup()
        self._waiting.append(wakeup)
        if not self._has_ended and not wakeup.wait(_SECONDS_TO_BEGIN) and not self._claims:
            # This is a signal handler that interrupts start(), or something else for which the thread
            # waits before it begins: it would do so until the handler returns.
            self._do_once(self._write)
        while not self._has_ended:
            if not wakeup.wait(_SECONDS_BETWEEN_WORDS):
                _logger.warning("Still waiting for the checkpoint %s to be written.", self.path)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # It has nothing left to do. Not for ever: what it ends with may wait for what is interrupted.
            thread.join(_JOIN_SECONDS)

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
            threading.get_ident() != self._written_in
            and os.path.commonpath([directory, os.path.realpath(self.path)]) == directory
        )


_under_way: list[SaveUnderWay] = []
_unheard: list[SaveUnderWay] = []
_is_prepared: list[bool] = []


@in_child
def _leave_to_the_parent() -> None:
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
        for save in list(_under_way):
            if save.is_in(directory):
                save.wait()


def wait_for_saves(directory: Path | None = None) -> None:
    """Waits for the saves of this process that are under way.

    Args:
        directory: Those in this directory; default all.
    """
    for save in list(_under_way):
        if directory is None or directory.absolute() == save.path.absolute().parent:
            save.wait()
