"""The programs of a function, for as long as what they were made for exists."""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stratagem._src.execution.fast_path import QuickCall
from stratagem._src.execution.program import Program
from stratagem._src.telemetry.measurement.recorder import when_recording_changes

__all__ = ["ProgramCache"]

_RECENT = 4

_caches: weakref.WeakSet[ProgramCache] = weakref.WeakSet()
_caches_lock = threading.Lock()


def _forget_quick_calls() -> None:
    """Has quick calls made anew, which are measured or not from when they are made."""
    with _caches_lock:
        caches = list(_caches)
    for cache in caches:
        cache.forget_quick_calls()


when_recording_changes(_forget_quick_calls)


class _Entry:
    """A program, and references that say when it is of no use any more."""

    __slots__ = ("__weakref__", "key", "program", "quick_calls", "watches")

    def __init__(self, key: Any, program: Program) -> None:
        self.key = key
        self.program = program
        self.quick_calls: dict[Any, QuickCall] = {}
        self.watches: list[weakref.ref[Any]] = []


class ProgramCache:
    """Programs by the kind of call they are for.

    It keeps none of the variables, iterators, strategies and arguments alive that its programs are
    made for: when one of them goes, so do the programs.

    Attributes:
        recent: What finds the programs of the latest kinds of calls at once, latest first.

    Args:
        try_first: Called with the first of these, or ``None``, when it may have become another one.
    """

    def __init__(self, try_first: weakref.WeakMethod[Callable[[QuickCall | None], None]]) -> None:
        self.recent: list[QuickCall] = []
        self._try_first = try_first
        self._entries: dict[Any, tuple[_Entry, ...]] = {}
        self._lock = threading.Lock()
        self._making: dict[Any, tuple[threading.RLock, int]] = {}
        self._useless: collections.deque[_Entry] = collections.deque()
        with _caches_lock:
            _caches.add(self)

    def get(self, key: Any) -> list[Program]:
        """Returns the programs for calls of one kind, in the order in which they were added."""
        return [entry.program for entry in self._entries.get(key, ())]

    def add(self, key: Any, program: Program, needs: Iterable[weakref.ref[Any]]) -> None:
        """Adds a program, for as long as all that it needs exists."""
        entry = _Entry(key, program)
        cache, added = weakref.ref(self), weakref.ref(entry)

        def forget(_: Any) -> None:
            here, useless = cache(), added()
            if here is not None and useless is not None:
                here._discard(useless)

        with self._locked():
            self._entries[key] = (*self._entries.get(key, ()), entry)
        for reference in needs:
            needed = reference()
            if needed is None:
                self._discard(entry)
            else:
                entry.watches.append(weakref.ref(needed, forget))

    @contextlib.contextmanager
    def making(self, key: Any) -> Iterator[None]:
        """Makes other threads that want a program of this kind wait for the end of the block."""
        with self._locked():
            lock, users = self._making.get(key) or (threading.RLock(), 0)
            self._making[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._locked():
                lock, users = self._making.pop(key)
                if users > 1:
                    self._making[key] = lock, users - 1

    def make_quick(
        self, key: Any, program: Program, kind: Any, make: Callable[[], QuickCall]
    ) -> None:
        """Makes the next calls of this kind find the program at once.

        Args:
            key: Under which the program was added.
            program: The program.
            kind: Equal for calls that what ``make`` returns is for.
            make: Makes what is then tried first.
        """
        with self._locked():
            for entry in self._entries.get(key, ()):
                if entry.program is program:
                    if kind not in entry.quick_calls:
                        entry.quick_calls[kind] = make()
                    quick_call = entry.quick_calls[kind]
                    others = [other for other in self.recent if other is not quick_call]
                    self._set_recent([quick_call, *others[: _RECENT - 1]])

    def forget_quick_calls(self) -> None:
        """Makes the next call of each kind find its program as the second one does."""
        with self._locked():
            self._set_recent([])
            for entries in self._entries.values():
                for entry in entries:
                    entry.quick_calls = {}

    def _discard(self, entry: _Entry) -> None:
        # Called by the garbage collector too, at any time, also while this thread has the lock.
        self._useless.append(entry)
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            yield
            self._sweep()

    def _sweep(self) -> None:
        while self._useless:
            useless = self._useless.popleft()
            entries = self._entries.pop(useless.key, ())
            remaining = tuple(entry for entry in entries if entry is not useless)
            if remaining:
                self._entries[useless.key] = remaining
            quick_calls = list(useless.quick_calls.values())
            self._set_recent([call for call in self.recent if call not in quick_calls])

    def _set_recent(self, quick_calls: list[QuickCall]) -> None:
        self.recent = quick_calls
        try_first = self._try_first()
        if try_first is not None:
            try_first(quick_calls[0] if quick_calls else None)
