"""Keys of static arguments: how a cache key compares an argument that is not an array.

A key holds what it compares. Values of Python's built-in types are compared by type and content, to the
last bit: ``1``, ``1.0`` and ``True`` are equal in Python, but their programs differ. For an instance of a
subclass of these, the attributes are compared too. Objects of other classes are compared by ``==`` if their
class defines it, and by identity otherwise.
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
from stratagem._src.core.types import PyTreeDef, StaticValue
from stratagem._src.variables.variable import is_own_variable

__all__ = ["EXACT", "IdentityKey", "KeyedParameter", "form_key", "static_key"]

EXACT = frozenset({bool, int, str, bytes, type(None), type(...), type(NotImplemented)})
"""Types whose equal objects are indistinguishable."""

# Returns the content of an instance of a subclass, even if the subclass overrides methods.
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


class IdentityKey:
    """Key that compares an object by identity.

    Args:
        value: The object.
        reference: A weak reference to the object; without one, the key keeps the object alive.
    """

    __slots__ = ("_hash", "_object")

    def __init__(self, value: StaticValue, reference: weakref.ref[Any] | None) -> None:
        self._hash = id(value)
        self._object: Callable[[], Any] = reference or (lambda: value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityKey):
            return NotImplemented
        # Once the object is gone, another may have its id. So a dead key equals nothing but itself, which
        # still lets it be removed from a dictionary.
        value = self._object()
        return other is self or (value is not None and other._object() is value)

    def __hash__(self) -> int:
        return self._hash


class KeyedParameter:
    """A parameter of a primitive that is a new object in every trace, and defines its own key."""

    __slots__ = ()

    def key(self) -> Any:
        """Returns a key that is equal for equivalent parameters."""
        raise NotImplementedError


def static_key(value: StaticValue, needs: Needs) -> Any:
    """Returns the key of a static value.

    Args:
        value: The value.
        needs: Gets a weak reference to each object that the key compares by identity and does not keep
            alive: when it is collected, the key is stale.
    """
    kind = type(value)
    if kind in EXACT:
        return kind, value
    try:
        return _of_content(value, kind, needs)
    except RecursionError:  # it contains itself
        return _identity_key(value, needs)


def _of_content(value: StaticValue, kind: type, needs: Needs) -> Any:
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
        return IdentityKey(value, None)
    if kind is types.MethodType:
        return kind, value.__func__, static_key(value.__self__, needs)
    for base, content in _CONTENT.items():
        if isinstance(value, base):
            return kind, static_key(content(value), needs), _attributes(value, needs)
    if _is_value(value):
        return kind, value, *_fields(value, needs)
    return _identity_key(value, needs)


def _all(values: Iterable[Any], needs: Needs) -> list[Any]:
    return [static_key(value, needs) for value in values]


def _identity_key(value: StaticValue, needs: Needs) -> IdentityKey:
    try:
        reference = weakref.ref(value)
    except TypeError:
        return IdentityKey(value, None)
    needs.append(reference)
    return IdentityKey(value, reference)


def _attributes(value: StaticValue, needs: Needs) -> Any:
    """Returns the key of the attributes of an instance of a subclass."""
    # Slots too: `class Rate(float): __slots__ = ("unit",)` with equal numbers and different units may
    # trace to different programs.
    named = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            attribute = f"_{cls.__name__.lstrip('_')}{name}" if hidden else name
            if attribute not in ("__dict__", "__weakref__") and hasattr(value, attribute):
                named[attribute] = getattr(value, attribute)
    return tuple((name, static_key(part, needs)) for name, part in sorted(named.items()))


def _fields(value: StaticValue, needs: Needs) -> list[Any]:
    """Returns keys of the fields that a dataclass compares: its ``==`` takes ``1`` for ``True``."""
    if not dataclasses.is_dataclass(value):
        return []
    fields = [field.name for field in dataclasses.fields(value) if field.compare]
    return _all((getattr(value, name, None) for name in fields), needs)


def _is_value(leaf: StaticValue) -> bool:
    """Returns whether an object is compared by value: it defines ``==`` and is hashable."""
    kind: Any = type(leaf)
    if kind.__eq__ is object.__eq__ or is_own_variable(leaf):
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def form_key(structure: PyTreeDef, needs: Needs) -> tuple[Any, ...]:
    """Returns a key that distinguishes structures which compare equal; empty for most structures.

    Examples are those of ``{1: x}`` and ``{True: x}``, and those of two instances of a custom mapping class
    with the same keys in another order, which a function can observe.

    Args:
        structure: The result of ``structures.flatten``.
        needs: As in ``static_key``.
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
        if form is not None and type(form) is not str and type(form) in _COMPARED_EXACTLY:
            found.append(static_key(form, needs))
    return tuple(found)


_COMPARED_EXACTLY = frozenset({bool, int, float, complex, tuple, list, frozenset})
