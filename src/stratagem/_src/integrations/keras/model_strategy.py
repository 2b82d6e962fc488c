"""Determines the strategy of a Keras model, and checks that all its parts belong to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from stratagem._src.core.errors import ContextError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import (
    ADD_LAYER,
    Argument,
    KerasLayer,
    KerasModel,
    is_new,
)
from stratagem._src.integrations.keras.owner_scope import creation_strategy, record_creation
from stratagem._src.integrations.keras.placed_variable import check_strategy, strategy_of
from stratagem._src.integrations.keras.plain_variables import adopt
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.current import get_strategy

__all__ = [
    "add_layer",
    "adopt_new",
    "check_created_with",
    "record_model_creation",
    "strategy_of_model",
    "strategy_to_compile_for",
]


def record_model_creation(model: KerasModel) -> None:
    """Records the strategy in whose scope a model is created; its variables may be created later.

    Raises:
        UnsupportedError: If the strategy does not support Keras.
    """
    strategy = _current()
    if strategy is not None:
        check_strategy(strategy)
        record_creation(model)


def adopt_new(layer: KerasLayer, strategy: Strategy) -> None:
    """Moves variables of layers that were created outside of the scope and not called yet to a strategy.

    ``Dropout`` has such a variable from its creation; other layers are built in the scope in any case. A
    layer that has been called may be part of another model, which would then mix strategies.
    """
    parts = list(layer._flatten_layers())
    used = {id(v) for part in parts if not is_new(part) for v in _own_variables(part)}
    adopt([variable for variable in layer.variables if id(variable) not in used], strategy)


def _own_variables(layer: KerasLayer) -> list[Any]:
    of_parts = {id(v) for part in layer._flatten_layers(include_self=False) for v in part.variables}
    return [variable for variable in layer.variables if id(variable) not in of_parts]


def add_layer(model: KerasModel, layer: KerasLayer, *args: Argument, **kwargs: Argument) -> None:
    """Replaces ``Sequential.add``, which may build the added layer: does so in the model's scope."""
    strategy = creation_strategy(model)
    if strategy is None or _current() is not None:
        ADD_LAYER(model, layer, *args, **kwargs)
        return
    if isinstance(layer, keras.Layer):
        adopt_new(layer, strategy)
    with strategy.scope():
        ADD_LAYER(model, layer, *args, **kwargs)


def strategy_of_model(model: KerasModel) -> Strategy | None:
    """Returns the strategy of a model; ``None`` for a model without a strategy.

    Raises:
        ContextError: If its variables were not all created in one strategy's scope, or the scope of
            another strategy is entered.
    """
    optimizer = getattr(model, "optimizer", None)
    variables = [
        *model.variables,
        *(() if optimizer is None else optimizer.variables),
        *model.metrics_variables,
    ]
    owner = creation_strategy(model)
    if owner is not None and any(getattr(v, "strategy", None) is not owner for v in variables):
        adopt_new(model, owner)
    strategy = strategy_of(variables)
    if owner is not None and owner is not strategy:
        if variables:
            raise ContextError(
                f"The model {model.name!r} was created in the scope of {owner!r}, but its variables, such "
                f"as {variables[0].path!r}, {_where(strategy)}. {_ADVICE}"
            )
        strategy = owner
    current = _current()
    if current is not None and current is not strategy:
        raise ContextError(
            f"The model {model.name!r} was created {_where(strategy)}, but is used in the scope of "
            f"{current!r}. {_ADVICE}"
        )
    return strategy


def strategy_to_compile_for(model: KerasModel) -> Strategy | None:
    """Like ``strategy_of_model``; a model without variables joins the current scope."""
    if creation_strategy(model) is None and not model.variables:
        record_model_creation(model)
    return strategy_of_model(model)


def check_created_with(strategy: Strategy | None, parts: Iterable[Any]) -> None:
    """Checks that the optimizer and metrics for ``compile`` were created in the scope of the model.

    Raises:
        ContextError: If not.
    """
    for part in parts:
        variables = getattr(part, "variables", None)
        if not isinstance(variables, (list, tuple)) or not variables:
            continue
        found = strategy_of(variables)
        if found is not strategy:
            raise ContextError(
                f"{type(part).__name__} passed to compile() was created {_where(found)}, but the model "
                f"{_where(strategy)}. {_ADVICE}"
            )


_ADVICE = (
    "Create the model, its layers, the optimizer and the metrics inside the same `with strategy.scope():` "
    "(names such as 'adam' are always created in the right one). To transfer weights, use "
    "model.get_weights() and set_weights(), or keras.saving.load_model() in the scope."
)


def _where(strategy: Strategy | None) -> str:
    return "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"


def _current() -> Strategy | None:
    return get_strategy() if context.has_strategy() else None
