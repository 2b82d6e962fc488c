"""Views of variables of ``stratagem`` as Keras variables, for Keras optimizers."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import VariableError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import KerasOptimizer, in_stateless_scope
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["as_keras_variables"]


def as_keras_variables(optimizer: KerasOptimizer, variables: list[Any]) -> list[Any]:
    """Returns the variables, with a Keras view instead of each ``stratagem.Variable``.

    A view is a Keras variable whose twin is the variable itself: both have one value. An optimizer
    identifies its variables by object identity, so it always gets the view that it was built with.

    Raises:
        VariableError: If a new view is needed in a ``keras.StatelessScope``.
    """
    trained = list(optimizer._trainable_variables)
    if not any(is_own_variable(v) for v in (*variables, *trained)):
        return variables
    for index, variable in enumerate(trained):
        if is_own_variable(variable):  # the program called optimizer.build
            view = trained[index] = _view_of(optimizer, variable)
            optimizer._trainable_variables_indices[optimizer._var_key(view)] = index
    # Bypasses Keras's attribute tracking, which would count the views as the optimizer's own variables.
    object.__setattr__(optimizer, "_trainable_variables", trained)
    known = {id(v.twin): v for v in trained if isinstance(v, PlacedVariable)}
    for variable in variables:
        if is_own_variable(variable) and id(variable) not in known:
            known[id(variable)] = _view_of(optimizer, variable)
    return [known[id(v)] if is_own_variable(v) else v for v in variables]


def _view_of(optimizer: KerasOptimizer, variable: Variable) -> PlacedVariable:
    if in_stateless_scope():
        raise VariableError(
            f"A Keras optimizer must be built with stratagem.Variable {variable.name!r} before it is used "
            f"in a keras.StatelessScope, but {optimizer.name!r} is not. Call optimizer.build(variables) "
            "first."
        )
    view = object.__new__(PlacedVariable)
    default: Any = context.default_frame().strategy
    view.strategy = getattr(variable, "distribute_strategy", default)
    view.twin = variable
    keras.Variable.__init__(
        view,
        "zeros",  # never used: the value is the twin's
        shape=tuple(variable.shape),
        dtype=variable.dtype,
        trainable=variable.trainable,
        name=variable.name.replace("/", "_"),
    )
    view._constraint = variable.constraint
    return view
