"""Buffer donation: passes the arrays of variables to a program and stores the arrays that it returns.

A program takes the arrays that its variables store. Arrays of variables that it overwrites are donated:
once the program is launched they are deleted, so its results must reach the variables whatever else
happens meanwhile (interrupts, signal handlers, garbage collection). Only this module knows how.
"""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import filterfalse, starmap
from typing import Any, NamedTuple, TypeVar

from jax.core import Tracer

from stratagem._src.execution.call_signature import SettingsChanged
from stratagem._src.execution.draws import Draw
from stratagem._src.mesh.dispatch_queue import QUEUE
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.process.garbage_collection import GC_RUNS_ON_ALLOCATION
from stratagem._src.variables.locking import (
    ACTIVE_CALLS,
    STORAGE,
    STORAGE_LOCK,
    Owner,
    check_not_interrupting,
    current_owner,
    take_ownership,
)
from stratagem._src.variables.transactions import before_change
from stratagem._src.variables.variable import Variable

__all__ = [
    "BufferLayout",
    "HeldVariables",
    "VariableBuffers",
    "VariableWrite",
    "VariablesGone",
    "borrow",
    "borrow_pinned",
    "dereference",
    "dereference_all",
]

_MAX_STORE_ATTEMPTS = 20

_is_shared = operator.attrgetter("_shared")

AnyVariable = TypeVar("AnyVariable")


class VariablesGone(Exception):
    """A variable that a program was compiled for has been garbage-collected."""


class VariableWrite(NamedTuple):
    """A variable that gets a new value; ``shared`` if its array has another owner too."""

    variable: Variable
    shared: bool


HeldVariables = list[Variable]
"""The variables of a program, kept alive while it runs: donated, then other written ones, then the rest."""


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """How the variables of a program are numbered, and what it does with each.

    Attributes:
        jitted: The ``jax.jit`` function of (donated values, kept values, constants, inputs).
        references: The variables: donated, then other written ones, then the rest.
        num_donated: How many of them are donated.
        num_written: How many of them get new values.
        kept: The numbers of those that are only read.
        returned: The numbers of those whose arrays follow the outputs.
        group: The replicas, if the program uses several or particular devices.
        awaited: The result that the next launch waits for; see ``VariableBuffers``.
    """

    jitted: Callable[..., tuple[list[Any], list[Any]]]
    references: Sequence[weakref.ref[Variable]]
    num_donated: int
    num_written: int
    kept: Sequence[int]
    returned: Sequence[int]
    group: ReplicaGroup | None
    awaited: tuple[int, int] | None


