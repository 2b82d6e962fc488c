"""Which strategy trains a Keras model, and what must not be mixed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from stratagem._src.core.errors import ContextError
from stratagem._src.integrations.keras.interim import strategy_of
from stratagem._src.runtime import context
from stratagem._src.strategies.base import Strategy

__all__ = ["check_created_with", "note_creation", "strategy_of_model", "strategy_to_compile_for"]

_made_in: weakref.WeakKeyDictionary[Any, Strategy] = weakref.WeakKeyDictionary()


def note_creation(model: Any) -> None:
    """Notes in whose scope a model is made; its variables may come later."""
    strategy = _current()
    if strategy is not None:
        _made_in[model] = strategy


def strategy_of_model(model: Any) -> Strategy | None:
    """Returns the strategy that a model belongs to; ``None`` for a model of Keras alone.

    Raises:
        ContextError: If its variables were not all created in one strategy's scope, or the scope of
            another strategy is entered.
    """
    strategy = _made_in.get(model)
    variables = list(_variables(model))
    if strategy is None and variables:
        strategy = strategy_of(variables[0])
    _check(variables, strategy, f"of the model {model.name!r}")
    current = _current()
    if current is not None and current is not strategy:
        made = "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"
        raise ContextError(
            f"The model {model.name!r} was made {made}, but is used in the scope of {current!r}. Make "
            "and compile it inside of `with strategy.scope():`, or use it outside of that scope."
        )
    return strategy


def strategy_to_compile_for(model: Any) -> Strategy | None:
    """Like ``strategy_of_model``; a model without variables is taken into the current scope."""
    current = _current()
    if current is not None and model not in _made_in and not model.variables:
        _made_in[model] = current
    return strategy_of_model(model)


def check_created_with(strategy: Strategy | None, parts: Iterable[Any], what: str) -> None:
    """Checks that optimizers and metrics that a user gives were created where the model was.

    Raises:
        ContextError: If not.
    """
    for part in parts:
        variables = getattr(part, "variables", ())
        if isinstance(variables, (list, tuple)):
            _check(variables, strategy, f"of {type(part).__name__}, {what},")


def _variables(model: Any) -> Iterator[Any]:
    yield from model.variables
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        yield from optimizer.variables
    yield from model.metrics_variables


def _check(variables: Iterable[Any], strategy: Strategy | None, whose: str) -> None:
    for variable in variables:
        found = strategy_of(variable)
        if found is strategy:
            continue
        if strategy is None:
            expected = f"the others outside of any scope, but it in that of {found!r}"
        elif found is None:
            expected = f"the model belongs to {strategy!r}, but it was created outside of any scope"
        else:
            expected = f"the model belongs to {strategy!r}, but it was created in that of {found!r}"
        raise ContextError(
            f"Every variable of a Keras model, its optimizer and its metrics must be created in the "
            f"same strategy's scope, got {variable.path!r} {whose} of which: {expected}. Make the "
            "model, its layers, the optimizer and the metrics inside of `with strategy.scope():`; to "
            "bring weights along, use model.get_weights() and set_weights(), or load_model() in the "
            "scope."
        )


def _current() -> Strategy | None:
    strategy = context.get_strategy() if context.has_strategy() else None
    assert strategy is None or isinstance(strategy, Strategy)
    return strategy
