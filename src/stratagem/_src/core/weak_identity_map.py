"""``WeakIdentityMap``: a dictionary with weak keys that are compared by identity."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from typing import TypeVar

__all__ = ["WeakIdentityMap"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class WeakIdentityMap(MutableMapping[Key, Value]):
    """Like ``weakref.WeakKeyDictionary``, for keys whose ``__eq__`` and ``__hash__`` are a user's.

    Such an object may have no hash, or none before its ``__init__`` ends, and may equal another one.

    >>> from stratagem._src.core.weak_identity_map import WeakIdentityMap
    >>> class Layer:
    ...     def __eq__(self, other):
    ...         return True
    >>> one, other = Layer(), Layer()
    >>> known = WeakIdentityMap()
    >>> known[one] = 1
    >>> known.get(one), known.get(other)
    (1, None)
    >>> del one
    >>> len(known)
    0
    """

    def __init__(self) -> None:
        # An entry goes when its object does, before another object can have its id.
        self._entries: dict[int, tuple[weakref.ref[Key], Value]] = {}

    def _entry(self, key: Key, value: Value) -> tuple[weakref.ref[Key], Value]:
        entries, number = self._entries, id(key)

        def forget(reference: weakref.ref[Key]) -> None:
            entry = entries.get(number)
            if entry is not None and entry[0] is reference:
                del entries[number]

        return weakref.ref(key, forget), value

    def __setitem__(self, key: Key, value: Value) -> None:
        self._entries[id(key)] = self._entry(key, value)

    def __getitem__(self, key: Key) -> Value:
        return self._entries[id(key)][1]

    def __delitem__(self, key: Key) -> None:
        del self._entries[id(key)]

    def setdefault(self, key: Key, default: Value) -> Value:
        """Returns the value of a key, ``default`` if it had none; threads get the same one."""
        return self._entries.setdefault(id(key), self._entry(key, default))[1]

    def __iter__(self) -> Iterator[Key]:
        for reference, _ in list(self._entries.values()):
            key = reference()
            if key is not None:
                yield key

    def __len__(self) -> int:
        return len(self._entries)
