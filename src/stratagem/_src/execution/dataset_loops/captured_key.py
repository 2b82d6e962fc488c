"""``captured_key``: a key of a function that compares its code and the values that it captures."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core.types import StaticValue
from stratagem._src.execution.static_key import IdentityKey, static_key

__all__ = ["captured_key"]

_MAX_COMPARED_BYTES = 1 << 16


def captured_key(fn: Callable[..., Any]) -> Any:
    """Returns a key that is equal for functions with the same code, defaults and captured variables.

    So two objects that evaluating one ``lambda`` twice gives are equal if the variables that they capture
    have the same values. What a function reads in other places (globals, attributes) is not part of it.
    """
    return _key(fn, ())


def _key(value: Any, inside: tuple[int, ...]) -> Any:
    if id(value) in inside:  # a function that captures itself
        return inside.index(id(value))
    inside = (*inside, id(value))
    if isinstance(value, types.FunctionType):
        cells = [_cell(cell, inside) for cell in value.__closure__ or ()]
        defaults = _values(value.__defaults__ or (), inside)
        named = value.__kwdefaults__ or {}
        return (
            IdentityKey(value.__code__, None),
            IdentityKey(value.__globals__, None),
            *defaults,
            *((name, _key(default, inside)) for name, default in named.items()),
            *cells,
        )
    if isinstance(value, types.MethodType):
        return _key(value.__func__, inside), _identity(value.__self__)
    if isinstance(value, functools.partial):
        named = value.keywords
        arguments = _values(value.args, inside), *_values(tuple(named.values()), inside)
        return functools.partial, _key(value.func, inside), tuple(named), arguments
    if isinstance(value, np.ndarray):
        # It may be changed in place.
        if value.nbytes <= _MAX_COMPARED_BYTES and not value.dtype.hasobject:
            return np.ndarray, value.dtype, value.shape, value.tobytes()
        return IdentityKey(object(), None)  # equal to nothing
    if type(value) in (tuple, list):
        return type(value), *_values(tuple(value), inside)
    if type(value) is dict:
        keys = [static_key(key, []) for key in value]
        return dict, tuple(keys), _values(tuple(value.values()), inside)
    return static_key(value, [])


def _values(values: tuple[Any, ...], inside: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(_key(value, inside) for value in values)


def _cell(cell: types.CellType, inside: tuple[int, ...]) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return ()
    return _key(value, inside)


def _identity(value: StaticValue) -> IdentityKey:
    try:
        return IdentityKey(value, weakref.ref(value))
    except TypeError:
        return IdentityKey(value, None)
