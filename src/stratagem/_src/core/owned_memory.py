"""Defensive copies: arrays that no other code can write to. Only foreign writable memory is copied.

What a caller may change after a call returns must never change the call's result. Code that keeps an array
of the user, or uses it after returning, gets it from ``owned`` or ``OwnedResults``.

Read-only memory is not copied, and neither is an array that a function has just created: if the returned
reference is the only one, no other code can reach it. So a defensive copy is only made for reused buffers;
for the arrays that functions usually return, the check costs two reference counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stratagem._src.core.types import ArrayLike, Leaf, PyTree

__all__ = ["OwnedResults", "is_read_only", "owned", "share_memory"]

_Array = np.ndarray[Any, Any]
_Copy = Callable[[_Array], _Array]


def is_read_only(array: _Array) -> bool:
    """Returns whether no code can write to the memory of an array, as far as its flags tell.

    A read-only view of a writable array counts as read-only if nothing else refers to that array, as in
    ``np.arange(4).reshape(2, 2)``, whose memory belongs to the array that ``arange`` created.

    >>> import numpy as np
    >>> is_read_only(np.frombuffer(b"1234", np.uint8)), is_read_only(np.broadcast_to(np.ones(1), 3))
    (True, True)
    >>> one = np.ones(1)
    >>> is_read_only(np.broadcast_to(one, 3))
    False
    """
    memory: Any = array
    while memory is not None:
        if isinstance(memory, np.ndarray):
            if memory.flags.writeable:
                return False
            if type(memory.base) is np.ndarray and _base_references(memory) <= _BASE:
                return _is_alone(memory) or is_read_only(memory.base)
            memory = memory.base
        elif isinstance(memory, memoryview):
            if not memory.readonly:
                return False
            memory = memory.obj
        else:
            try:
                return memoryview(memory).readonly
            except TypeError:
                # A DLPack capsule or an Arrow array, for example: read-only here, but perhaps not for the
                # library that exports the memory.
                return False
    return True


def owned(array: _Array, copy: _Copy = np.ndarray.copy) -> _Array:
    """Returns an array that no other code can write to: a copy, or the array itself if it is read-only.

    Args:
        array: The user's array.
        copy: Makes the copy.
    """
    return array if is_read_only(array) else copy(array)


def share_memory(a: Leaf, b: Leaf) -> bool:
    """Returns whether two leaves are arrays that share the memory of one base array.

    >>> import numpy as np
    >>> buffer = np.zeros(4)
    >>> share_memory(buffer[:2], buffer[2:]), share_memory(buffer, buffer + 1)
    (True, False)
    """
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and _memory(a) is _memory(b)


class OwnedResults:
    """Takes ownership of results of user functions: copies arrays that other code can write to.

    Args:
        flatten: Returns the leaves of a nest.
        map_leaves: Applies a function to the leaves of a nest that is not a plain tuple or dict.
        copy: Makes the copies.
    """

    __slots__ = ("_copy", "_flatten", "_map_leaves")

    def __init__(
        self,
        flatten: Callable[[Any], Iterable[Any]],
        map_leaves: Callable[[Callable[[Any], Any], Any], Any],
        copy: _Copy = np.ndarray.copy,
    ) -> None:
        self._flatten = flatten
        self._map_leaves = map_leaves
        self._copy = copy

    def take(self, make: Callable[[], Any], given: PyTree = None) -> Any:
        """Returns the result of ``make``, with its arrays owned.

        Args:
            make: Calls the function, and keeps no reference to its result.
            given: The function's arguments, which the caller owns: these arrays and views of them are not
                copied.
        """
        value, references = _with_references(make)
        alone = references <= _RESULT
        if type(value) is np.ndarray:
            return value if alone and _is_alone(value) else self._own(value, given)
        if isinstance(value, _IMMUTABLE):
            return value
        return self._own_nest(value, alone, given)

    def _own_nest(self, nest: PyTree, alone: bool, given: PyTree) -> Any:
        """Returns a nest with its arrays owned.

        Args:
            nest: The function's result, or a part of it.
            alone: Whether this is the only reference to it. If the user holds the nest too, its arrays are
                reachable even if each has a reference count of one.
            given: As for ``take``.
        """
        kind = type(nest)
        if kind is tuple:
            return tuple(self._own_parts(nest, alone, given))
        if kind is dict:
            return dict(zip(nest, self._own_parts(_Values(nest), alone, given), strict=True))
        if isinstance(nest, _IMMUTABLE):
            return nest
        return self._map_leaves(
            lambda leaf: self._own(leaf, given) if isinstance(leaf, np.ndarray) else leaf, nest
        )

    def _own_parts(self, parts: Iterable[Any], alone: bool, given: PyTree) -> list[Any]:
        counts = [*map(sys.getrefcount, parts)]
        owned: list[Any] = []
        for part, count in zip(parts, counts, strict=True):
            part_alone = alone and count <= _PART
            if type(part) is not np.ndarray:
                owned.append(self._own_nest(part, part_alone, given))
            elif part_alone and _is_alone(part):
                owned.append(part)
            else:
                owned.append(self._own(part, given))
        return owned

    def _own(self, array: _Array, given: PyTree) -> _Array:
        if array is given or is_read_only(array):
            return array
        leaves = given if type(given) is tuple else self._flatten(given)
        if any(leaf is array for leaf in leaves):
            return array
        if any(share_memory(leaf, array) for leaf in self._flatten(given)):
            return array
        return self._copy(array)


class _Values:
    """A reiterable view of a dict's values. A list of them would add references to the values."""

    __slots__ = ("_of",)

    def __init__(self, of: dict[Any, Any]) -> None:
        self._of = of

    def __iter__(self) -> Any:
        return iter(self._of.values())


_IMMUTABLE = (np.generic, bytes, str, int, float, complex, type(None))


def _with_references(make: Callable[[], Any]) -> tuple[Any, int]:
    value = make()
    return value, sys.getrefcount(value)


def _is_alone(array: _Array) -> bool:
    """Returns whether an array owns its memory, or its base does and nothing else refers to that."""
    base = array.base
    if base is None:
        return array.flags.owndata
    if type(base) is not np.ndarray or not base.flags.owndata:
        return False
    del base
    return _base_references(array) <= _BASE


def _base_references(array: _Array) -> int:
    return sys.getrefcount(array.base)


def _memory(array: ArrayLike) -> Any:
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


# Reference counts of objects that nothing else refers to, as the functions above see them. Measured here,
# because they differ between Python versions, which may or may not count the function's own references.
_RESULT = _with_references(lambda: np.empty(1))[1]
_BASE = _base_references(np.empty(2)[:1])
_PART = max(map(sys.getrefcount, (np.empty(1),)))
