"""The state of a model while Keras takes it from step to step, and how it gets back into variables."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError
from stratagem._src.integrations.keras.trainer_internals import (
    note_state_in_variables,
    variables_of,
)
from stratagem._src.mesh.dispatch_queue import interrupting_error
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.atomicity import STORAGE_LOCK, Owner, own, put
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = [
    "Attempt",
    "State",
    "begin_step",
    "check_trained_here",
    "end_step",
    "give_back",
    "take",
    "trained_elsewhere_error",
]

State = Sequence[Sequence[Any]]
"""An array for each variable, in one list for each part of the model."""


class Attempt:
    """The step that a model takes, or has taken last, and the state before or after it.

    An interrupt can arrive at any moment, also between the end of a program and an assignment, when the
    state before it has been given away already. So the results are put into ``finished`` by C.

    Attributes:
        parts: What the state consists of, as the model calls it.
        finished: What was computed; empty if that has not been done.
        read: Returns results and new state of what was computed.
        running: Whether the step has begun and not ended. Its program may donate the arrays of the state
            at any moment, so a signal handler or another thread that asks meanwhile gets copies.
        was_read: Whether somebody has got copies; then ``owner`` owns the variables until the step ends.
        given_back: Whether the variables have the state again.
    """

    def __init__(self, parts: tuple[str, ...], before: State) -> None:
        self.parts = parts
        self.finished: list[Any] = []
        self.read: Callable[[Any], tuple[Any, State]] = lambda computed: computed
        self.running = False
        self.was_read = False
        self.owner = Owner()
        self.given_back = False
        self.before = before

    @property
    def state(self) -> State:
        """The state after the step if it has succeeded, else before it."""
        return self.read(self.finished[0])[1] if self.finished else self.before

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread takes the model from step to step, or the one that did is gone."""
        thread = self.owner.thread
        return thread is threading.current_thread() or not thread.is_alive()

    def begin(self, state: State) -> bool:
        """Begins the next step; returns whether it has, which it has not if the state was given back."""
        # One assignment, and no call in it: a signal handler finds all of it done or nothing.
        self.before, self.finished, self.running = state, [], True
        self.running = not self.given_back
        return self.running

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
    for variable in itertools.chain(*(variables_of(model, part) for part in parts)):
        if variable.taken is not None:
            variable.taken.check_not_running()
            variable.release()  # another model may have it
    lists = [list(variables_of(model, part)) for part in parts]
    state = tuple([_take(variable, group) for variable in variables] for variables in lists)
    _latest[model] = Attempt(parts, state)
    for part, variables in enumerate(lists):
        for position, variable in enumerate(variables):
            variable.taken = _Taken(model, group, part, position)
    if for_good:
        # Only now: a signal handler that reads a variable before it is taken shares its array.
        for arrays, variables in zip(state, lists, strict=True):
            arrays[:] = [_own(v, a, group) for v, a in zip(variables, arrays, strict=True)]
    return state


def begin_step(
    model: Any, parts: tuple[str, ...], state: State, group: ReplicaGroup, *, for_good: bool
) -> tuple[Attempt, State]:
    """Begins a step, and returns the attempt at it and the state for it. ``end_step`` must follow.

    The state is ``state``, the one after the last step, unless it has been given back since: then somebody
    else may read and change the variables that hold it, and it is taken from there.
    """
    attempt = _latest.get(model)
    while attempt is None or not attempt.begin(state):
        state = take(model, parts, group, for_good=for_good)
        attempt = _latest.get(model)
    return attempt, state


def end_step(model: Any, group: ReplicaGroup) -> None:
    """Ends the step that this thread takes with a model, if it takes one; harmless when done again."""
    attempt = _latest.get(model)
    if attempt is None or not attempt.is_of_this_thread:
        return
    attempt.running = False
    if attempt.was_read:
        attempt.owner.end()
        attempt.was_read = False
        give_back(model, group)


def check_trained_here(model: Any) -> None:
    """Checks that no other thread takes a model from step to step.

    Raises:
        ContextError: If one does.
    """
    attempt = _latest.get(model)
    if attempt is not None and not attempt.is_of_this_thread:
        raise trained_elsewhere_error(model, attempt.owner.thread.name)


