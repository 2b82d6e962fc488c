"""Which strategy trains a Keras model, and what must not be mixed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from stratagem._src.core.errors import ContextError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import ADD_LAYER, is_new
from stratagem._src.integrations.keras.owner_scope import made_in, note_creation
from stratagem._src.integrations.keras.placed_variable import check_strategy, strategy_of
from stratagem._src.integrations.keras.plain_variables import adopt
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.current import get_strategy

__all__ = [
    "add_layer",
    "adopt_new",
    "check_created_with",
    "note_model",
    "strategy_of_model",
    "strategy_to_compile_for",
]


def note_model(model: Any) -> None:
    """Notes in whose scope a model is made; its variables may come later.

    Raises:
        UnsupportedError: If Keras cannot be used under that strategy.
    """
    strategy = _current()
    if strategy is not None:
        check_strategy(strategy)
        note_creation(model)


def adopt_new(layer: Any, strategy: Strategy) -> None:
    """Takes variables of layers that were made outside of the scope, and not called yet, into a strategy.

    Such as that of ``Dropout``, which has one from the beginning; others are built there in any case. A
    layer that was called may be part of another model, which would be torn apart.
    """
    parts = list(layer._flatten_layers())
    used = {id(v) for part in parts if not is_new(part) for v in _own_variables(part)}
    adopt([variable for variable in layer.variables if id(variable) not in used], strategy)


def _own_variables(layer: Any) -> list[Any]:
    of_parts = {id(v) for part in layer._flatten_layers(include_self=False) for v in part.variables}
    return [variable for variable in layer.variables if id(variable) not in of_parts]


def add_layer(model: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Takes the place of ``Sequential.add``, which may build what is added."""
    strategy = made_in(model)
    if strategy is None or _current() is not None:
        ADD_LAYER(model, layer, *args, **kwargs)
        return
    if isinstance(layer, keras.Layer):
        adopt_new(layer, strategy)
    with strategy.scope():
        ADD_LAYER(model, layer, *args, **kwargs)


def strategy_of_model(model: Any) -> Strategy | None:
    """Returns the strategy that a model belongs to; ``None`` for a model of Keras alone.

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
    owner = made_in(model)
    if owner is not None and any(getattr(v, "strategy", None) is not owner for v in variables):
        adopt_new(model, owner)
    strategy = strategy_of(variables)
    if owner is not None and owner is not strategy:
        if variables:
            raise ContextError(
                f"The model {model.name!r} was made in the scope of {owner!r}, but its variables, such "
                f"as {variables[0].path!r}, {_where(strategy)}. {_ADVICE}"
            )
        strategy = owner
    current = _current()
    if current is not None and current is not strategy:
        raise ContextError(
            f"The model {model.name!r} was made {_where(strategy)}, but is used in the scope of "
            f"{current!r}. {_ADVICE}"
        )
    return strategy


def strategy_to_compile_for(model: Any) -> Strategy | None:
    """Like ``strategy_of_model``; a model without variables is taken into the current scope."""
    if made_in(model) is None and not model.variables:
        note_model(model)
    return strategy_of_model(model)


def check_created_with(strategy: Strategy | None, parts: Iterable[Any]) -> None:
    """Checks that optimizers and metrics that ``compile`` is given were created where the model was.

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
                f"{type(part).__name__} given to compile() was made {_where(found)}, but the model "
                f"{_where(strategy)}. {_ADVICE}"
            )


_ADVICE = (
    "Make the model, its layers, the optimizer and the metrics inside the same `with strategy.scope():` "
    "(names such as 'adam' are always made in the right one). To bring weights along, use "
    "model.get_weights() and set_weights(), or keras.saving.load_model() in the scope."
)


def _where(strategy: Strategy | None) -> str:
    return "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"


def _current() -> Strategy | None:
    return get_strategy() if context.has_strategy() else None
