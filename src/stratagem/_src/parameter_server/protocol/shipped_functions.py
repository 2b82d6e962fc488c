"""Compiled functions that travel: each arrives as one object, however often it is sent.

A function that a step captured would otherwise be compiled again for every function that captures it.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from stratagem._src.execution.function import Function

__all__ = ["reduce_function"]

_sent: weakref.WeakKeyDictionary[Function, str] = weakref.WeakKeyDictionary()
_arrived: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # reentrant for the sake of signal handlers


def reduce_function(function: Function) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns how a compiled function is pickled."""
    with _lock:
        name = _sent.setdefault(function, uuid.uuid4().hex)
    make, arguments = function.__reduce__()
    return _restore, (name, make, arguments)


def _restore(name: str, make: Callable[..., Function], arguments: tuple[Any, ...]) -> Function:
    with _lock:
        known = _arrived.get(name)
    if known is not None:
        return known
    made = make(*arguments)
    # A method refers to its instance weakly, which nobody else may hold here.
    made.__dict__["_made_from"] = arguments
    with _lock:
        return _arrived.setdefault(name, made)
