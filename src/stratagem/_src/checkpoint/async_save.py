"""``AsyncSave``: writes a checkpoint in the background while the program continues."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.core.errors import ContextError, UnavailableError
from stratagem._src.core.wakeup import Wakeup
from stratagem._src.process.background import Background, BackgroundThread
from stratagem._src.process.fork import ProcessOwner, at_exit, run_in_child
from stratagem._src.process.hard_exit import FailedExit

__all__ = ["AsyncSave", "wait_for_saves"]

_WARNING_INTERVAL_SECONDS = 60.0
_START_TIMEOUT_SECONDS = 0.1
_JOIN_TIMEOUT_SECONDS = 1.0

_logger = logging.getLogger("stratagem")


class AsyncSave:
    """A save that writes its snapshot in a background thread.

    Signal handlers save too. A handler may interrupt any method here between two bytecodes, and wait for
    the very save whose method it interrupts. So no method holds a lock while it can be interrupted, not
    even briefly as ``threading.Event`` does: the handler would deadlock.

    Args:
        path: The checkpoint's path.
        write: Writes the checkpoint.
        abandon: Called instead of ``write`` if an interrupt prevents the save from starting.
        is_superseded: Returns whether the workers that save it have re-formed since.
    """

    def __init__(
        self,
        path: CheckpointPath,
        write: Callable[[], None],
        abandon: Callable[[], None],
        is_superseded: Callable[[], bool],
    ) -> None:
        self.path = path
        self._write = write
        self._abandon = abandon
        self._is_superseded = is_superseded
        self._error: BaseException | None = None
        self._owner = ProcessOwner(f"the save of the checkpoint {path}")
        self._thread: BackgroundThread | None = None
        self._written_in: int | None = None
        self._claims: list[
            object
        ] = []  # the first claim writes; list.append is the atomic operation
        self._has_ended = False
        self._waiting: list[Wakeup] = []

    def start(self) -> None:
        """Starts to write in the background."""
        try:
            if not _hooks_installed:
                # Two threads may both do this: that is harmless, while a lock could be left taken by an
                # interrupt. Exit functions run last in, first out: this one runs before workers leave
                # their cluster, which they joined earlier.
                at_exit(wait_for_saves)
                FailedExit(_unreported_failures)
                sys.addaudithook(_wait_before_removal)
                _hooks_installed.append(True)
            _pending_saves.append(self)
            background = Background(f"the checkpoint {self.path}")
            self._thread = background.start(self._run_once, self._write, name="saving a checkpoint")
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Removes what was prepared, if no thread writes it: others must not wait for it. Idempotent."""
        self._run_once(self._abandon)

    def _run_once(self, do: Callable[[], None]) -> None:
        """Calls ``do``, which writes or abandons the save, and finishes it; at most once."""
        claim = object()
        try:
            self._claims.append(claim)
            if self._claims[0] is claim:
                self._written_in = threading.get_ident()
                do()
        except BaseException as error:
            if self._claims[:1] != [claim]:
                raise  # an interrupt, not an error of the save
            self._error = error
            _unreported.append(self)
            _logger.error("The checkpoint %s was not saved: %s", self.path, error)
        finally:
            # Also if it has ended: a handler may have written it before start() added it to the list.
            if self._claims[:1] == [claim] or self._has_ended:
                self._finish()

    def _finish(self) -> None:
        # List operations are atomic, so no lock is needed.
        with contextlib.suppress(ValueError):
            _pending_saves.remove(self)
        self._has_ended = True
        for waiting in tuple(self._waiting):
            waiting.wake()

    def wait(self) -> None:
        """Waits until the save has ended; ``check`` raises its error.

        Raises:
            ContextError: In a child that was forked since the start, because the parent writes it. In a
                signal handler that interrupts another handler that writes it.
        """
        self._owner.check()
        if self._written_in == threading.get_ident() and not self._has_ended:
            raise ContextError(
                "A signal handler cannot save, or wait for saves, while it interrupts another handler that "
                f"writes the checkpoint {self.path}. Set a flag in the handler, and check the flag in the "
                "training loop."
            )
        wakeup = Wakeup()
        self._waiting.append(wakeup)
        if not self._has_ended and not wakeup.wait(_START_TIMEOUT_SECONDS) and not self._claims:
            # The thread has not started: this is a signal handler that interrupts start(), or a lock that
            # the thread needs, and the thread would wait until the handler returns. Write it here.
            self._run_once(self._write)
        while not self._has_ended:
            if not wakeup.wait(_WARNING_INTERVAL_SECONDS):
                _logger.warning("Still waiting for the checkpoint %s to be written.", self.path)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # The thread has nothing left to do. With a timeout: its shutdown may need a lock that the
            # interrupted code holds.
            thread.join(_JOIN_TIMEOUT_SECONDS)

    def check(self) -> None:
        """Raises the error of the save, once; not the loss of workers if the others have re-formed."""
        failure, self._error = self.failure, None
        if self in _unreported:
            _unreported.remove(self)
        if failure is not None:
            raise failure

    @property
    def failure(self) -> BaseException | None:
        """The error of the save, if the program must be told of it."""
        error = self._error
        is_known = isinstance(error, UnavailableError) and self._is_superseded()
        return None if is_known else error

    def is_in(self, directory: str) -> bool:
        """Returns whether ``directory`` contains the save's directory and another thread writes it."""
        return (
            isinstance(self.path, Path)
            and threading.get_ident() != self._written_in
            and os.path.commonpath([directory, os.path.realpath(self.path)]) == directory
        )


_pending_saves: list[AsyncSave] = []
_unreported: list[AsyncSave] = []
_hooks_installed: list[bool] = []


@run_in_child
def _reset_in_child() -> None:
    for saves in (_pending_saves, _unreported, _hooks_installed):
        saves.clear()


def _unreported_failures() -> str | None:
    failed = [(save.path, error) for save in _unreported if (error := save.failure) is not None]
    if not failed:
        return None
    shown = "; ".join(f"{path}: {error}" for path, error in failed)
    return f"The program exits with an error, because checkpoints were not saved: {shown}"


def _wait_before_removal(event: str, arguments: tuple[Any, ...]) -> None:
    """Makes ``shutil.rmtree`` wait for saves in the directory that it removes. Called for all audit events.

    Otherwise the save would write into a directory that disappears, and fail, or leave files in a
    directory that the program has removed.
    """
    if event == "shutil.rmtree" and _pending_saves:
        directory = os.path.realpath(os.fsdecode(arguments[0]))
        for save in list(_pending_saves):
            if save.is_in(directory):
                save.wait()


def wait_for_saves(directory: CheckpointPath | None = None) -> None:
    """Waits for the pending saves of this process.

    Args:
        directory: Waits only for saves in this directory; default all.
    """
    for save in list(_pending_saves):
        if directory is None or directory.absolute() == save.path.absolute().parent:
            save.wait()
