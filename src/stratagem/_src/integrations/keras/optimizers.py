"""Keras optimizers in replicas and in compiled functions, also with variables of ``stratagem``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from stratagem._src.core.errors import (
    ContextError,
    NotAnArrayError,
    ShapeMismatchError,
)
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.integrations.keras.data_step_scope import DataStepScope
from stratagem._src.integrations.keras.keras_internals import (
    APPLY,
    APPLY_SCALED,
    KerasOptimizer,
    KerasVariable,
    current_stateless_scope,
    in_stateless_scope,
)
from stratagem._src.integrations.keras.optimizer_building import build_optimizer
from stratagem._src.integrations.keras.placed_variable import PlacedVariable, strategy_of
from stratagem._src.integrations.keras.remote_apply import apply_on_servers, is_remote
from stratagem._src.integrations.keras.replicas import multi_replica_context
from stratagem._src.integrations.keras.variable_views import as_keras_variables
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.summed_means import warn_of_large_sums
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import frames

__all__ = ["apply", "apply_gradients", "apply_scaled"]

_NewValues = list[tuple[Any, Any]]


def apply(optimizer: KerasOptimizer, grads: PyTree, trainable_variables: PyTree = None) -> None:
    """Replaces ``Optimizer.apply``: all replicas take one step with the sum of their gradients."""
    _apply_together(APPLY, _step, optimizer, grads, trainable_variables)


def apply_gradients(
    optimizer: KerasOptimizer,
    grads_and_vars: Iterable[tuple[Any, Any]],
    name: str | None = None,
    skip_gradients_aggregation: bool = False,
    experimental_aggregate_gradients: bool = True,
) -> Any:
    """Replaces ``Optimizer.apply_gradients``, which has fewer arguments than in Keras 2.

    Args:
        optimizer: The optimizer.
        grads_and_vars: Pairs of a gradient and its variable.
        name: Ignored.
        skip_gradients_aggregation: Whether the replicas have summed the gradients already: those of the
            first replica are applied.
        experimental_aggregate_gradients: The opposite of ``skip_gradients_aggregation``, its older name.

    Returns:
        The number of steps.
    """
    grads, variables = zip(*grads_and_vars, strict=True)
    is_summed = skip_gradients_aggregation or not experimental_aggregate_gradients
    if is_summed and multi_replica_context() is not None and not in_stateless_scope():
        step = _scaled_step if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else _step
        original = APPLY if step is _step else APPLY_SCALED
        _apply_together(original, step, optimizer, grads, list(variables), is_summed=True)
    else:
        optimizer.apply(grads, variables)
    return optimizer._iterations


def apply_scaled(
    optimizer: KerasOptimizer, grads: PyTree, trainable_variables: PyTree = None
) -> None:
    """Replaces ``LossScaleOptimizer.apply``."""
    _apply_together(APPLY_SCALED, _scaled_step, optimizer, grads, trainable_variables)


def _apply_together(
    original: Callable[..., None],
    step: Callable[[Any, list[Any], list[Any]], _NewValues],
    optimizer: KerasOptimizer,
    grads: PyTree,
    trainable_variables: PyTree,
    *,
    is_summed: bool = False,
) -> None:
    grads = list(grads)
    if trainable_variables is None:
        variables = as_keras_variables(optimizer, list(optimizer._trainable_variables))
    else:
        variables = trainable_variables = as_keras_variables(optimizer, list(trainable_variables))
    replica = multi_replica_context()
    in_function = frames.current_frame() is not None
    if in_stateless_scope() or not grads or len(grads) != len(variables):
        if isinstance(current_stateless_scope(), DataStepScope) and step is _scaled_step:
            # The original assigns in a conditional, which values cannot leave.
            _take_step(step, optimizer, grads, variables)
            return
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
        extended = strategy.extended
        if is_summed:
            summed = iter([extended.first_replica(gradient) for gradient in present])
        else:
            options = extended.gradient_options
            summed = iter(extended.reduce_values(ReduceOp.SUM, present, options))
        together = [gradient if gradient is None else next(summed) for gradient in grads]
        _take_step(step, optimizer, together, variables)

    present = [gradient for gradient in grads if gradient is not None]
    if not is_summed:
        num_replicas = replica.num_replicas_in_sync
        warn_of_large_sums(optimizer.name, present, num_replicas, has_option=False)
    replica.merge_per_replica(f"apply of {optimizer.name!r}", take_step, present)


def _check_shape(gradient: ArrayLike, variable: KerasVariable) -> None:
    if gradient is None or isinstance(gradient, PerReplica):
        return
    shape = tuple(variable.shape)
    if isinstance(gradient, IndexedSlices):
        received = (*shape[:1], *np.shape(gradient.values)[1:])
    else:
        received = tuple(np.shape(gradient))
    if received != shape:
        raise ShapeMismatchError(
            f"A gradient must have the shape of its variable, got {received} for {variable.path!r} of "
            f"shape {shape}. Pass gradients and variables to the optimizer in the same order."
        )


def _check_strategy(
    optimizer: KerasOptimizer, strategy: Strategy | None, current: Strategy
) -> None:
    if strategy is not current:
        where = "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"
        raise ContextError(
            f"Keras optimizer {optimizer.name!r} and the variables it updates were created {where}, and "
            f"cannot be used in a replica of {current!r}. Create them inside `with strategy.scope():`."
        )


def _take_step(
    step: Callable[[Any, list[Any], list[Any]], _NewValues],
    optimizer: KerasOptimizer,
    grads: list[Any],
    variables: list[Any],
) -> None:
    """Computes all new values before assigning any, so that a failing step changes nothing."""
    if not optimizer.built:
        build_optimizer(optimizer, variables)
    if any(map(is_remote, variables)):
        optimizer._check_variables_are_known(variables)
        apply_on_servers(optimizer, grads, variables)
        return
    grads = [
        _move_to_variable(gradient, variable)
        for gradient, variable in zip(grads, variables, strict=True)
    ]
    for variable, value in step(optimizer, grads, variables):
        variable.assign(value)


def _step(optimizer: KerasOptimizer, grads: list[Any], variables: list[Any]) -> _NewValues:
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


def _scaled_step(optimizer: KerasOptimizer, grads: list[Any], variables: list[Any]) -> _NewValues:
    given = {id(variable): gradient for variable, gradient in zip(variables, grads, strict=True)}
    trained, own = list(optimizer._trainable_variables), list(optimizer.variables)
    # Not `apply`, which assigns variables inside a conditional.
    new_trained, new_own = optimizer.stateless_apply(
        [variable.value for variable in own],
        [given.get(id(variable)) for variable in trained],
        [variable.value for variable in trained],
    )
    return [*zip(trained, new_trained, strict=True), *zip(own, new_own, strict=True)]


def _unique(variables: Sequence[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def _move_to_variable(gradient: ArrayLike, variable: KerasVariable) -> Any:
    """Moves a gradient to the devices of its variable."""
    value = variable.value
    if isinstance(gradient, PerReplica):
        raise NotAnArrayError(
            f"The gradient of {variable.path!r} is a PerReplica. Reduce it first, by "
            "strategy.reduce('SUM', gradients), or call optimizer.apply() in the replicas."
        )
    if gradient is None or is_tracer(gradient) or is_tracer(value):
        return gradient
    return jax.device_put(gradient, value.sharding)
