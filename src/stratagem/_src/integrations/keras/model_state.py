"""The state of a model while Keras runs steps, and its return to the variables.

During ``fit`` the arrays of a model are not in its variables: Keras passes them from step to step, and a
step may donate them. This module records where the arrays are, so that variables can still be used: in
callbacks, in signal handlers and in other threads.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import Tensor
from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.integrations.keras.keras_internals import KerasModel, KerasVariable
from stratagem._src.integrations.keras.trainer_internals import (
    note_state_in_variables,
    variables_of,
)
from stratagem._src.jax_compat.device_arrays import copy_without_program
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.central_variable import CentralVariable
from stratagem._src.variables.locking import (
    STORAGE_LOCK,
    Conflict,
    Owner,
    acquire,
    call_when_free,
    store_private_copy,
    take_ownership,
)
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


class Attempt(Owner):
    """The current or latest step of a model, and the state before or after it.

    It owns the variables while the state is not in them. Other calls, of callbacks, signal handlers and
    other threads, read copies of the state. If one of them needs the variables themselves, to change them
    or for a compiled program, the state returns to the variables: at once between two steps, otherwise at
    the end of the step.

    An interrupt can arrive at any moment, also between the end of a program and the assignment of its
    result, when the old state has been donated already. So C code appends the results to ``finished``.

    Attributes:
        finished: The computed results; empty until the step has finished.
        read: Extracts the result and the new state from the computed results.
        running: Whether the step has begun and not ended. Its program may donate the arrays of the state
            at any moment.
        has_callbacks: Whether the step has host callbacks; then it donates nothing.
        is_wanted: Whether a call waits for the variables until the step ends.
        is_returned: Whether the state is in the variables again.
    """

    def __init__(
        self, model: KerasModel, group: ReplicaGroup, lists: Sequence[Sequence[KerasVariable]]
    ) -> None:
        super().__init__()
        self.finished: list[Any] = []
        self.read: Callable[[Any], tuple[Any, State]] = lambda computed: computed
        self.running = False
        self.has_callbacks = False
        self.is_wanted = False
        self.is_returned = False
        self._before: State = ()
        # The arrays that the variables hold while the state is not in them.
        self._taken: State = ()
        self._is_returning = False
        self._model = weakref.ref(model)
        self._group = group
        self._lists = lists
        self._positions = {
            id(variable.twin): (part, position)
            for part, variables in enumerate(lists)
            for position, variable in enumerate(variables)
        }

    @property
    def local_sharding(self) -> jax.sharding.Sharding:
        """The sharding of the state's arrays, as this process sees them."""
        group = self._group
        first = jax.sharding.SingleDeviceSharding(group.local_devices[0])
        return first if group.spans_processes else group.replicated

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread runs the steps, or the thread that ran them has ended."""
        return self.thread is threading.current_thread() or not self.thread.is_alive()

    def begin(self, state: State) -> bool:
        """Begins the next step; returns ``False`` if the state has been returned to the variables."""
        with self._storage():
            # One assignment without a call: a signal handler sees either all of it or nothing.
            self._before, self.finished, self.running = state, [], True
            self.running = not self.is_returned
            return self.running

    def result(self) -> tuple[Any, State]:
        """Returns the result and state of the finished step."""
        return self.read(self.finished[0])

    def take_from_variables(self, donate: bool) -> State:
        """Takes the state out of the variables and owns them until it is returned.

        Raises:
            Conflict: If another call owns one of the variables.
        """
        twins = [variable.twin for variables in self._lists for variable in variables]
        with self._storage():
            take_ownership(twins, None)
            group = self._group
            state = tuple([_read_array(v, group) for v in variables] for variables in self._lists)
            self._before = state
            self._taken = tuple(map(list, state))
            _latest[self._model()] = self
            for part, variables in enumerate(self._lists):
                for position, variable in enumerate(variables):
                    variable.taken = _Taken(self, part, position)
            acquire(self, twins)
            if donate:
                # Only now: a signal handler that read a variable before shares its array, which must then
                # be copied rather than donated.
                for arrays, variables in zip(state, self._lists, strict=True):
                    arrays[:] = map(_private_array, variables, arrays)
            return state

    def copy(self, part: int, position: int) -> Any | None:
        """Returns a copy of an array of the state, before or after the step; ``None`` if it was lost.

        The caller holds ``STORAGE_LOCK``, which prevents the launch of a step that might donate the array.
        """
        # With host callbacks the results of a running step are not used: a callback may need the lock.
        is_finished = self.finished and not (self.running and self.has_callbacks)
        state = self.result()[1] if is_finished else self._before
        array = self._group.local_view(state[part][position])
        if array.is_deleted():
            return None
        if self.is_of_this_thread:
            return np.array(array)  # in a signal handler JAX may not be able to run a program
        # Asynchronous: others need the lock, so do not wait for the step here.
        return jax.device_put(array, array.sharding, may_alias=False)

    def content(self, variable: Variable) -> tuple[Variable, Any] | None:
        """Returns a copy of a variable's value, as the variable would store it.

        Raises:
            ContextError: In another thread, with several workers.
        """
        self._check_thread()
        array = self.copy(*self._positions[id(variable)])
        if array is None:
            return None
        if array.dtype != variable.dtype:
            array = array.astype(variable.dtype)
        return variable, _stored_form(variable, array, self._group)

    def give_back(self) -> bool:
        """Returns the state to the variables unless a step is running.

        Raises:
            ContextError: In another thread, with several workers.
        """
        if self.ended or self._is_returning:
            return True
        self._check_thread()
        if self.running:
            self.is_wanted = True
            return False
        self.return_state()
        return True

    def return_state(self) -> None:
        """Stores the state in the variables, unless a step is running or it is there already."""
        model = self._model()
        with self._storage():
            if model is None or self.running or self.is_returned:
                return
            try:
                self._is_returning = True
                state = self.result()[1] if self.finished else self._before
                for part in zip(self._lists, state, self._taken, strict=True):
                    for variable, array, taken in zip(*part, strict=True):
                        if self.is_returned:
                            return  # by a signal handler
                        # No step has changed what the variable holds. Stored again it would count as an
                        # array of the variable alone, which a step may donate while a reader has it.
                        if array is not taken:
                            _store(variable, array, self._group)
                        variable.taken = None
                self.is_returned = True
                note_state_in_variables(model)
            finally:
                self._is_returning = False
                if self.is_returned:  # also if an interrupt arrived since
                    self.end()
                    self._before, self._taken, self.finished = (), (), []  # frees the memory

    def _storage(self) -> AbstractContextManager[object]:
        # With several workers no other thread may use the state, and a value of another worker may be
        # waited for, which is not allowed under the lock.
        return contextlib.nullcontext() if self._group.spans_processes else STORAGE_LOCK

    def _check_thread(self) -> None:
        model = self._model()
        if self._group.spans_processes and not self.is_of_this_thread and model is not None:
            raise trained_elsewhere_error(model, self.thread.name)


_latest: WeakIdentityMap[Any, Attempt] = WeakIdentityMap()


def take_state(
    model: KerasModel,
    parts: tuple[str, ...],
    group: ReplicaGroup,
    *,
    donate: bool,
    after_others: bool = False,
) -> State:
    """Takes the state out of a model's variables, for steps; until its return, variables read it there.

    Args:
        model: The Keras model.
        parts: The parts of the state.
        group: The replicas.
        donate: Whether a program may donate the arrays.
        after_others: Whether other calls wait for the variables, which come first.
    """
    lists = [list(variables_of(model, part)) for part in parts]
    attempt = Attempt(model, group, lists)
    take = functools.partial(attempt.take_from_variables, donate)
    if not after_others:
        with contextlib.suppress(Conflict):
            return take()
    return call_when_free([v.twin for variables in lists for v in variables], take)


def begin_step(
    model: KerasModel, parts: tuple[str, ...], state: State, group: ReplicaGroup, *, donate: bool
) -> tuple[Attempt, State]:
    """Begins a step, and returns its attempt and its state. ``end_step`` must follow.

    The state is ``state``, the one after the last step, unless it has been returned to the variables since:
    then other code may have changed the variables, and the state is taken from them again.
    """
    attempt = _latest.get(model)
    while attempt is None or not attempt.begin(state):
        wanted = attempt is not None and attempt.is_wanted
        state = take_state(model, parts, group, donate=donate, after_others=wanted)
        attempt = _latest.get(model)
    return attempt, state


def end_step(model: KerasModel) -> None:
    """Ends the current step of this thread with a model, if there is one. Idempotent."""
    attempt = _latest.get(model)
    if attempt is None or not attempt.is_of_this_thread:
        return
    attempt.running = False
    if attempt.is_wanted:
        attempt.return_state()


def check_trained_here(model: KerasModel) -> None:
    """Checks that no other thread runs steps of a model.

    Raises:
        ContextError: If one does.
    """
    attempt = _latest.get(model)
    if attempt is not None and not (attempt.is_returned or attempt.is_of_this_thread):
        raise trained_elsewhere_error(model, attempt.thread.name)


def trained_elsewhere_error(model: KerasModel, thread: str) -> ContextError:
    """Returns the error for a thread that needs a model that another thread trains or runs.

    Args:
        model: The Keras model.
        thread: The name of the other thread.
    """
    return ContextError(
        f"Thread {threading.current_thread().name!r} cannot train or run the Keras model {model.name!r} "
        f"while thread {thread!r} trains or runs it; with several workers, it cannot save or change its "
        "variables either. Do it in a callback, or after that call. Reading weights works in any thread."
    )


def return_state(model: KerasModel) -> None:
    """Stores the state after the latest step in the variables of a model, if it is not there.

    Does nothing while a step is running, nor in other threads than the one that runs the steps.
    """
    attempt = _latest.get(model)
    if attempt is not None and attempt.is_of_this_thread:
        attempt.return_state()


class _Taken:
    """The location of a variable's value while Keras runs steps."""

    def __init__(self, attempt: Attempt, part: int, position: int) -> None:
        self._attempt = attempt
        self._part = part
        self._position = position

    def value(self) -> Any | None:
        """Returns a copy, because the next step may donate the array; ``None`` if it is not here."""
        attempt = self._attempt
        with STORAGE_LOCK:
            if attempt.is_returned:
                return None
            array = attempt.copy(self._part, self._position)
        return (
            jax.device_put(array, attempt.local_sharding)
            if isinstance(array, np.ndarray)
            else array
        )

    def return_value(self) -> None:
        """Stores the whole state in the variables if this thread runs the steps; see ``return_state``."""
        if self._attempt.is_of_this_thread:
            self._attempt.return_state()


