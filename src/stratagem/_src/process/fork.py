"""What a forked child has of its parent: nothing that speaks, waits or ends in the parent's name.

``os.fork`` copies memory and shares sockets, but takes only the thread along that calls it. A child that
went on with a connection of its parent would encrypt under the same key and number as the parent, and end
the connection for it; locks that other threads held stay held for ever; functions that are registered for
exit would leave the job for the parent. So owners of such things say here what becomes of them in a child,
which happens before any other code runs there. Processes that run another program, as those of
``subprocess``, and those that ``multiprocessing`` spawns are not concerned.
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
    "discard_in_child",
    "end_in_child",
    "hold_while_forking",
    "in_child",
]

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class _Process:
    """This process: another object in each child."""


_here = _Process()
_in_child: list[Callable[[], None]] = []
_ends: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_held: weakref.WeakKeyDictionary[Any, tuple[threading.Lock, Callable[[Any], None]]] = (
    weakref.WeakKeyDictionary()
)
_being_held: list[threading.Lock] = []


class ProcessOwner:
    """The process that something belongs to, which is the one that made it.

    >>> from stratagem._src.process.fork import ProcessOwner
    >>> owner = ProcessOwner("the connection to the server")
    >>> owner.is_here
    True
    >>> owner.check()

    Args:
        what: What belongs to it, as errors shall name it.
    """

    __slots__ = ("_process", "_what")

    def __init__(self, what: str) -> None:
        self._process = _here
        self._what = what

    @property
    def is_here(self) -> bool:
        """Whether this is the process, and not a child that was forked since."""
        return self._process is _here

    def check(self) -> None:
        """Raises ``ContextError`` in a child that was forked since."""
        if self._process is not _here:
            raise ContextError(
                f"What talks to other processes or has threads belongs to the process that made it, but "
                f"{self._what} is used in a child that this process has forked. Make it in the child, or "
                "start the child with multiprocessing.get_context('spawn')."
            )


def at_exit(function: Function, *args: Any) -> Function:
    """Registers a function for the end of this process, as ``atexit`` does, but not of its children."""
    atexit.register(_AtExitHere(function), *args)
    return function


class _AtExitHere:
    """Calls a function in the process that registered it. Nothing but ``atexit`` refers to it."""

    __slots__ = ("_function", "_process")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._process = _here

    def __call__(self, *args: Any) -> None:
        if self._process is _here:
            self._function(*args)


def in_child(forget: Callable[[], None]) -> Callable[[], None]:
    """Has a function called in every child, which forgets state of a module that is the parent's."""
    _in_child.append(forget)
    return forget


def end_in_child(owner: T, end: Callable[[T], None]) -> None:
    """Has ``end(owner)`` called in every child that is forked while the owner lives.

    Args:
        owner: Kept weakly.
        end: Frees what the child has of it. It must not take a lock, which a thread of the parent may
            have held, nor tell anybody, and refers to no owner.
    """
    _ends[owner] = end


def discard_in_child(file: Any) -> None:
    """Lets what a file that is being written still holds in memory go nowhere in every child.

    The parent writes it. A child would do so too when it ends, at the same place of the same file.
    """
    end_in_child(file, _write_nowhere)


def _write_nowhere(file: Any) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, file.fileno(), inheritable=False)
    os.close(nowhere)


def hold_while_forking(owner: T, lock: threading.Lock, prepare: Callable[[T], None]) -> None:
    """Has a lock held while this process forks, so that what it protects is whole in the child.

    Args:
        owner: Kept weakly.
        lock: Never held by a thread that forks.
        prepare: Called with the owner while the lock is held, before the process forks.
    """
    _held[owner] = lock, prepare


def _before() -> None:
    for owner, (lock, prepare) in list(_held.items()):
        lock.acquire()
        _being_held.append(lock)
        with contextlib.suppress(Exception):
            prepare(owner)


def _let_go() -> None:
    while _being_held:
        _being_held.pop().release()


def _forked() -> None:
    global _here
    _here = _Process()
    _let_go()
    for owner, end in list(_ends.items()):
        with contextlib.suppress(Exception):
            end(owner)
    for forget in _in_child:
        with contextlib.suppress(Exception):
            forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_let_go, after_in_child=_forked)
