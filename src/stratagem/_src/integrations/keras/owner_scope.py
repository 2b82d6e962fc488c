"""To which strategy layers and metrics belong, and its scope for what they create later.

A layer gets variables when it is built, by ``enable_lora()`` or by ``quantize()``: often where no scope is
entered any more. What belongs to a strategy creates them there.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import (
    ADD_METRIC_VARIABLE,
    ADD_OPTIMIZER_VARIABLE,
    ADD_WEIGHT,
    LAYER_NEW,
    METRIC_INIT,
    OPTIMIZER,
)
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.current import get_strategy

__all__ = ["install_owner_scopes", "made_in", "note_creation", "owner_of", "owner_scope"]

_made_in: weakref.WeakKeyDictionary[Any, Strategy] = weakref.WeakKeyDictionary()


def install_owner_scopes() -> None:
    """Makes layers, metrics and optimizers create their variables in the strategy they belong to."""
    keras.Layer.__new__ = _new_layer
    keras.Metric.__init__ = _init_metric
    keras.Layer.add_weight = _in_owner_scope(ADD_WEIGHT)
    keras.Metric.add_variable = _in_owner_scope(ADD_METRIC_VARIABLE)
    OPTIMIZER.add_variable = _in_owner_scope(ADD_OPTIMIZER_VARIABLE)


def note_creation(made: Any) -> None:
    """Notes in whose scope a Keras object is made; its variables may come later."""
    if context.has_strategy():
        _made_in[made] = get_strategy()


def made_in(made: Any) -> Strategy | None:
    """Returns the strategy in whose scope a Keras object was made, if any."""
    return _made_in.get(made)


def owner_of(made: Any) -> Strategy | None:
    """Returns the strategy in whose scope a Keras object, or its variables, were made, if any."""
    found = _made_in.get(made)
    if found is None:
        found = next((getattr(v, "strategy", None) for v in made.variables), None)
    return None if found is context.default_frame().strategy else found


def owner_scope(made: Any) -> AbstractContextManager[object]:
    """Returns the scope of the strategy that a Keras object belongs to, unless another is entered."""
    strategy = None if context.has_strategy() else owner_of(made)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def _in_owner_scope(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_there(self: Any, *args: Any, **kwargs: Any) -> Any:
        with owner_scope(self):
            return create(self, *args, **kwargs)

    return create_there


@functools.wraps(LAYER_NEW)
def _new_layer(cls: type, *args: Any, **kwargs: Any) -> Any:
    layer = LAYER_NEW(cls, *args, **kwargs)
    if context.has_strategy():
        note_creation(layer)
        # Keras wraps it for each layer, too: it may create variables and layers by itself.
        build = layer.build

        @functools.wraps(build)
        def build_there(*args: Any, **kwargs: Any) -> Any:
            with owner_scope(layer):
                return build(*args, **kwargs)

        layer.build = build_there
    return layer


@functools.wraps(METRIC_INIT)
def _init_metric(self: Any, *args: Any, **kwargs: Any) -> None:
    METRIC_INIT(self, *args, **kwargs)
    note_creation(self)
