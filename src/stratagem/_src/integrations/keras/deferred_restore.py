"""Keras objects that are restored before they are built: they get the values when they have variables.

Keras builds an optimizer at its first step, and a model without ``keras.Input`` when it is first called;
programs restore checkpoints before.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import OPTIMIZER
from stratagem._src.integrations.keras.owner_scope import owner_of
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.variables import access as state

__all__ = [
    "install_deferred_restore",
    "restore_all_deferred",
    "restore_deferred",
    "restore_when_built",
]

_waiting: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def restore_when_built(unbuilt: Any, restore: Callable[[Any], None]) -> None:
    """Has ``restore`` called with a Keras object when it is built, in place of what waited for it."""
    _waiting[unbuilt] = restore


def restore_deferred(built: Any) -> None:
    """Calls what waits for a Keras object that is built by now."""
    if not _waiting or not built.built or not all(map(_has_value, built.variables)):
        return
    restore = _waiting.pop(built, None)
    if restore is not None:
        strategy = owner_of(built) or context.default_frame().strategy
        # Also while a function is traced: as a part of its program they would be assigned in each call.
        with context.enter(context.Frame(strategy, None)), state.outside_of_frames():
            evaluate_now(lambda: restore(built))


def restore_all_deferred() -> None:
    """Calls what waits for any Keras object that is built by now.

    ``fit`` builds a model and its optimizer symbolically; their variables get values afterwards.
    """
    for waited_for in list(_waiting):
        restore_deferred(waited_for)


def _has_value(variable: Any) -> bool:
    return (variable.twin if isinstance(variable, PlacedVariable) else variable._value) is not None


def install_deferred_restore() -> None:
    """Watches optimizers, also those of classes to come, being built."""
    original = OPTIMIZER.__init_subclass__

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        original(**kwargs)
        _watch(cls)

    OPTIMIZER.__init_subclass__ = classmethod(init_subclass)
    for cls in (OPTIMIZER, *_derived(OPTIMIZER)):
        _watch(cls)


def _derived(cls: type) -> set[type]:
    found: set[type] = set(cls.__subclasses__())
    return found.union(*map(_derived, found))


def _watch(cls: Any) -> None:
    if "build" not in vars(cls):
        return
    original = vars(cls)["build"]

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        # The base class's build is called first by those that add slots: only the outermost is the end.
        if type(self).build is build:
            restore_deferred(self)
        return result

    cls.build = build
