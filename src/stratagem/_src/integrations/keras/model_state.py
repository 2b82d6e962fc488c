"""The state of a model while Keras runs steps, and its return to the variables.

During ``fit`` the arrays of a model are not in its variables: Keras passes them from step to step, and a
step may donate them. This module records where the arrays are, so that variables can still be used: in
callbacks, in signal handlers and in other threads.
"""

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
from stratagem._src.core.types import Tensor
from stratagem._src.integrations.keras.keras_internals import KerasModel, KerasVariable
from stratagem._src.integrations.keras.trainer_internals import (
    note_state_in_variables,
    variables_of,
)
from stratagem._src.mesh.dispatch_queue import interrupting_error
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.central_variable import CentralVariable
from stratagem._src.variables.locking import STORAGE_LOCK, Owner, acquire, store_private_copy
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
    "return_state",
    "take_state",
    "trained_elsewhere_error",
]

State = Sequence[Sequence[Any]]
"""The arrays of a model's variables, one list for each part of the model."""


class Attempt:
    """The current or latest step of a model, and the state before or after it.

    An interrupt can arrive at any moment, also between the end of a program and the assignment of its
    result, when the old state has been donated already. So C code appends the results to ``finished``.

    Attributes:
        parts: The parts of the state, by their attribute names in the model.
        finished: The computed results; empty until the step has finished.
        read: Extracts the result and the new state from the computed results.
        running: Whether the step has begun and not ended. Its program may donate the arrays of the state
            at any moment, so a signal handler or another thread that reads them meanwhile gets copies.
        was_read: Whether such copies exist; then ``owner`` locks the variables until the step ends.
        is_returned: Whether the state is in the variables again.
    """

    def __init__(self, parts: tuple[str, ...], before: State) -> None:
        self.parts = parts
        self.finished: list[Any] = []
        self.read: Callable[[Any], tuple[Any, State]] = lambda computed: computed
        self.running = False
        self.was_read = False
        self.owner = Owner()
        self.is_returned = False
        self.before = before

    @property
    def state(self) -> State:
        """The state after the step if it has finished, otherwise the state before it."""
        return self.read(self.finished[0])[1] if self.finished else self.before

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread runs the steps, or the thread that ran them has ended."""
        thread = self.owner.thread
        return thread is threading.current_thread() or not thread.is_alive()

    def begin(self, state: State) -> bool:
        """Begins the next step; returns ``False`` if the state has been returned to the variables."""
        # One assignment without a call: a signal handler sees either all of it or nothing.
        self.before, self.finished, self.running = state, [], True
        self.running = not self.is_returned
        return self.running

    def result(self) -> tuple[Any, State]:
        """Returns the result and state of the finished step."""
        return self.read(self.finished[0])


_latest: weakref.WeakKeyDictionary[Any, Attempt] = weakref.WeakKeyDictionary()


def take_state(
    model: KerasModel, parts: tuple[str, ...], group: ReplicaGroup, *, donate: bool
) -> State:
    """Takes the state out of a model's variables, for steps; until its return, variables read it there.

    Args:
        model: The Keras model.
        parts: The parts of the state.
        group: The replicas.
        donate: Whether a program may donate the arrays.
    """
    for variable in itertools.chain(*(variables_of(model, part) for part in parts)):
        if variable.taken is not None:
            variable.taken.check_not_running()
            variable.release()  # another model may have taken it
    lists = [list(variables_of(model, part)) for part in parts]
    state = tuple([_read_array(variable, group) for variable in variables] for variables in lists)
    _latest[model] = Attempt(parts, state)
    for part, variables in enumerate(lists):
        for position, variable in enumerate(variables):
            variable.taken = _Taken(model, group, part, position)
    if donate:
        # Only now: a signal handler that read a variable before it was marked as taken shares its array,
        # which must then be copied rather than donated.
        for arrays, variables in zip(state, lists, strict=True):
            arrays[:] = [
                _private_array(v, a, group) for v, a in zip(variables, arrays, strict=True)
            ]
    return state


def begin_step(
    model: KerasModel, parts: tuple[str, ...], state: State, group: ReplicaGroup, *, donate: bool
) -> tuple[Attempt, State]:
    """Begins a step, and returns its attempt and its state. ``end_step`` must follow.

    The state is ``state``, the one after the last step, unless it has been returned to the variables since:
    then other code may have changed the variables, and the state is taken from them again.
    """
    attempt = _latest.get(model)
    while attempt is None or not attempt.begin(state):
        state = take_state(model, parts, group, donate=donate)
        attempt = _latest.get(model)
    return attempt, state


def end_step(model: KerasModel, group: ReplicaGroup) -> None:
    """Ends the current step of this thread with a model, if there is one. Idempotent."""
    attempt = _latest.get(model)
    if attempt is None or not attempt.is_of_this_thread:
        return
    attempt.running = False
    if attempt.was_read:
        attempt.owner.end()
        attempt.was_read = False
        return_state(model, group)


def check_trained_here(model: KerasModel) -> None:
    """Checks that no other thread runs steps of a model.

    Raises:
        ContextError: If one does.
    """
    attempt = _latest.get(model)
    if attempt is not None and not attempt.is_of_this_thread:
        raise trained_elsewhere_error(model, attempt.owner.thread.name)


def trained_elsewhere_error(model: KerasModel, thread: str) -> ContextError:
    """Returns the error for a thread that needs the state that another thread's steps hold.

    Args:
        model: The Keras model.
        thread: The name of the other thread.
    """
    return ContextError(
        f"Thread {threading.current_thread().name!r} cannot train or run the Keras model {model.name!r}, "
        f"nor save or change its variables, while thread {thread!r} trains or runs it. "
        "Do it in a callback, or after that call. Reading weights works in any thread."
    )


def return_state(model: KerasModel, group: ReplicaGroup) -> None:
    """Stores the state after the latest step in the variables of a model, if it is not there.

    While a step is running, the variables get copies of the values before it, because the step may donate
    the arrays. Does nothing in other threads than the one that runs the steps.
    """
    attempt = _latest.get(model)
    if attempt is None or attempt.was_read or not attempt.is_of_this_thread:
        return
    running = attempt.running
    for part, arrays in zip(attempt.parts, attempt.state, strict=True):
        # There may be more variables than arrays, if a layer has created one meanwhile.
        for variable, array in zip(variables_of(model, part), arrays):  # noqa: B905
            if running:
                _store(variable, group.replicate(np.array(group.local_view(array))), group)
            else:
                _store(variable, array, group)
                variable.taken = None
    if running:
        # Locks the variables: assignments before the end of the step would be lost.
        twins = (v.twin for part in attempt.parts for v in variables_of(model, part))
        acquire(attempt.owner, twins)
        attempt.was_read = True
        return
    attempt.is_returned = True
    note_state_in_variables(model)
    _latest.pop(model, None)


class _Taken:
    """The location of a variable's value while Keras runs steps."""

    def __init__(self, model: KerasModel, group: ReplicaGroup, part: int, position: int) -> None:
        self._model = weakref.ref(model)
        self._group = group
        self._part = part
        self._position = position

    def value(self) -> Any | None:
        """Returns a copy, because the next step may donate the array; ``None`` if it is not here."""
        model = self._model()
        attempt = None if model is None else _latest.get(model)
        if attempt is None:
            return None
        # The lock prevents the launch of a step, which might donate the array.
        with STORAGE_LOCK:
            array = self._group.local_view(attempt.state[self._part][self._position])
            if array.is_deleted():
                return None
            if not attempt.is_of_this_thread:
                # An asynchronous copy: waiting with the lock held could deadlock, because a callback of
                # the step may need the lock.
                array = jnp.copy(array)
        return jax.device_put(np.array(array), array.sharding)

    def check_not_running(self) -> None:
        """Checks that no step is running that will replace the value.

        Raises:
            ContextError: If one is running: this is a signal handler, or another thread.
        """
        model = self._model()
        attempt = None if model is None else _latest.get(model)
        if attempt is not None and attempt.running:
            raise interrupting_error()

    def return_value(self) -> None:
        """Stores the whole state in the variables; Keras takes it from there for the next step."""
        model = self._model()
        if model is not None:
            check_trained_here(model)
            return_state(model, self._group)


