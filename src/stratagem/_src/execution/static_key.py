"""What stands for an argument that is not an array in the key of a program: its value, or who it is.

A key holds what it compares. Values of Python's own types are compared by type and content, to the last
bit: ``1``, ``1.0`` and ``True`` are equal in Python, and programs made of them differ. An instance of a
subclass of these has its attributes too. Objects of other classes are compared by ``==`` if their class
says what is equal, and are the same object otherwise.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import struct
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stratagem._src.core.structures import Container
from stratagem._src.variables.variable import Variable

__all__ = ["EXACT", "KeyedParameter", "SameObject", "form_key", "static_key"]

EXACT = frozenset({bool, int, str, bytes, type(None), type(...), type(NotImplemented)})
"""Types of which equal objects are the same in every respect."""

# How to get the content of an instance of a subclass, whatever the subclass makes of its own methods.
_CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray.__getitem__(value, slice(None)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    list: lambda value: list(list.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    dict: lambda value: {key: dict.__getitem__(value, key) for key in dict.__iter__(value)},
}
_BITS = struct.Struct("d").pack

Needs = list[weakref.ref[Any]]


class SameObject:
    """Key of an object that is equal only to itself.

    Args:
        value: The object.
        reference: A weak reference to it, if there can be one; it is kept alive otherwise.
    """

    __slots__ = ("_hash", "_object")

    def __init__(self, value: Any, reference: weakref.ref[Any] | None) -> None:
        self._hash = id(value)
        self._object: Callable[[], Any] = reference or (lambda: value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameObject):
            return NotImplemented
        value = self._object()
        return other is self or (value is not None and other._object() is value)

    def __hash__(self) -> int:
        return self._hash


class KeyedParameter:
    """A parameter of an operation that is another object in every trace, and knows what it is equal to."""

    __slots__ = ()

    def key(self) -> Any:
        """Returns what is equal for parameters that mean the same."""
        raise NotImplementedError


def static_key(value: Any, needs: Needs) -> Any:
    """Returns what stands for an object in a key.

    Args:
        value: The object.
        needs: Takes a reference to it if the key is of no use without it; it is not kept alive then.
    """
    kind = type(value)
    if kind in EXACT:
        return kind, value
    try:
        return _of_content(value, kind, needs)
    except RecursionError:  # it contains itself
        return _same_object(value, needs)


def _of_content(value: Any, kind: type, needs: Needs) -> Any:
    if kind is float:
        return kind, _BITS(value)
    if kind is complex:
        return kind, _BITS(value.real), _BITS(value.imag)
    if kind is bytearray:
        return kind, bytes(value)
    if kind in (tuple, list):
        return kind, *_all(value, needs)
    if kind in (set, frozenset):
        return kind, frozenset(_all(value, needs))
    if kind is dict:
        return kind, *((static_key(k, needs), static_key(v, needs)) for k, v in value.items())
    if kind in (slice, range):
        return kind, *_all((value.start, value.stop, value.step), needs)
    if kind is collections.deque:
        return kind, value.maxlen, *_all(value, needs)
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if isinstance(value, enum.Enum):
        return SameObject(value, None)
    if kind is types.MethodType:
        return kind, value.__func__, static_key(value.__self__, needs)
    for base, content in _CONTENT.items():
        if isinstance(value, base):
            return kind, static_key(content(value), needs), _attributes(value, needs)
    if _is_value(value):
        return kind, value, *_fields(value, needs)
    return _same_object(value, needs)


def _all(values: Iterable[Any], needs: Needs) -> list[Any]:
    return [static_key(value, needs) for value in values]


def _same_object(value: Any, needs: Needs) -> SameObject:
    try:
        reference = weakref.ref(value)
    except TypeError:
        return SameObject(value, None)
    needs.append(reference)
    return SameObject(value, reference)


def _attributes(value: Any, needs: Needs) -> Any:
    """Returns the key of what an instance of a subclass has beside its content."""
    named = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            attribute = f"_{cls.__name__.lstrip('_')}{name}" if hidden else name
            if attribute not in ("__dict__", "__weakref__") and hasattr(value, attribute):
                named[attribute] = getattr(value, attribute)
    return tuple((name, static_key(part, needs)) for name, part in sorted(named.items()))


def _fields(value: Any, needs: Needs) -> list[Any]:
    """Returns the keys of what a dataclass compares: ``==`` takes ``1`` for ``True``."""
    if not dataclasses.is_dataclass(value):
        return []
    fields = [field.name for field in dataclasses.fields(value) if field.compare]
    return _all((getattr(value, name, None) for name in fields), needs)


def _is_value(leaf: Any) -> bool:
    """Returns whether an object is compared by what it holds, and can be."""
    kind: Any = type(leaf)
    if kind.__eq__ is object.__eq__ or isinstance(leaf, Variable):
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def form_key(structure: Any, needs: Needs) -> tuple[Any, ...]:
    """Returns what tells structures apart that are equal.

    Such are those of ``{1: x}`` and ``{True: x}``, and of two mappings, of a class of their own, with the
    same keys in another order, which functions see. Empty for most.

    Args:
        structure: From ``structures.flatten``.
        needs: As for ``static_key``.
    """
    found: list[Any] = []
    waiting = [structure]
    while waiting:
        node = waiting.pop()
        data = node.node_data()
        if data is None:
            continue
        waiting.extend(node.children())
        form = data[1]
        if isinstance(form, Container):
            form = form.exact_form
        elif isinstance(form, (list, tuple)) and all(type(part) is str for part in form):
            continue
        if form is not None and type(form) is not str and type(form) in _TOLD_APART:
            found.append(static_key(form, needs))
    return tuple(found)


_TOLD_APART = frozenset({bool, int, float, complex, tuple, list, frozenset})
