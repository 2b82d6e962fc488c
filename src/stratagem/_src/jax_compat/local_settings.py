"""``with_setting``: calls a function with another JAX setting of this thread, whatever interrupts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["with_setting"]

Result = TypeVar("Result")


def with_setting(setting: Any, value: Any, call: Callable[[], Result]) -> Result:
    """Returns the result of ``call`` while a setting such as ``jax.enable_x64`` has a value in this thread.

    JAX equivalent: ``with setting(value)``. That is a context manager written in Python: an interrupt
    (Ctrl-C) in its exit leaves it entered, and from then on everything in this thread would be computed
    with 64-bit types, for example. Here a single call into C++ restores the setting.
    """
    if not hasattr(setting, "set_local"):  # pragma: no cover - another JAX
        with setting(value):
            return call()
    before = setting.get_local()
    try:
        setting.set_local(value)
        return call()
    finally:
        setting.set_local(before)
