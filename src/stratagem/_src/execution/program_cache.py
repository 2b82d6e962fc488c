"""``ProgramCache``: the programs of a function, evicted when what they depend on is collected."""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stratagem._src.core.types import CacheKey
from stratagem._src.execution.fast_path import FastPath
from stratagem._src.execution.program import Program
from stratagem._src.telemetry.measurement.recorder import when_recording_changes

__all__ = ["ProgramCache"]

_MAX_RECENT = 4

_caches: weakref.WeakSet[ProgramCache] = weakref.WeakSet()
_caches_lock = threading.Lock()


def _clear_all_fast_paths() -> None:
    """Clears the fast paths of all functions: whether a step is measured is fixed in its fast path."""
    with _caches_lock:
        caches = list(_caches)
    for cache in caches:
        cache.clear_fast_paths()


when_recording_changes(_clear_all_fast_paths)


class _Entry:
    """A program, and weak references whose callbacks evict it."""

    __slots__ = ("__weakref__", "fast_paths", "key", "program", "watches")

    def __init__(self, key: CacheKey, program: Program) -> None:
        self.key = key
        self.program = program
        self.fast_paths: dict[Any, FastPath] = {}
        self.watches: list[weakref.ref[Any]] = []


class ProgramCache:
    """Programs by cache key.

    It does not keep alive the variables, iterators, strategies and arguments that its programs depend on:
    when one of these is garbage-collected, its programs are evicted.

    Attributes:
        recent: The fast paths of the latest call signatures, latest first.

    Args:
        install_fast_path: Called with the first of these, or ``None``, whenever it may have changed.
    """

    def __init__(
        self, install_fast_path: weakref.WeakMethod[Callable[[FastPath | None], None]]
    ) -> None:
        self.recent: list[FastPath] = []
        self._install_fast_path = install_fast_path
        self._entries: dict[Any, tuple[_Entry, ...]] = {}
        self._lock = threading.Lock()
        self._compiling: dict[Any, tuple[threading.RLock, int]] = {}
        self._stale: collections.deque[_Entry] = collections.deque()
        with _caches_lock:
            _caches.add(self)

    def get(self, key: CacheKey) -> list[Program]:
        """Returns the programs of a cache key, in the order in which they were added."""
        return [entry.program for entry in self._entries.get(key, ())]

    def add(self, key: CacheKey, program: Program, needs: Iterable[weakref.ref[Any]]) -> None:
        """Adds a program; it is evicted when one of ``needs`` is collected."""
        entry = _Entry(key, program)
        cache, added = weakref.ref(self), weakref.ref(entry)

        def evict(_: weakref.ref[Any]) -> None:
            here, stale = cache(), added()
            if here is not None and stale is not None:
                here._discard(stale)

        with self._locked():
            self._entries[key] = (*self._entries.get(key, ()), entry)
        for reference in needs:
            # It may be gone since the trace. No callback would ever come then, and the program would stay
            # forever.
            needed = reference()
            if needed is None:
                self._discard(entry)
            else:
                entry.watches.append(weakref.ref(needed, evict))

    @contextlib.contextmanager
    def compiling(self, key: CacheKey) -> Iterator[None]:
        """Makes other threads that need a program of this key wait until the block ends."""
        with self._locked():
            lock, users = self._compiling.get(key) or (threading.RLock(), 0)
            self._compiling[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._locked():
                lock, users = self._compiling.pop(key)
                if users > 1:
                    self._compiling[key] = lock, users - 1

    def add_fast_path(
        self, key: CacheKey, program: Program, signature: CacheKey, make: Callable[[], FastPath]
    ) -> None:
        """Makes calls of this signature run the program through a fast path.

        Args:
            key: The cache key of the program.
            program: The program.
            signature: Equal for calls that the result of ``make`` can serve.
            make: Generates the fast path, unless there is one for this signature.
        """
        with self._locked():
            for entry in self._entries.get(key, ()):
                if entry.program is program:
                    if signature not in entry.fast_paths:
                        entry.fast_paths[signature] = make()
                    fast_path = entry.fast_paths[signature]
                    others = [other for other in self.recent if other is not fast_path]
                    self._set_recent([fast_path, *others[: _MAX_RECENT - 1]])

    def clear_fast_paths(self) -> None:
        """Drops all fast paths; the next call of each signature generates one again."""
        with self._locked():
            self._set_recent([])
            for entries in self._entries.values():
                for entry in entries:
                    entry.fast_paths = {}

    def _discard(self, entry: _Entry) -> None:
        # The garbage collector calls this too, at any time, even while this thread holds the lock: so it
        # must not block. If the lock is taken, its holder sweeps, or the next one.
        self._stale.append(entry)
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                self._sweep()

    def _sweep(self) -> None:
        while self._stale:
            stale = self._stale.popleft()
            entries = self._entries.pop(stale.key, ())
            remaining = tuple(entry for entry in entries if entry is not stale)
            if remaining:
                self._entries[stale.key] = remaining
            fast_paths = list(stale.fast_paths.values())
            self._set_recent([call for call in self.recent if call not in fast_paths])

    def _set_recent(self, fast_paths: list[FastPath]) -> None:
        self.recent = fast_paths
        install_fast_path = self._install_fast_path()
        if install_fast_path is not None:
            install_fast_path(fast_paths[0] if fast_paths else None)
