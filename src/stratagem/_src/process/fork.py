"""Fork safety: a forked child must not communicate, wait or exit on behalf of its parent.

``os.fork`` copies memory and shares sockets, but only the calling thread survives in the child. A child
that used a connection of its parent would encrypt with the same key and nonces, and close the connection
for the parent. Locks that other threads held stay locked forever. Exit handlers would leave the job for the
parent. So owners of such resources register here how to clean up in a child, which happens before any other
code runs there. Processes that run another program (``subprocess``) or that ``multiprocessing`` spawns are
not affected.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from stratagem._src.core.errors import ContextError

__all__ = [
    "ProcessOwner",
    "at_exit",
    "close_in_child",
    "discard_buffers_in_child",
    "hold_while_forking",
    "run_in_child",
]

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class _Process:
    """A token for this process: a different object in each forked child."""


_here = _Process()
_in_child: list[Callable[[], None]] = []
_ends: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_held: weakref.WeakKeyDictionary[Any, tuple[threading.Lock, Callable[[Any], None]]] = (
    weakref.WeakKeyDictionary()
)
_being_held: list[threading.Lock] = []


class ProcessOwner:
    """The process that owns an object: the one that created it.

    >>> from stratagem._src.process.fork import ProcessOwner
    >>> owner = ProcessOwner("the connection to the server")
    >>> owner.is_here
    True
    >>> owner.check()

    Args:
        what: The name of the owned object, for errors.
    """

    __slots__ = ("_process", "_what")

    def __init__(self, what: str) -> None:
        self._process = _here
        self._what = what

    @property
    def is_here(self) -> bool:
        """Whether the current process is the owner, and not a child that was forked since."""
        return self._process is _here

    def check(self) -> None:
        """Raises ``ContextError`` in a child that was forked since."""
        if self._process is not _here:
            raise ContextError(
                f"An object with connections or threads belongs to the process that created it, but "
                f"{self._what} is used in a forked child. Create it in the child, or start the child with "
                "multiprocessing.get_context('spawn')."
            )


def at_exit(function: Function, *args: Any) -> Function:
    """Registers an exit handler for this process, as ``atexit`` does, but not for its forked children."""
    atexit.register(_AtExitHere(function), *args)
    return function


class _AtExitHere:
    """Calls a function only in the process that registered it. Only ``atexit`` references it."""

    __slots__ = ("_function", "_process")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._process = _here

    def __call__(self, *args: Any) -> None:
        if self._process is _here:
            self._function(*args)


def run_in_child(forget: Callable[[], None]) -> Callable[[], None]:
    """Calls a function in every forked child, to reset module state that belongs to the parent."""
    _in_child.append(forget)
    return forget


def close_in_child(owner: T, end: Callable[[T], None]) -> None:
    """Calls ``end(owner)`` in every child that is forked while the owner is alive.

    Args:
        owner: Referenced weakly.
        end: Releases the child's copies of the owner's resources. It must not take a lock, which a thread
            of the parent may have held, must not send anything, and must not reference the owner.
    """
    _ends[owner] = end


def discard_buffers_in_child(file: Any) -> None:
    """Discards the buffered data of an open file in every forked child.

    The parent writes that data. A child would write it again when it exits, at the same file offset.
    """
    close_in_child(file, _redirect_to_null)


def _redirect_to_null(file: Any) -> None:
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, file.fileno(), inheritable=False)
    os.close(null)


def hold_while_forking(owner: T, lock: threading.Lock, prepare: Callable[[T], None]) -> None:
    """Holds a lock while this process forks, so that the protected state is consistent in the child.

    Args:
        owner: Referenced weakly.
        lock: A lock that the forking thread never holds.
        prepare: Called with the owner while the lock is held, before the fork.
    """
    _held[owner] = lock, prepare


def _before() -> None:
    for owner, (lock, prepare) in list(_held.items()):
        lock.acquire()
        _being_held.append(lock)
        with contextlib.suppress(Exception):
            prepare(owner)


def _release_locks() -> None:
    while _being_held:
        _being_held.pop().release()


def _forked() -> None:
    global _here
    _here = _Process()
    _release_locks()
    for owner, end in list(_ends.items()):
        with contextlib.suppress(Exception):
            end(owner)
    for forget in _in_child:
        with contextlib.suppress(Exception):
            forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release_locks, after_in_child=_forked)