def _read_array(variable: KerasVariable, group: ReplicaGroup) -> Any:
    twin: Variable = variable.twin
    if isinstance(twin, (MirroredVariable, CentralVariable)):
        with STORAGE_LOCK:
            return twin.take_for_program(group, donate=False)
    # The aggregated value of all replicas, copied: the variable keeps its own values.
    known = variable.known_value()
    return group.replicate(np.array(twin.value_on_host() if known is None else known))


def _private_array(variable: KerasVariable, array: Tensor) -> Any:
    """Returns the taken array, or a copy if other code holds it too."""
    twin: Variable = variable.twin
    is_stored = isinstance(twin, (MirroredVariable, CentralVariable))
    if not is_stored or not twin._shared:
        return array
    return copy_without_program(array) if array.is_fully_addressable else jnp.copy(array)


def _stored_form(twin: Variable, value: Tensor, group: ReplicaGroup) -> Any:
    """Returns a value as the variable stores it."""
    if isinstance(twin, MirroredVariable):
        return twin.place(value)
    if not isinstance(twin, SyncOnReadVariable):
        return twin.place(group.local_view(value))
    if twin.aggregation is not VariableAggregation.SUM:
        return group.assemble([value] * group.local_size)
    # The whole value goes to one replica: equal shares would be rounded.
    parts = [np.zeros(value.shape, value.dtype)] * group.local_size
    if not group.first_local:
        parts[0] = value
    return group.assemble(parts)


def _store(variable: KerasVariable, array: Tensor, group: ReplicaGroup) -> None:
    if array.is_deleted():
        return  # donated to a program that was lost: there is no better value
    twin: Variable = variable.twin
    if array.dtype != twin.dtype or array.shape != tuple(twin.shape):
        variable.taken = None
        variable.assign(group.local_view(array))
    else:
        # Not a JAX array: to assemble those is a program, which a signal handler may not be able to run.
        on_read = isinstance(twin, SyncOnReadVariable)
        value = np.asarray(group.local_view(array)) if on_read else array
        store_private_copy(twin, _stored_form(twin, value, group))
    if group.spans_processes and isinstance(twin, SyncOnReadVariable):
        local = group.local_view(array)
        variable.note_value(jax.device_put(np.array(local), local.sharding))
