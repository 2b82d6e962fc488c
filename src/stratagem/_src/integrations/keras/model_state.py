"""The state of a model while Keras takes it from step to step, and how it gets back into variables."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.integrations.keras.trainer_internals import (
    has_state_apart,
    note_state_in_variables,
    variables_of,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import STORAGE_LOCK, Variable
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["State", "give_back", "note", "put_back", "take"]

State = Sequence[Sequence[Any]]
"""An array for each variable, in one list for each part of the model."""

_latest: weakref.WeakKeyDictionary[Any, tuple[tuple[str, ...], State]]
_latest = weakref.WeakKeyDictionary()


def take(model: Any, parts: tuple[str, ...], group: ReplicaGroup, *, for_good: bool) -> State:
    """Returns the state of a model for steps, and notes it; ``note`` says what became of it.

    Args:
        model: The Keras model.
        parts: Of the state.
        group: The replicas.
        for_good: Whether it is given to a program, which may overwrite it.
    """
    state = tuple(
        [_take(variable, group, for_good=for_good) for variable in variables_of(model, part)]
        for part in parts
    )
    _latest[model] = (parts, state)
    return state


def note(model: Any, parts: tuple[str, ...], state: State) -> None:
    """Notes the state after a step that succeeded."""
    _latest[model] = (parts, state)


def put_back(model: Any, parts: Sequence[str], state: State, group: ReplicaGroup) -> None:
    """Gives the variables of a model the values that steps have led to."""
    for part, arrays in zip(parts, state, strict=True):
        # More variables if a layer made one meanwhile.
        for variable, array in zip(variables_of(model, part), arrays):  # noqa: B905
            _put(variable, array, group)
    note_state_in_variables(model)
    _latest.pop(model, None)


def give_back(model: Any, group: ReplicaGroup) -> None:
    """Puts the state after the last step that succeeded into the variables, if it is apart."""
    if has_state_apart(model) and model in _latest:
        put_back(model, *_latest[model], group)


def _take(variable: Any, group: ReplicaGroup, *, for_good: bool) -> Any:
    twin: Variable = variable.own_twin()
    if isinstance(twin, MirroredVariable):
        with STORAGE_LOCK:
            return twin.take_for_program(group, donate=for_good)
    # What the replicas' parts add up to. Of its own memory: the variable keeps what it has.
    is_sum = twin.aggregation is VariableAggregation.SUM
    if is_sum and isinstance(twin, SyncOnReadVariable) and not group.spans_processes:
        parts = [np.asarray(part) for part in twin.values]
        return group.replicate(functools.reduce(np.add, parts))
    return group.replicate(np.array(twin._eager_value()))


def _put(variable: Any, array: Any, group: ReplicaGroup) -> None:
    if array.is_deleted():
        return  # given to a program that was lost: the variable has nothing better either
    twin: Variable = variable.own_twin()
    if array.dtype != twin.dtype or array.shape != tuple(twin.shape):
        variable.assign(group.local_view(array))
    elif isinstance(twin, MirroredVariable):
        with STORAGE_LOCK:
            twin.store(group.replicate(array))
    elif twin.aggregation is VariableAggregation.SUM and group.size > 1:
        # All of it in one replica: equal shares would be rounded.
        value = np.asarray(group.local_view(array))
        parts = [value, *[np.zeros_like(value)] * (group.local_size - 1)]
        if group.first_local:
            parts[0] = parts[-1] if len(parts) > 1 else np.zeros_like(value)
        with STORAGE_LOCK:
            twin.store(group.join(parts))
    else:
        twin.assign(group.local_view(array))