def _read_array(variable: KerasVariable, group: ReplicaGroup) -> Any:
    twin: Variable = variable.twin
    if isinstance(twin, (MirroredVariable, CentralVariable)):
        with STORAGE_LOCK:
            return twin.take_for_program(group, donate=False)
    # The aggregated value of all replicas, copied: the variable keeps its own values.
    if (known := variable.known_value()) is not None:
        return group.replicate(np.array(known))
    is_sum = twin.aggregation is VariableAggregation.SUM
    if is_sum and isinstance(twin, SyncOnReadVariable) and not group.spans_processes:
        return group.replicate(twin.sum_on_host())
    return group.replicate(np.array(twin._eager_value()))


def _private_array(variable: KerasVariable, array: Tensor, group: ReplicaGroup) -> Any:
    """Returns the taken array, or a copy if other code holds it too."""
    twin: Variable = variable.twin
    if not isinstance(twin, (MirroredVariable, CentralVariable)):
        return array
    with STORAGE_LOCK:
        return twin.take_for_program(group, donate=True)


def _store(variable: KerasVariable, array: Tensor, group: ReplicaGroup) -> None:
    if array.is_deleted():
        return  # donated to a program that was lost: there is no better value
    twin: Variable = variable.twin
    if array.dtype != twin.dtype or array.shape != tuple(twin.shape):
        variable.taken = None
        variable.assign(group.local_view(array))
    elif isinstance(twin, MirroredVariable):
        store_private_copy(twin, group.replicate(array))
    elif isinstance(twin, CentralVariable):
        store_private_copy(twin, twin.place(group.local_view(array)))
    elif twin.aggregation is VariableAggregation.SUM and group.size > 1:
        # The whole value goes to one replica: equal shares would be rounded.
        value = np.asarray(group.local_view(array))
        parts = [value, *[np.zeros_like(value)] * (group.local_size - 1)]
        if group.first_local:
            parts[0] = parts[-1] if len(parts) > 1 else np.zeros_like(value)
        store_private_copy(twin, group.assemble(parts))
    else:
        twin.assign(group.local_view(array))
    if group.spans_processes and isinstance(twin, SyncOnReadVariable):
        local = group.local_view(array)
        variable.note_value(jax.device_put(np.array(local), local.sharding))
