"""The state of a model while Keras takes it from step to step, and how it gets back into variables."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.integrations.keras.trainer_internals import (
    note_state_in_variables,
    variables_of,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import STORAGE_LOCK, Variable
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["Attempt", "State", "begin_step", "give_back", "take"]

State = Sequence[Sequence[Any]]
"""An array for each variable, in one list for each part of the model."""


class Attempt:
    """A step that a model is to take, and the state before or after it.

    An interrupt can arrive at any moment, also between the end of a program and an assignment, when the
    state before it has been given away already. So the results are put into ``finished`` by C.

    Attributes:
        parts: What the state consists of, as the model calls it.
        finished: What was computed; empty if that has not been done.
        read: Returns results and new state of what was computed.
    """

    def __init__(self, parts: tuple[str, ...], before: State) -> None:
        self.parts = parts
        self.finished: list[Any] = []
        self.read: Callable[[Any], tuple[Any, State]] = lambda computed: computed
        self._before = before

    @property
    def state(self) -> State:
        """The state after the step if it has succeeded, else before it."""
        return self.read(self.finished[0])[1] if self.finished else self._before

    def result(self) -> tuple[Any, State]:
        """Returns results and state of the step, which has succeeded."""
        return self.read(self.finished[0])


_latest: weakref.WeakKeyDictionary[Any, Attempt] = weakref.WeakKeyDictionary()


def take(model: Any, parts: tuple[str, ...], group: ReplicaGroup, *, for_good: bool) -> State:
    """Returns the state of a model for steps; until it is put back, variables are read there.

    Args:
        model: The Keras model.
        parts: Of the state.
        group: The replicas.
        for_good: Whether it is given to a program, which may overwrite it.
    """
    lists = [list(variables_of(model, part)) for part in parts]
    for variable in itertools.chain(*lists):
        variable.release()  # another model may have it
    state = tuple([_take(v, group, for_good=for_good) for v in variables] for variables in lists)
    _latest[model] = Attempt(parts, state)
    for part, variables in enumerate(lists):
        for position, variable in enumerate(variables):
            variable.taken = _Taken(model, group, part, position)
    return state


def begin_step(model: Any, parts: tuple[str, ...], state: State) -> Attempt:
    """Notes that a step begins, with the state after the last one."""
    attempt = Attempt(parts, state)
    _latest[model] = attempt
    return attempt


def give_back(model: Any, group: ReplicaGroup) -> None:
    """Gives the variables of a model the values that steps have led to, if those are apart."""
    attempt = _latest.get(model)
    if attempt is None:
        return
    for part, arrays in zip(attempt.parts, attempt.state, strict=True):
        # More variables if a layer made one meanwhile.
        for variable, array in zip(variables_of(model, part), arrays):  # noqa: B905
            _put(variable, array, group)
            variable.taken = None
    note_state_in_variables(model)
    _latest.pop(model, None)


class _Taken:
    """Where the value of a variable is while Keras takes a model from step to step."""

    def __init__(self, model: Any, group: ReplicaGroup, part: int, position: int) -> None:
        self._model = weakref.ref(model)
        self._group = group
        self._part = part
        self._position = position

    def value(self) -> Any | None:
        """Returns a copy, because the next step may overwrite it; ``None`` if it is not there."""
        model = self._model()
        attempt = None if model is None else _latest.get(model)
        if attempt is None:
            return None
        array = self._group.local_view(attempt.state[self._part][self._position])
        return None if array.is_deleted() else jax.device_put(np.array(array), array.sharding)

    def give_back(self) -> None:
        """Puts the whole state into the variables; Keras takes it from there for the next step."""
        model = self._model()
        if model is not None:
            give_back(model, self._group)


def _take(variable: Any, group: ReplicaGroup, *, for_good: bool) -> Any:
    twin: Variable = variable.twin
    if isinstance(twin, MirroredVariable):
        with STORAGE_LOCK:
            return twin.take_for_program(group, donate=for_good)
    # What the replicas' parts add up to. Of its own memory: the variable keeps what it has.
    is_sum = twin.aggregation is VariableAggregation.SUM
    if is_sum and isinstance(twin, SyncOnReadVariable) and not group.spans_processes:
        return group.replicate(twin.sum_on_host())
    return group.replicate(np.array(twin._eager_value()))


def _put(variable: Any, array: Any, group: ReplicaGroup) -> None:
    if array.is_deleted():
        return  # given to a program that was lost: the variable has nothing better either
    twin: Variable = variable.twin
    if array.dtype != twin.dtype or array.shape != tuple(twin.shape):
        variable.taken = None
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
