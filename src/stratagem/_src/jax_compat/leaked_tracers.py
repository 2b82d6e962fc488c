"""Traced arrays inside objects that are no structures, where no program can put an array back."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from stratagem._src.core.errors import TracedValueError
from stratagem._src.jax_compat.tracing import is_tracer

__all__ = ["hidden_tracers", "refuse_hidden_tracer"]

_MOST_ATTRIBUTES = 3
_NOT_OPENED = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType)


def hidden_tracers(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields each traced array that an object holds, with the way to it.

    Attributes of attributes are looked at, two of them deep, and what a function captures.
    """
    yield from _search(value, "", _MOST_ATTRIBUTES, set())


def refuse_hidden_tracer(holder: Any, way: str) -> TracedValueError:
    """Returns the error for an object in a result that holds a traced array.

    Args:
        holder: The object.
        way: From the object to the array.
    """
    name = type(holder).__name__
    return TracedValueError(
        "A compiled function returns arrays in tuples, lists, dicts, dataclasses, attrs classes and "
        f"registered pytree nodes; it returns a {name} that holds one, at {name}{way}, and nothing could "
        f"put its value there. Return the arrays of it, for example in a dict, and make the {name} "
        "outside; or register its class by jax.tree_util.register_pytree_node."
    )


def _search(value: Any, way: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if is_tracer(value):
        yield way, value
        return
    if isinstance(value, _NOT_OPENED) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield from _search(item, f"{way}[{key!r}]", depth, seen)
    elif isinstance(value, (Sequence, AbstractSet)):
        for index, item in enumerate(list(value)):
            yield from _search(item, f"{way}[{index}]", depth, seen)
    elif depth:
        for name, attribute in _attributes(value):
            yield from _search(attribute, f"{way}.{name}", depth - 1, seen)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        # Not its other slots: the globals of its module are among them.
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        return
    yield from list(getattr(value, "__dict__", {}).items())
    for cls in type(value).__mro__:
        for name, slot in list(vars(cls).items()):
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # not assigned yet
                    continue
