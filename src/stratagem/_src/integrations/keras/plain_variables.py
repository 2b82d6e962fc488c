"""Keras variables that were created outside of any scope, used in compiled functions and replicas."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import keras

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import ArrayLike
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.data_step_scope import is_read_from_step
from stratagem._src.integrations.keras.keras_internals import (
    COMMON_VARIABLE,
    Argument,
    KerasVariable,
    stateless_value,
)
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.strategies.base import Strategy
from stratagem._src.variables import frames
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["adopt", "as_placed_variable", "patch_plain_variables", "twin_of"]


def patch_plain_variables() -> None:
    """Patches ordinary Keras variables to check their use in compiled functions and replicas.

    There a plain value would be wrong: a constant of the trace, or a value that replicas do not share.
    All Keras variables take ``sg.VariableAggregation`` and ``sg.VariableSynchronization``, where Keras has
    strings.
    """
    init = keras.Variable.__init__
    read = COMMON_VARIABLE.value.fget
    assign = keras.Variable._direct_assign

    @functools.wraps(init)
    def init_with_enums(variable: KerasVariable, *args: Argument, **kwargs: Argument) -> None:
        for name in ("aggregation", "synchronization"):
            option = kwargs.get(name)
            if isinstance(option, (VariableAggregation, VariableSynchronization)):
                kwargs[name] = option.name.lower()
        init(variable, *args, **kwargs)

    def value(variable: KerasVariable) -> Any:
        if frames.current_frame() is not None or context.has_strategy() or frames.records():
            _handle_use(variable)
        return read(variable)

    def direct_assign(variable: KerasVariable, new: ArrayLike) -> None:
        if frames.current_frame() is not None or context.has_strategy():
            _handle_use(variable)
            if isinstance(variable, PlacedVariable):
                variable._direct_assign(new)
                return
        assign(variable, new)

    keras.Variable.__init__ = init_with_enums
    keras.Variable.value = property(value, doc=COMMON_VARIABLE.value.__doc__)
    keras.Variable._direct_assign = direct_assign


def _handle_use(variable: KerasVariable) -> None:
    if stateless_value(variable) is not None:
        return
    if not context.has_strategy():
        as_placed_variable(variable)
    elif frames.current_frame() is not None or not context.in_cross_replica_context():
        raise ContextError(
            f"Keras variable {variable.path!r} was created outside of the scope of "
            f"{context.get_strategy()!r} and cannot be used in its replicas. Create the model, its "
            "optimizer and its metrics inside `with strategy.scope():`."
        )
    elif frames.records():
        # A gradient tape only records variables of this library.
        as_placed_variable(variable)


def as_placed_variable(variable: KerasVariable) -> PlacedVariable:
    """Returns a Keras variable as a ``PlacedVariable``; converts an ordinary one in place."""
    if not isinstance(variable, PlacedVariable):
        value = variable.__dict__.pop("_value", None)
        variable.__class__ = PlacedVariable
        variable.strategy = context.default_frame().strategy
        with frames.outside_of_frames():
            evaluate_now(lambda: setattr(variable, "_value", value))
    made: PlacedVariable = variable
    return made


def adopt(variables: Iterable[Any], strategy: Strategy) -> None:
    """Converts ordinary Keras variables to variables of a strategy, with their current values."""
    for variable in variables:
        owner = getattr(variable, "strategy", None)
        if owner is None or owner is context.default_frame().strategy:
            value = as_placed_variable(variable).own_twin().read_value()
            variable.strategy, variable.twin = strategy, None
            variable._value = value


def twin_of(variable: KerasVariable) -> Variable:
    """Returns the ``stratagem.Variable`` that holds the value of a Keras variable.

    In a step that changes variables in place it is the Keras variable, which tapes record there.
    """
    if is_read_from_step(variable):
        recorded: Any = variable
        return recorded
    return as_placed_variable(variable).own_twin()
