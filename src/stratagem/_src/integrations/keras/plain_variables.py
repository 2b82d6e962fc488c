"""Keras variables that were created outside of any scope, met by functions and replicas of ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from stratagem._src.core.errors import ContextError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import COMMON_VARIABLE, stateless_value
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.strategies.base import Strategy
from stratagem._src.variables import access as state
from stratagem._src.variables.variable import Variable

__all__ = ["adopt", "placed", "twin_of", "watch_plain_variables"]


def watch_plain_variables() -> None:
    """Makes ordinary Keras variables see when they are used where a value alone would be wrong."""
    read = COMMON_VARIABLE.value.fget
    assign = keras.Variable._direct_assign

    def value(variable: Any) -> Any:
        if state.current_frame() is not None or context.has_strategy() or state.records():
            _meet(variable)
        return read(variable)

    def direct_assign(variable: Any, new: Any) -> None:
        if state.current_frame() is not None or context.has_strategy():
            _meet(variable)
            if isinstance(variable, PlacedVariable):
                variable._direct_assign(new)
                return
        assign(variable, new)

    keras.Variable.value = property(value, doc=COMMON_VARIABLE.value.__doc__)
    keras.Variable._direct_assign = direct_assign


def _meet(variable: Any) -> None:
    if stateless_value(variable) is not None:
        return
    if not context.has_strategy():
        placed(variable)
    elif state.current_frame() is not None or not context.in_cross_replica_context():
        raise ContextError(
            f"Keras variable {variable.path!r} was created outside of the scope of "
            f"{context.get_strategy()!r} and cannot be used in its replicas. Create the model, its "
            "optimizer and its metrics inside `with strategy.scope():`."
        )
    elif state.records():
        # A gradient tape knows variables of ours.
        placed(variable)


def placed(variable: Any) -> PlacedVariable:
    """Returns a Keras variable as one with a twin; an ordinary one becomes a plain variable's twin."""
    if not isinstance(variable, PlacedVariable):
        value = variable.__dict__.pop("_value", None)
        variable.__class__ = PlacedVariable
        variable.strategy = context.default_frame().strategy
        with state.outside_of_frames():
            evaluate_now(lambda: setattr(variable, "_value", value))
    made: PlacedVariable = variable
    return made


def adopt(variables: Iterable[Any], strategy: Strategy) -> None:
    """Makes ordinary Keras variables variables of a strategy, with the values that they have."""
    for variable in variables:
        owner = getattr(variable, "strategy", None)
        if owner is None or owner is context.default_frame().strategy:
            value = placed(variable).own_twin().read_value()
            variable.strategy, variable.twin = strategy, None
            variable._value = value


def twin_of(variable: Any) -> Variable:
    """Returns the variable of ours that holds the value of a Keras variable."""
    return placed(variable).own_twin()
