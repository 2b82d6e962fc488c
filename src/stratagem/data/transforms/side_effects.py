"""Finding out from its code whether calling a function twice could make a difference."""

from __future__ import annotations

import contextlib
import dis
import functools
import random
import secrets
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["may_have_side_effects"]

_LOAD_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"})
_PURE = frozenset({"jax", "jaxlib", "numpy"})
_UNREPEATABLE = (random, secrets, time, np.random)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def may_have_side_effects(fn: Callable[..., Any]) -> bool:
    """Returns whether a function visibly changes something outside itself, or draws random numbers.

    It looks for assignments to globals, nonlocals and attributes, and for random generators and
    clocks, in the function and in the Python functions that it names.
    """
    seen: set[int] = set()
    waiting: list[Any] = [fn]
    while waiting:
        function = _python_function(waiting.pop())
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        named = list(_named_values(function))
        if _stores_outside(function.__code__) or any(map(_is_unrepeatable, named)):
            return True
        waiting.extend(named)
    return False


def _python_function(value: Any) -> types.FunctionType | None:
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, types.FunctionType | type):
        value = getattr(type(value), "__call__", None)  # noqa: B004
    if not isinstance(value, types.FunctionType):
        return None
    package = (value.__module__ or "").partition(".")[0]
    return None if package in _PURE else value


def _stores_outside(code: types.CodeType) -> bool:
    outer = set(code.co_freevars)
    return any(
        step.opname in _STORES or (step.opname == "STORE_DEREF" and step.argval in outer)
        for part in _with_inner(code)
        for step in dis.get_instructions(part)
    )


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _named_values(function: types.FunctionType) -> Iterator[Any]:
    """Yields the objects that a function names: variables from outside and what modules hold."""
    outside = _closure(function)
    for code in _with_inner(function.__code__):
        value: Any = None
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL":
                value = function.__globals__.get(step.argval)
            elif step.opname == "LOAD_DEREF":
                value = outside.get(step.argval)
            elif step.opname in _LOAD_ATTRIBUTE and isinstance(value, types.ModuleType):
                value = getattr(value, step.argval, None)
            else:
                value = None
            if value is not None:
                yield value


def _closure(function: types.FunctionType) -> dict[str, Any]:
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            values[name] = cell.cell_contents
    return values


def _is_unrepeatable(value: Any) -> bool:
    return isinstance(value, _GENERATORS) or any(value is module for module in _UNREPEATABLE)
