"""Records the strategy in whose scope a Keras object is created, and enters that scope later.

A layer creates variables when it is built, in ``enable_lora()`` or in ``quantize()``: often outside of the
scope. A layer that belongs to a strategy creates them in the strategy's scope anyway.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import (
    ADD_METRIC_VARIABLE,
    ADD_OPTIMIZER_VARIABLE,
    ADD_WEIGHT,
    ATTRIBUTES_NOT_SAVED,
    LAYER_NEW,
    METRIC_INIT,
    OPTIMIZER,
    Argument,
    KerasObject,
    replace_attributes_not_saved,
)
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.current import get_strategy

__all__ = [
    "creation_strategy",
    "install_owner_scopes",
    "owner_of",
    "owner_scope",
    "record_creation",
]

_creation_strategies: WeakIdentityMap[Any, Strategy] = WeakIdentityMap()


def install_owner_scopes() -> None:
    """Makes layers, metrics and optimizers create their variables in the scope of their strategy."""
    keras.Layer.__new__ = _new_layer
    keras.Metric.__init__ = _init_metric
    keras.Layer.add_weight = _in_owner_scope(ADD_WEIGHT)
    keras.Metric.add_variable = _in_owner_scope(ADD_METRIC_VARIABLE)
    OPTIMIZER.add_variable = _in_owner_scope(ADD_OPTIMIZER_VARIABLE)
    replace_attributes_not_saved(_attributes_not_saved)


def record_creation(made: KerasObject, strategy: Strategy | None = None) -> None:
    """Records the strategy in whose scope a Keras object is created; its variables may be created later.

    Args:
        made: The object.
        strategy: The strategy; the current one if ``None``, and none outside of scopes.
    """
    if strategy is not None or context.has_strategy():
        _creation_strategies[made] = strategy or get_strategy()


def creation_strategy(made: KerasObject) -> Strategy | None:
    """Returns the strategy in whose scope a Keras object was created, if any."""
    return _creation_strategies.get(made)


def owner_of(made: KerasObject) -> Strategy | None:
    """Returns the strategy in whose scope a Keras object or its variables were created, if any."""
    found = _creation_strategies.get(made)
    if found is None:
        found = next((getattr(v, "strategy", None) for v in made.variables), None)
    return None if found is context.default_frame().strategy else found


def owner_scope(made: KerasObject) -> AbstractContextManager[object]:
    """Returns the scope of the strategy of a Keras object; no scope if one is entered already."""
    strategy = None if context.has_strategy() else owner_of(made)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


@functools.cache
def _attributes_not_saved(kind: str) -> set[str]:
    """Keeps what Keras makes to list its attributes, such as an optimizer, out of the strategy.

    Its name ends in a number, which differs between workers if one of them has saved alone.
    """
    with context.enter(context.default_frame()):
        return ATTRIBUTES_NOT_SAVED(kind)


def _in_owner_scope(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_there(self: KerasObject, *args: Argument, **kwargs: Argument) -> Any:
        with owner_scope(self):
            return create(self, *args, **kwargs)

    return create_there


@functools.wraps(LAYER_NEW)
def _new_layer(cls: type, *args: Argument, **kwargs: Argument) -> Any:
    layer = LAYER_NEW(cls, *args, **kwargs)
    if context.has_strategy():
        record_creation(layer)
        # Wrapped for each instance, as Keras itself does: `build` may create variables and layers directly.
        build = layer.build

        @functools.wraps(build)
        def build_there(*args: Argument, **kwargs: Argument) -> Any:
            with owner_scope(layer):
                return build(*args, **kwargs)

        layer.build = build_there
    return layer


@functools.wraps(METRIC_INIT)
def _init_metric(self: KerasObject, *args: Argument, **kwargs: Argument) -> None:
    METRIC_INIT(self, *args, **kwargs)
    record_creation(self)
