"""Callback slots: host callbacks of a program that is compiled once for several traces.

Each trace of a step makes its own callback functions: a lambda is a new object every time, with new
captured values. The compiled program calls a *slot* in place of each callback, and each run fills the
slots with the callbacks of its own trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.core.types import Equation, Jaxpr, StaticValue, Tensor
from stratagem._src.jax_compat.primitives import CALLBACKS
from stratagem._src.jaxpr.walk import all_equations, rewrite_equations

__all__ = ["CallbackSlots", "callbacks_of", "is_callback"]


def is_callback(eqn: Equation) -> bool:
    """Returns whether an equation calls a user function on the host; ``jax.debug.print`` does not."""
    return eqn.primitive.name in CALLBACKS and "callback" in eqn.params


def callbacks_of(jaxpr: Jaxpr) -> list[Callable[..., Any]]:
    """Returns the callbacks of a jaxpr and of its inner jaxprs, in order."""
    return [eqn.params["callback"] for eqn in all_equations(jaxpr) if is_callback(eqn)]


class _Slot:
    """Calls a callback that can be replaced."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[..., Any]) -> None:
        self.callback = callback

    def __call__(self, *args: Tensor, **kwargs: StaticValue) -> Any:
        return self.callback(*args, **kwargs)


class CallbackSlots:
    """The slots of one program.

    Attributes:
        lock: Held while the program runs with the callbacks of one trace.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._slots: list[_Slot] = []

    def put_into(self, jaxpr: Jaxpr) -> Jaxpr:
        """Returns ``jaxpr`` with every callback replaced by a slot that holds it."""
        return rewrite_equations(jaxpr, self._with_slot)

    def fill(self, callbacks: Sequence[Callable[..., Any]]) -> None:
        """Replaces the callbacks of the program, in the order of ``callbacks_of``."""
        for slot, callback in zip(self._slots, callbacks, strict=True):
            slot.callback = callback

    def clear(self) -> None:
        """Releases the callbacks."""
        self.fill([_no_callback] * len(self._slots))

    def _with_slot(self, eqn: Equation) -> Equation | None:
        if not is_callback(eqn):
            return None
        slot = _Slot(eqn.params["callback"])
        self._slots.append(slot)
        return eqn.replace(params={**eqn.params, "callback": slot})


def _no_callback(*args: Tensor, **kwargs: StaticValue) -> Any:
    raise AssertionError("no call of the program is in progress")