def trained_elsewhere_error(model: Any, thread: str) -> ContextError:
    """Returns what a thread is told that needs what the steps of another thread have.

    Args:
        model: The Keras model.
        thread: The name of the other thread.
    """
    return ContextError(
        f"Thread {threading.current_thread().name!r} cannot train or run the Keras model {model.name!r}, "
        f"nor save or change its variables, while thread {thread!r} trains or runs it: "
        "its steps have them. Do it in a callback, or after that call. Reading weights works in any thread."
    )


def give_back(model: Any, group: ReplicaGroup) -> None:
    """Gives the variables of a model the values that steps have led to, if those are apart.

    While a step is running they get copies of the values before it: the arrays are the step's. Nothing
    happens in other threads than the one that takes the steps.
    """
    attempt = _latest.get(model)
    if attempt is None or attempt.was_read or not attempt.is_of_this_thread:
        return
    running = attempt.running
    for part, arrays in zip(attempt.parts, attempt.state, strict=True):
        # More variables if a layer made one meanwhile.
        for variable, array in zip(variables_of(model, part), arrays):  # noqa: B905
            if running:
                _put(variable, group.replicate(np.array(group.local_view(array))), group)
            else:
                _put(variable, array, group)
                variable.taken = None
    if running:
        # What others assign until the step has ended would be lost.
        twins = (v.twin for part in attempt.parts for v in variables_of(model, part))
        own(attempt.owner, twins)
        attempt.was_read = True
        return
    attempt.given_back = True
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
        # Under the lock no step is launched, which might donate the array.
        with STORAGE_LOCK:
            array = self._group.local_view(attempt.state[self._part][self._position])
            if array.is_deleted():
                return None
            if not attempt.is_of_this_thread:
                # Not waited for with the lock held: a callback of the step may want it.
                array = jnp.copy(array)
        return jax.device_put(np.array(array), array.sharding)

    def check_not_running(self) -> None:
        """Checks that no step is running that will replace the value.

        Raises:
            ContextError: If one is: in a signal handler, or in another thread.
        """
        model = self._model()
        attempt = None if model is None else _latest.get(model)
        if attempt is not None and attempt.running:
            raise interrupting_error()

    def give_back(self) -> None:
        """Puts the whole state into the variables; Keras takes it from there for the next step."""
        model = self._model()
        if model is not None:
            check_trained_here(model)
            give_back(model, self._group)


def _take(variable: Any, group: ReplicaGroup) -> Any:
    twin: Variable = variable.twin
    if isinstance(twin, MirroredVariable):
        with STORAGE_LOCK:
            return twin.take_for_program(group, donate=False)
    # What the replicas' parts add up to. Of its own memory: the variable keeps what it has.
    if (known := variable.known_value()) is not None:
        return group.replicate(np.array(known))
    is_sum = twin.aggregation is VariableAggregation.SUM
    if is_sum and isinstance(twin, SyncOnReadVariable) and not group.spans_processes:
        return group.replicate(twin.sum_on_host())
    return group.replicate(np.array(twin._eager_value()))


def _own(variable: Any, array: Any, group: ReplicaGroup) -> Any:
    """Returns the array that was taken, or a copy if somebody else holds it too."""
    twin: Variable = variable.twin
    if not isinstance(twin, MirroredVariable):
        return array
    with STORAGE_LOCK:
        return twin.take_for_program(group, donate=True)


def _put(variable: Any, array: Any, group: ReplicaGroup) -> None:
    if array.is_deleted():
        return  # given to a program that was lost: the variable has nothing better either
    twin: Variable = variable.twin
    if array.dtype != twin.dtype or array.shape != tuple(twin.shape):
        variable.taken = None
        variable.assign(group.local_view(array))
    elif isinstance(twin, MirroredVariable):
        put(twin, group.replicate(array))
    elif twin.aggregation is VariableAggregation.SUM and group.size > 1:
        # All of it in one replica: equal shares would be rounded.
        value = np.asarray(group.local_view(array))
        parts = [value, *[np.zeros_like(value)] * (group.local_size - 1)]
        if group.first_local:
            parts[0] = parts[-1] if len(parts) > 1 else np.zeros_like(value)
        put(twin, group.join(parts))
    else:
        twin.assign(group.local_view(array))
    if group.spans_processes and isinstance(twin, SyncOnReadVariable):
        local = group.local_view(array)
        variable.note_value(jax.device_put(np.array(local), local.sharding))
