"""Keras optimizers in replicas and in compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from stratagem._src.core.errors import (
    ContextError,
    NotAnArrayError,
    ShapeMismatchError,
)
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.integrations.keras.keras_internals import (
    APPLY,
    APPLY_SCALED,
    in_stateless_scope,
)
from stratagem._src.integrations.keras.placed_variable import PlacedVariable, strategy_of
from stratagem._src.integrations.keras.replicas import one_of_several
from stratagem._src.integrations.keras.variable_views import viewed
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.strategies.base import Strategy
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import access as state

__all__ = ["apply", "apply_scaled"]

_NewValues = list[tuple[Any, Any]]


def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
    """Takes the place of ``Optimizer.apply``: replicas take one step together, with their sum."""
    _apply_together(APPLY, _step, optimizer, grads, trainable_variables)


def apply_scaled(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
    """Takes the place of ``LossScaleOptimizer.apply``."""
    _apply_together(APPLY_SCALED, _scaled_step, optimizer, grads, trainable_variables)


def _apply_together(
    original: Callable[..., None],
    step: Callable[[Any, list[Any], list[Any]], _NewValues],
    optimizer: Any,
    grads: Any,
    trainable_variables: Any,
) -> None:
    grads = list(grads)
    if trainable_variables is None:
        variables = viewed(optimizer, list(optimizer._trainable_variables))
    else:
        variables = trainable_variables = viewed(optimizer, list(trainable_variables))
    replica = one_of_several()
    in_function = state.current_frame() is not None
    if in_stateless_scope() or not grads or len(grads) != len(variables):
        original(optimizer, grads, trainable_variables)
        return
    for gradient, variable in zip(grads, variables, strict=True):
        _check_shape(gradient, variable)
    touched = [*variables, *optimizer.variables]
    strategy = strategy_of(touched)
    if replica is None:
        if not in_function and not any(isinstance(v, PlacedVariable) for v in touched):
            original(optimizer, grads, trainable_variables)
        else:
            _take_step(step, optimizer, grads, variables)
        return
    _check_strategy(optimizer, strategy, replica.strategy)

    def take_step(strategy: StrategyProtocol, present: list[Any]) -> None:
        options = strategy.extended.gradient_options
        summed = iter(strategy.extended.reduce_values(ReduceOp.SUM, present, options))
        together = [gradient if gradient is None else next(summed) for gradient in grads]
        _take_step(step, optimizer, together, variables)

    present = [gradient for gradient in grads if gradient is not None]
    replica.merge_per_replica(f"apply of {optimizer.name!r}", take_step, present)


def _check_shape(gradient: Any, variable: Any) -> None:
    if gradient is None or isinstance(gradient, PerReplica):
        return
    received, shape = tuple(np.shape(gradient)), tuple(variable.shape)
    if received != shape:
        raise ShapeMismatchError(
            f"A gradient has the shape of its variable, got {received} for {variable.path!r} of shape "
            f"{shape}. Give the optimizer gradients and variables in the same order."
        )


def _check_strategy(optimizer: Any, strategy: Strategy | None, current: Strategy) -> None:
    if strategy is not current:
        where = "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"
        raise ContextError(
            f"Keras optimizer {optimizer.name!r} and the variables it updates were created {where}, and "
            f"cannot be used in a replica of {current!r}. Create them inside `with strategy.scope():`."
        )


def _take_step(
    step: Callable[[Any, list[Any], list[Any]], _NewValues],
    optimizer: Any,
    grads: list[Any],
    variables: list[Any],
) -> None:
    """Computes all new values first, so that a step that fails changes nothing."""
    if not optimizer.built:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)
    grads = [
        _beside(gradient, variable) for gradient, variable in zip(grads, variables, strict=True)
    ]
    for variable, value in step(optimizer, grads, variables):
        variable.assign(value)


def _step(optimizer: Any, grads: list[Any], variables: list[Any]) -> _NewValues:
    state_of = _unique([*variables, *optimizer._trainable_variables, *optimizer.variables])
    before = [variable.value for variable in state_of]
    with keras.StatelessScope(list(zip(state_of, before, strict=True))) as scope:
        APPLY(optimizer, grads, variables)
    after = [scope.get_current_value(variable) for variable in state_of]
    return [
        (variable, new)
        for variable, old, new in zip(state_of, before, after, strict=True)
        if new is not old
    ]


def _scaled_step(optimizer: Any, grads: list[Any], variables: list[Any]) -> _NewValues:
    given = {id(variable): gradient for variable, gradient in zip(variables, grads, strict=True)}
    trained, own = list(optimizer._trainable_variables), list(optimizer.variables)
    # Not `apply`, which assigns inside a conditional.
    new_trained, new_own = optimizer.stateless_apply(
        [variable.value for variable in own],
        [given.get(id(variable)) for variable in trained],
        [variable.value for variable in trained],
    )
    return [*zip(trained, new_trained, strict=True), *zip(own, new_own, strict=True)]


def _unique(variables: Sequence[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def _beside(gradient: Any, variable: Any) -> Any:
    """Returns a gradient on the devices where its variable is."""
    value = variable.value
    if isinstance(gradient, PerReplica):
        raise NotAnArrayError(
            f"The gradient of {variable.path!r} is a PerReplica. Reduce it first, by "
            "strategy.reduce('SUM', gradients), or call optimizer.apply() in the replicas."
        )
    if gradient is None or is_tracer(gradient) or is_tracer(value):
        return gradient
    return jax.device_put(gradient, value.sharding)
