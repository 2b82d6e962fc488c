"""``apply`` of Keras optimizers for variables on parameter servers, which take the step."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import keras

from stratagem._src.core.errors import ContextError, UnsupportedError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import Tensor
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import (
    ADD_SLOT,
    Argument,
    KerasOptimizer,
    KerasVariable,
)
from stratagem._src.integrations.keras.server_step import (
    KerasStep,
    SlotIds,
    decays_of,
    update_one,
)
from stratagem._src.integrations.keras.variable_views import as_keras_variables
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.protocol.serialization import serialize
from stratagem._src.parameter_server.server.server_function import DENSE_FUNCTION, ROW_FUNCTION
from stratagem._src.strategies.parameter_server import ParameterServerExtended
from stratagem._src.variables import frames, remote_batch
from stratagem._src.variables.laid_out_variable import LaidOutVariable, laid_out_like
from stratagem._src.variables.updates import update_on_server

__all__ = ["add_slot", "apply_on_servers", "is_remote", "server_step_of", "slot_owner"]

_STEP = "_stratagem_server_step"

# Their step for an element of a variable depends on other elements.
_NOT_ELEMENTWISE = (keras.optimizers.Lamb, keras.optimizers.Muon)
_ELEMENTWISE_CONSTRAINTS = (keras.constraints.NonNeg,)


def is_remote(variable: KerasVariable) -> bool:
    """Returns whether a Keras variable is on parameter servers."""
    return isinstance(getattr(variable, "twin", None), RemoteVariable)


def add_slot(
    optimizer: KerasOptimizer,
    reference_variable: KerasVariable,
    *args: Argument,
    **kwargs: Argument,
) -> Any:
    """Replaces ``Optimizer.add_variable_from_reference``: a slot is where its variable is."""
    if isinstance(reference_variable, RemoteVariable):  # the program called optimizer.build
        [reference_variable] = as_keras_variables(optimizer, [reference_variable])
    strategy = getattr(reference_variable, "strategy", None)
    if strategy is None or not isinstance(strategy.extended, ParameterServerExtended):
        twin = None if strategy is None else getattr(reference_variable, "twin", None)
        with laid_out_like(twin):
            slot = ADD_SLOT(optimizer, reference_variable, *args, **kwargs)
        if isinstance(twin, LaidOutVariable):
            slot.__dict__["slot_of"] = reference_variable
        return slot
    if strategy.extended.is_on_worker:
        raise ContextError(
            f"Keras optimizer {optimizer.name!r} must be built before a function that uses it is sent to "
            "workers, because all of them share its slots on the servers, but it is not: it is built "
            "by itself only if it is the one optimizer that a scheduled function carries, with a Keras "
            "model that it trains. Write `with strategy.scope(): "
            "optimizer.build(model.trainable_variables)` before the function is scheduled."
        )
    # In a stateless scope both get their values later: see PlacedVariable.
    place: AbstractContextManager[Any] = contextlib.nullcontext()
    if is_remote(reference_variable):
        place = strategy.extended.colocate_vars_with(reference_variable.own_twin())
    with context.enter(context.Frame(strategy, None)), place:
        slot = ADD_SLOT(optimizer, reference_variable, *args, **kwargs)
    slot.__dict__["slot_of"] = reference_variable
    return slot


def slot_owner(slot: KerasVariable) -> KerasVariable | None:
    """Returns the variable that a slot belongs to; ``None`` for other variables."""
    return slot.__dict__.get("slot_of")


def apply_on_servers(
    optimizer: KerasOptimizer, grads: list[Any], variables: list[KerasVariable]
) -> None:
    """Sends gradients to the servers of their variables, which take the optimizer's step.

    What a step needs of all gradients, as for clipping by the global norm, is computed here.

    Raises:
        UnsupportedError: If the optimizer needs synchronous replicas, or the step of a row or shard
            would depend on others.
    """
    grads, variables = optimizer._filter_empty_gradients(grads, variables)
    function = server_step_of(optimizer)
    for gradient, variable in zip(grads, variables, strict=True):
        _check_elementwise(optimizer, gradient, variable)
    indices = [g.indices if isinstance(g, IndexedSlices) else None for g in grads]
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    if clips:  # a norm is one of the dense gradient
        grads = [_combined(g) if isinstance(g, IndexedSlices) else g for g in grads]
        indices = [g.indices if isinstance(g, IndexedSlices) else None for g in grads]
    grads = [g.values if isinstance(g, IndexedSlices) else g for g in grads]
    if optimizer.loss_scale_factor is not None:
        grads = [g / optimizer.loss_scale_factor for g in grads]
    shared = _shared_variables(optimizer)
    before = [variable.value for variable in shared]
    rows_of = {id(v): rows for v, rows in zip(variables, indices, strict=True)}
    updates: list[tuple[RemoteVariable, Any, tuple[Any, ...]]] = []

    def send_step(gradient: Tensor, variable: KerasVariable, learning_rate: Tensor) -> None:
        rows = rows_of[id(variable)]
        name = DENSE_FUNCTION if rows is None else ROW_FUNCTION
        operands = (
            _as_array(gradient, variable.dtype),
            *(() if rows is None else (rows,)),
            jnp.asarray(learning_rate),
            *(scope.get_current_value(v) for v in shared),
        )
        updates.append((variable.own_twin(), update_on_server(name, function), operands))

    sending = object.__new__(type(optimizer))
    sending.__dict__.update(optimizer.__dict__)
    sending.__dict__["update_step"] = send_step
    with keras.StatelessScope(list(zip(shared, before, strict=True))) as scope:
        rate = optimizer.learning_rate
        rate = rate.value if isinstance(rate, keras.Variable) else rate
        sending._backend_update_step(optimizer._clip_gradients(grads), variables, rate)
        after = [scope.get_current_value(variable) for variable in shared]
    if frames.current_frame() is None:
        remote_batch.send(updates)
    else:
        for twin, update, operand in updates:
            twin.apply_update(update, operand)
    for variable, old, new in zip(shared, before, after, strict=True):
        if new is not old:
            variable.assign(new)
    optimizer._iterations.assign_add(1)


def _as_array(gradient: Tensor, dtype: str) -> Any:
    return jnp.asarray(gradient).astype(dtype)


def _combined(gradient: IndexedSlices) -> IndexedSlices:
    """Returns a sparse gradient with one row per index, padded with rows that count for nothing."""
    size = gradient.dense_shape[0] if gradient.dense_shape else jnp.iinfo(jnp.int32).max
    indices = jnp.asarray(gradient.indices)
    rows, positions = jnp.unique(
        indices, return_inverse=True, size=indices.shape[0], fill_value=size
    )
    values = jnp.zeros_like(gradient.values).at[positions.reshape(-1)].add(gradient.values)
    return IndexedSlices(values, rows, gradient.dense_shape)


def _shared_variables(optimizer: KerasOptimizer) -> list[KerasVariable]:
    """Returns the variables of an optimizer that belong to no variable, but for the learning rate."""
    rate = optimizer._learning_rate
    return [v for v in optimizer.variables if slot_owner(v) is None and v is not rate]


def _check_elementwise(
    optimizer: KerasOptimizer, gradient: Tensor, variable: KerasVariable
) -> None:
    twin = variable.own_twin()
    is_part = len(twin.shards) > 1 or twin.table is not None
    is_divided = is_part or isinstance(gradient, IndexedSlices)
    if not is_divided:
        return
    constraint = variable.constraint
    if isinstance(optimizer, _NOT_ELEMENTWISE):
        raise UnsupportedError(
            f"{type(optimizer).__name__} computes a step of a full variable, but {variable.path!r} is "
            "updated shard by shard or row by row on parameter servers. Use another optimizer, or a "
            "variable_partitioner that does not divide this variable."
        )
    if constraint is not None and not isinstance(constraint, _ELEMENTWISE_CONSTRAINTS):
        raise UnsupportedError(
            f"The constraint of {variable.path!r}, a {type(constraint).__name__}, needs the full variable, "
            "but it is updated shard by shard or row by row on parameter servers. Leave it out, or use "
            "NonNeg."
        )


# --- the function for the servers -------------------------------------------------------------------


def server_step_of(optimizer: KerasOptimizer) -> bytes:
    """Returns the serialized step of an optimizer, the same bytes in all processes.

    Raises:
        UnsupportedError: If servers cannot take its steps.
    """
    known: bytes | None = optimizer.__dict__.get(_STEP)
    if known is None:
        as_keras_variables(optimizer, [])  # those that the program has called optimizer.build with
        if optimizer.gradient_accumulation_steps or isinstance(
            optimizer, keras.optimizers.LossScaleOptimizer
        ):
            raise UnsupportedError(
                "gradient_accumulation_steps and LossScaleOptimizer need state in synchronized replicas, "
                "but the variables are on parameter servers, whose workers run asynchronously. Leave "
                "them out."
            )
        known = optimizer.__dict__[_STEP] = serialize(_make_step(optimizer))
    return known


def _make_step(optimizer: KerasOptimizer) -> KerasStep:
    trained, shared = list(optimizer._trainable_variables), _shared_variables(optimizer)
    slots = [[v for v in optimizer.variables if slot_owner(v) is one] for one in trained]
    valueless = {id(v): _without_value(v) for v in (*trained, *optimizer.variables)}
    made = object.__new__(type(optimizer))
    content = {k: v for k, v in optimizer.__dict__.items() if k not in ("_tracker", _STEP)}
    made.__dict__.update(copy.deepcopy(content, dict(valueless)))
    made.__dict__["_trainable_variables"] = [valueless[id(v)] for v in trained]
    made.__dict__["_variables"] = [valueless[id(v)] for v in optimizer.variables]
    first: dict[Any, int] = {}
    ids: dict[str, SlotIds] = {}
    for index, variable in enumerate(trained):
        same = first.setdefault(_program_key(optimizer, variable, index), index)
        if same == index:
            _check_step(optimizer, variable, slots[index])
        for position, shard in enumerate(variable.own_twin().shards):
            mine = tuple(slot.own_twin().shards[position].id for slot in slots[index])
            ids[shard.id] = SlotIds(same, mine)
    return KerasStep(
        made,
        decays_of(optimizer),
        [[valueless[id(slot)] for slot in mine] for mine in slots],
        [valueless[id(v)] for v in shared],
        ids,
    )


def _program_key(optimizer: KerasOptimizer, variable: KerasVariable, index: int) -> Any:
    """Returns a key that is equal for variables whose steps are the same program."""
    if not type(optimizer).__module__.startswith("keras.") or variable.constraint is not None:
        return index  # its step may depend on which variable it is
    if isinstance(optimizer, _NOT_ELEMENTWISE):
        return index
    return tuple(variable.shape), variable.dtype, optimizer._use_weight_decay(variable)


def _check_step(
    optimizer: KerasOptimizer, variable: KerasVariable, slots: Sequence[KerasVariable]
) -> None:
    """Checks by a trace that the step of one variable changes only the variable and its slots."""
    changed: list[str] = []

    def step(gradient: Tensor, rate: Tensor, values: list[Tensor]) -> None:
        state = list(zip([*optimizer.variables, variable], values, strict=True))
        with keras.StatelessScope(state) as scope:
            update_one(optimizer, variable, gradient, rate)
        mine = {id(v) for v in (variable, *slots)}
        changed.extend(
            v.path
            for v, value in state
            if id(v) not in mine and scope.get_current_value(v) is not value
        )

    like = jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)
    values = [
        jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in (*optimizer.variables, variable)
    ]
    with frames.outside_of_frames():
        jax.eval_shape(step, like, jax.ShapeDtypeStruct((), "float32"), values)
    if changed:
        raise UnsupportedError(
            "A step of a Keras optimizer on parameter servers may change the variable and its slots, which "
            f"add_variable_from_reference() creates, but that of {type(optimizer).__name__} for "
            f"{variable.path!r} changes {changed}. Use another optimizer, such as Adam."
        )


def _without_value(variable: KerasVariable) -> KerasVariable:
    made = object.__new__(keras.Variable)
    left_out = ("twin", "strategy", "taken", "_known", "_initializer", "_value", "slot_of")
    made.__dict__.update({k: v for k, v in variable.__dict__.items() if k not in left_out})
    made.__dict__.update(_initializer=None, _value=None)
    return made