class VariableBuffers:
    """Runs a program on the arrays of its variables and stores the new arrays.

    It does not keep the variables alive.

    Args:
        jitted: The ``jax.jit`` function of (donated values, kept values, constants, inputs), which
            returns outputs and new values.
        donated: Variables whose arrays are donated to the program.
        kept: Variables that are only read.
        writes: Variables that get new values, in the order of the new values. The donated ones are first,
            in the same order.
        returned: References to variables whose arrays, as the call leaves them, follow the outputs.
        mentioned: References to other variables that the result is built from.
        group: The replicas, if the program uses several or particular devices.
        awaited: The result that the next launch waits for, if any: 0 for the outputs or 1 for the new
            values, and the position there.
    """

    def __init__(
        self,
        jitted: Callable[..., tuple[list[Any], list[Any]]],
        *,
        donated: Sequence[Variable],
        kept: Sequence[Variable],
        writes: Sequence[VariableWrite],
        returned: Sequence[weakref.ref[Variable]],
        mentioned: Sequence[weakref.ref[Variable]],
        group: ReplicaGroup | None,
        awaited: tuple[int, int] | None,
    ) -> None:
        self._jitted = jitted
        written = [write.variable for write in writes]
        every = [*(weakref.ref(variable) for variable in [*written, *kept]), *returned, *mentioned]
        # Python returns the same object for every plain weak reference to a variable, so `id` deduplicates.
        self._references = tuple({id(reference): reference for reference in every}.values())
        assert all(map(operator.is_, donated, written))
        self._donated = self._references[: len(donated)]
        self._others = self._references[len(donated) :]
        self._num_donated, self._num_written = len(donated), len(writes)
        # With the donated variable w, the written but unread variable m and the kept variable b,
        # `_references` is (w, m, b) and `_kept` is [2]. New values come back in the order of the writes,
        # so the n-th one belongs to the n-th reference.
        position = {id(reference): i for i, reference in enumerate(self._references)}
        self._kept = [position[id(weakref.ref(variable))] for variable in kept]
        self._returned = [position[id(reference)] for reference in returned]
        self._shared = [write.shared for write in writes]
        self._group = group
        self._awaited = awaited
        self.writes_nothing = not writes
        self._donates_copies = not all(map(self._always_passes, donated))
        self._stores_as_returned = not any(self._shared) and all(map(self._always_passes, written))
        self.passes_as_stored = not any(self._shared) and all(
            variable.passes_as_stored(group) for variable in written
        )

    def _always_passes(self, variable: Variable) -> bool:
        return variable.passes_as_stored(self._group) and variable.cached_attribute is None

    def references(self) -> list[weakref.ref[Any]]:
        """Returns a weak reference to each variable."""
        return list(self._references)

    def hold(self) -> HeldVariables:
        """Returns the variables.

        Raises:
            VariablesGone: If one has been garbage-collected.
        """
        return dereference_all(self._references)

    def read(self, held: HeldVariables) -> list[Variable]:
        """Returns the variables whose arrays are inputs of the program."""
        return [*held[: self._num_donated], *(held[i] for i in self._kept)]

    def borrow(self, held: HeldVariables) -> tuple[list[Any], list[Any]]:
        """Returns the arrays of donated and kept variables; the caller must not donate any of them."""
        with STORAGE_LOCK:
            return borrow(held[: self._num_donated], self._group), self._borrow_kept(held)

    def borrow_for_update(self, held: HeldVariables) -> list[Any]:
        """Like ``borrow``, for a program that donates nothing and will change variables.

        The caller owns the variables until it has stored the new values.
        """
        with STORAGE_LOCK:
            self._note_changes(held)
            return self._borrow_kept(held)

    def run(
        self,
        held: HeldVariables,
        consts: list[Any],
        arrays: list[Any],
        draws: list[Draw] | None = None,
        *,
        owner: Owner | None = None,
        is_first: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Runs the program on the arrays of the variables, and stores the new arrays.

        Args:
            held: The variables.
            consts: The constants.
            arrays: The inputs.
            draws: The elements that the call has drawn; emptied when the program is launched.
            owner: The call that owns the variables, if one does.
            is_first: Whether the program has not run yet with arrays of these shardings.

        Returns:
            The outputs, then the arrays of returned variables; and the new values.

        Raises:
            Conflict: If another call owns one of the variables.
            SettingsChanged: If the program was compiled under other JAX settings.
            ContextError: In a signal handler that interrupts a step or an update.
        """
        finished: list[tuple[list[Any], list[Any]]] = []
        draws = [] if draws is None else draws
        drawn = list(draws)
        gc_was_enabled = False
        with STORAGE_LOCK:
            check_not_interrupting()
            if ACTIVE_CALLS:
                take_ownership(held, owner or current_owner())
            STORAGE.busy = True
            try:
                self._note_changes(held)
                if is_first:
                    # JAX dispatches the first run of a program in Python code, where an interrupt would
                    # lose the donated arrays. Shared arrays are never donated: the program gets copies.
                    for variable in held[: self._num_donated]:
                        variable._shared = True
                gc_was_enabled = GC_RUNS_ON_ALLOCATION and gc.isenabled()
                while True:
                    # No comprehension: in Python 3.13 an interrupt where an `if` ends its loop skips every
                    # `finally` of this function (python/cpython#130279).
                    donatable = list(filterfalse(_is_shared, held[: self._num_donated]))
                    donated = self._take_donated(held)
                    kept = self._borrow_kept(held) if self._kept else []
                    are_shared = map(_is_shared, donatable)
                    launched = starmap(self._jitted, ((donated, kept, consts, arrays),))
                    STORAGE.complete = functools.partial(self._complete, held, finished)
                    if gc_was_enabled:
                        gc.disable()
                    # From here until the launch is noted in `finished`, bytecode calls nothing, so no
                    # signal handler runs in between: it could read arrays that are already donated, or keep
                    # arrays that are about to be. `in` iterates `are_shared`, and `+=` iterates `launched`,
                    # which launches the program; both run in C.
                    if True not in are_shared:
                        finished += launched
                        del draws[:]
                        if self._awaited is not None:
                            QUEUE.in_flight = finished[0][self._awaited[0]][self._awaited[1]]
                        break
                    STORAGE.complete = (
                        None  # a handler has read a variable, whose array is now shared
                    )
                outputs, new_values = finished[0]
                if isinstance(new_values[0] if new_values else outputs and outputs[0], Tracer):
                    finished.clear()
                    draws += drawn
                    QUEUE.in_flight = None
                    raise SettingsChanged
                self._store_results(held, new_values)
                return [*outputs, *self._returned_arrays(held)], new_values
            except BaseException:
                if finished:
                    self._store_despite_interrupts(held, finished[0][1])
                raise
            finally:
                # No calls until the state is reset: an interrupt cannot come in between.
                was_read, STORAGE.was_read = STORAGE.was_read, False
                STORAGE.complete = None
                STORAGE.busy = False
                if gc_was_enabled:
                    gc.enable()
                if was_read:
                    for variable in held[: self._num_written]:
                        variable._shared = True

    def launch_owned(
        self, held: HeldVariables, consts: list[Any], arrays: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Runs a program that donates nothing, and returns its results; ``store`` stores them.

        The caller owns the variables. So no lock is held, and host callbacks of the program can read them.

        Raises:
            SettingsChanged: If the program was compiled under other JAX settings.
        """
        assert not self._num_donated
        with STORAGE_LOCK:
            kept = self._borrow_kept(held)
        outputs, new_values = self._jitted([], kept, consts, arrays)
        if isinstance(new_values[0] if new_values else outputs and outputs[0], Tracer):
            raise SettingsChanged
        if self._awaited is not None:
            QUEUE.in_flight = (outputs, new_values)[self._awaited[0]][self._awaited[1]]
        return outputs, new_values

    @property
    def layout(self) -> BufferLayout:
        """What the code of a repeated launch needs to know; see ``launch_codegen``."""
        return BufferLayout(
            self._jitted,
            self._references,
            self._num_donated,
            self._num_written,
            self._kept,
            self._returned,
            self._group,
            self._awaited,
        )

    def store(
        self, held: HeldVariables, new_values: list[Any], draws: list[Draw] | None = None
    ) -> list[Any]:
        """Stores the results of ``launch_owned``; the caller owns the variables.

        Args:
            held: The variables.
            new_values: The results.
            draws: The elements that the call has drawn; emptied when the results are stored.

        Returns:
            The arrays of returned variables.
        """
        with STORAGE_LOCK:
            check_not_interrupting()
            STORAGE.busy = True
            try:
                self._note_changes(held)
                # From here on the step has happened: an interrupt must not leave half of it stored.
                STORAGE.complete = functools.partial(self._store_results, held, new_values)
                if draws is not None:
                    del draws[:]
                try:
                    self._store_results(held, new_values)
                except BaseException:
                    self._store_despite_interrupts(held, new_values)
                    raise
                return self._returned_arrays(held)
            finally:
                was_read, STORAGE.was_read = STORAGE.was_read, False
                STORAGE.complete = None
                STORAGE.busy = False
                if was_read:
                    for variable in held[: self._num_written]:
                        variable._shared = True

    def _take_donated(self, held: HeldVariables) -> list[Any]:
        if self._donates_copies:
            return [v.take_for_program(self._group, True) for v in held[: self._num_donated]]
        return [
            variable.take_for_program(self._group, True) if variable._shared else variable._array
            for variable in held[: self._num_donated]
        ]

    def _complete(self, held: HeldVariables, finished: list[tuple[list[Any], list[Any]]]) -> None:
        """Stores the results, if there are any yet, for a signal handler that reads variables."""
        if finished:
            self._store_results(held, finished[0][1])

    def _store_results(self, held: HeldVariables, new_values: list[Any]) -> None:
        if self._stores_as_returned:
            for variable, value in zip(held, new_values):  # noqa: B905  (more are held)
                variable._array, variable._shared = value, False
            return
        for variable, shared, value in zip(held, self._shared, new_values):  # noqa: B905
            if self._always_passes(variable):
                variable._array, variable._shared = value, shared
            else:
                variable.accept_from_program(self._group, value, shared)

    def _returned_arrays(self, held: HeldVariables) -> list[Any]:
        """Returns the arrays of returned variables, and marks them as shared: they must not be donated."""
        arrays = []
        for i in self._returned:
            held[i]._shared = True
            arrays.append(held[i]._array)
        return arrays

    def _store_despite_interrupts(self, held: HeldVariables, new_values: list[Any]) -> None:
        """Stores the new values of a launched program even if interrupts arrive."""
        # Catch every exception, because some parts of JAX turn an interrupt into an error of their own.
        for attempt in reversed(range(_MAX_STORE_ATTEMPTS)):
            try:
                self._store_results(held, new_values)
            except BaseException:
                if not attempt:
                    raise
            else:
                return

    def _note_changes(self, held: HeldVariables) -> None:
        if ACTIVE_CALLS:
            for variable in held[: self._num_written]:
                before_change(variable)

    def _borrow_kept(self, held: HeldVariables) -> list[Any]:
        return borrow([held[i] for i in self._kept], self._group)


def borrow(variables: Iterable[Variable], group: ReplicaGroup | None) -> list[Any]:
    """Returns the arrays of variables for a program that does not donate them.

    Another call may donate them as soon as the storage lock is released.
    """
    with STORAGE_LOCK:
        return [variable.take_for_program(group, False) for variable in variables]


def borrow_pinned(variable: Variable, group: ReplicaGroup | None) -> Any:
    """Returns the array of a variable, and makes sure that it is never donated."""
    with STORAGE_LOCK:
        variable.snapshot()
        return variable.take_for_program(group, False)


def dereference(reference: weakref.ref[AnyVariable]) -> AnyVariable:
    """Returns a variable that a program was compiled for.

    Raises:
        VariablesGone: If it has been garbage-collected.
    """
    variable = reference()
    if variable is None:
        raise VariablesGone
    return variable


def dereference_all(references: Iterable[weakref.ref[AnyVariable]]) -> list[AnyVariable]:
    """Returns the variables that a program was compiled for.

    Raises:
        VariablesGone: If one of them has been garbage-collected.
    """
    variables = []
    for reference in references:
        variable = reference()
        if variable is None:
            raise VariablesGone
        variables.append(variable)
    return variables
