"""Which strategy trains a Keras model, and what must not be mixed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from stratagem._src.core.errors import ContextError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.placed_variable import check_strategy, strategy_of
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.current import get_strategy

__all__ = ["check_created_with", "note_creation", "strategy_of_model", "strategy_to_compile_for"]

_made_in: weakref.WeakKeyDictionary[Any, Strategy] = weakref.WeakKeyDictionary()


def note_creation(model: Any) -> None:
    """Notes in whose scope a model is made; its variables may come later.

    Raises:
        UnsupportedError: If Keras cannot be used under that strategy.
    """
    strategy = _current()
    if strategy is not None:
        check_strategy(strategy)
        _made_in[model] = strategy


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
    made_in, strategy = _made_in.get(model), strategy_of(variables)
    if made_in is not None and made_in is not strategy:
        if variables:
            raise ContextError(
                f"The model {model.name!r} was made in the scope of {made_in!r}, but its variables, such "
                f"as {variables[0].path!r}, {_where(strategy)}. {_ADVICE}"
            )
        strategy = made_in
    current = _current()
    if current is not None and current is not strategy:
        raise ContextError(
            f"The model {model.name!r} was made {_where(strategy)}, but is used in the scope of "
            f"{current!r}. {_ADVICE}"
        )
    return strategy


def strategy_to_compile_for(model: Any) -> Strategy | None:
    """Like ``strategy_of_model``; a model without variables is taken into the current scope."""
    if model not in _made_in and not model.variables:
        note_creation(model)
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
