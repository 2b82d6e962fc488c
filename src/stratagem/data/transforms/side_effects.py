"""Finding out from its code whether a function changes something outside itself."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

__all__ = ["stores_outside"]

_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"})


def stores_outside(fn: Callable[..., Any]) -> bool:
    """Returns whether the function assigns to a global, a nonlocal or an attribute.

    Functions called by it are not looked into.
    """
    code = getattr(fn, "__code__", None)
    if code is None:
        return False
    outer = set(code.co_freevars)
    return any(
        step.opname in _STORES or (step.opname == "STORE_DEREF" and step.argval in outer)
        for step in dis.get_instructions(code)
    )
