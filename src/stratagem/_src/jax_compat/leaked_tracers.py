"""Finds leaked tracers: traced arrays inside objects that are not pytrees, which no program can fill in."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from stratagem._src.core.errors import TracedValueError
from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.tracing import is_tracer

__all__ = ["find_leaked_tracers", "leaked_tracer_error"]

_MAX_DEPTH = 3
_NOT_OPENED = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType)


def find_leaked_tracers(value: Tensor) -> Iterator[tuple[str, Any]]:
    """Yields each traced array that an object holds, with the path to it.

    Searches attributes up to three levels deep, and the closures of functions.
    """
    yield from _search(value, "", _MAX_DEPTH, set())


def leaked_tracer_error(holder: Any, way: str) -> TracedValueError:
    """Returns the error for an object in a result that holds a traced array.

    Args:
        holder: The object.
        way: The path from the object to the array.
    """
    name = type(holder).__name__
    return TracedValueError(
        "A compiled function returns arrays in tuples, lists, dicts, dataclasses, attrs classes and "
        f"registered pytree nodes; it returns a {name} that holds a traced array, at {name}{way}, which "
        f"would never get its value. Return the arrays of it, for example in a dict, and create the {name} "
        "outside; or register its class with jax.tree_util.register_pytree_node."
    )


def _search(value: Tensor, way: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
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


def _attributes(value: Tensor) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        # Only the closure: other attributes lead to the globals of its module.
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
