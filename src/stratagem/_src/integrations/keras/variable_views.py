"""Variables of ours as Keras sees them, so that its optimizers update them."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import VariableError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import in_stateless_scope
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.variables.variable import Variable

__all__ = ["viewed"]


def viewed(optimizer: Any, variables: list[Any]) -> list[Any]:
    """Returns variables with a Keras view in the place of each ``stratagem.Variable``.

    A view is a Keras variable whose twin is the variable itself: both have one value. An optimizer knows
    its variables by identity, so it gets the view that it was built with each time.

    Raises:
        VariableError: If Keras keeps values apart from variables, and a view cannot be made.
    """
    trained = list(optimizer._trainable_variables)
    if not any(isinstance(v, Variable) for v in (*variables, *trained)):
        return variables
    for index, variable in enumerate(trained):
        if isinstance(variable, Variable):  # the program called optimizer.build
            view = trained[index] = _view_of(optimizer, variable)
            optimizer._trainable_variables_indices[optimizer._var_key(view)] = index
    # Not an attribute as others: Keras would count what it holds among the optimizer's own variables.
    object.__setattr__(optimizer, "_trainable_variables", trained)
    known = {id(v.twin): v for v in trained if isinstance(v, PlacedVariable)}
    for variable in variables:
        if isinstance(variable, Variable) and id(variable) not in known:
            known[id(variable)] = _view_of(optimizer, variable)
    return [known[id(v)] if isinstance(v, Variable) else v for v in variables]


def _view_of(optimizer: Any, variable: Variable) -> PlacedVariable:
    if in_stateless_scope():
        raise VariableError(
            f"A Keras optimizer cannot meet stratagem.Variable {variable.name!r} for the first time where "
            f"Keras keeps values apart from variables. Build {optimizer.name!r} before: "
            "optimizer.build(variables)."
        )
    view = object.__new__(PlacedVariable)
    default: Any = context.default_frame().strategy
    view.strategy = getattr(variable, "distribute_strategy", default)
    view.twin = variable
    keras.Variable.__init__(
        view,
        "zeros",  # not asked: the value is the twin's
        shape=tuple(variable.shape),
        dtype=variable.dtype,
        trainable=variable.trainable,
        name=variable.name.replace("/", "_"),
    )
    view._constraint = variable.constraint
    return view
