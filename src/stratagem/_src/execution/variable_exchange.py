"""How a program takes the values of variables in and gives new ones back: the one place that knows.

A program is given the arrays that its variables store. Those it will overwrite it is given for good, so
what it returns must end up in the variables whatever else happens meanwhile.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

from jax.core import Tracer

from stratagem._src.execution.call_signature import SettingsChanged
from stratagem._src.mesh.program_queue import (
    LAUNCH_LOCK,
    check_not_in_callback,
    note_launched,
    wait_for_previous,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.access import THIS_THREAD, current_journal
from stratagem._src.variables.variable import STORAGE_LOCK, Variable

__all__ = [
    "HeldVariables",
    "VariableExchange",
    "VariableWrite",
    "VariablesGone",
    "alive",
    "all_alive",
    "lend",
    "lend_for_long",
]

_KEEP_ATTEMPTS = 20

AnyVariable = TypeVar("AnyVariable")


class VariablesGone(Exception):
    """A variable that a program was made for does not exist any more."""


class VariableWrite(NamedTuple):
    """A variable that the program gives a new value; ``shared`` if someone else holds it too."""

    variable: Variable
    shared: bool


HeldVariables = list[Variable]
"""The variables of a program, kept alive while it runs: donated ones, others that are written, others."""


class VariableExchange:
    """Runs a program on the arrays of variables and stores its results in their place.

    It does not keep the variables alive.

    Args:
        jitted: The ``jax.jit`` function of (donated values, kept values, constants, inputs), which
            returns outputs and new values.
        donated: Variables whose arrays are given away to the program.
        kept: Variables that are only read.
        writes: Variables that get new values, in the order of the new values. The first are those that
            are donated, in the same order.
        returned: References to variables that the result is built from.
        group: The replicas, if the program uses several or particular devices.
        awaited: Which result to note as the one to wait for, if any: 0 for the outputs or 1 for the new
            values, and the position there.
        stores_at_once: Whether new values are stored as soon as the program is launched; ``store`` does
            it otherwise.
    """

    def __init__(
        self,
        jitted: Callable[..., tuple[list[Any], list[Any]]],
        *,
        donated: Sequence[Variable],
        kept: Sequence[Variable],
        writes: Sequence[VariableWrite],
        returned: Sequence[weakref.ref[Variable]],
        group: ReplicaGroup | None,
        awaited: tuple[int, int] | None,
        stores_at_once: bool,
    ) -> None:
        self._jitted = jitted
        written = [write.variable for write in writes]
        every = [*(weakref.ref(variable) for variable in [*written, *kept]), *returned]
        # A variable has one such reference.
        self._references = tuple({id(reference): reference for reference in every}.values())
        assert all(map(operator.is_, donated, written))
        self._donated = self._references[: len(donated)]
        self._others = self._references[len(donated) :]
        self._num_donated, self._num_written = len(donated), len(writes)
        position = {id(reference): i for i, reference in enumerate(self._references)}
        self._kept = [position[id(weakref.ref(variable))] for variable in kept]
        self._kept_as_stored = all(variable.stored_for_programs for variable in kept)
        self._shared = [write.shared for write in writes]
        self._group = group
        self._awaited = awaited
        self._stores_at_once = stores_at_once
        self.writes_nothing = not writes
        self._donates_copies = not all(variable.stored_for_programs for variable in donated)
        self.stores_as_returned = not any(
            write.shared or not write.variable.stored_for_programs for write in writes
        )

    def use(self, jitted: Callable[..., tuple[list[Any], list[Any]]]) -> None:
        """Runs another function from now on, which differs in nothing but what it is called with."""
        self._jitted = jitted

    def references(self) -> list[weakref.ref[Any]]:
        """Returns a reference to each variable."""
        return list(self._references)

    def hold(self) -> HeldVariables:
        """Returns the variables.

        Raises:
            VariablesGone: If one does not exist any more.
        """
        return all_alive(self._references)

    def read(self, held: HeldVariables) -> list[Variable]:
        """Returns those of the variables whose arrays the program is given."""
        return [*held[: self._num_donated], *(held[i] for i in self._kept)]

    def lend(self, held: HeldVariables) -> tuple[list[Any], list[Any]]:
        """Returns the arrays of donated and kept variables, none of which may be overwritten."""
        with STORAGE_LOCK:
            return lend(held[: self._num_donated], self._group), self._lend_kept(held)

    def lend_and_note(self, held: HeldVariables) -> list[Any]:
        """Like ``lend`` where nothing is donated, before a program that is to change variables."""
        with STORAGE_LOCK:
            self._note_in_journal(held)
            return self._lend_kept(held)

    def run(
        self, held: HeldVariables, consts: list[Any], arrays: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Gives the arrays to the program, and stores what it returns; returns it too.

        Raises:
            SettingsChanged: If it was made under other JAX settings.
        """
        donated: list[Any] = []
        kept: list[Any] = []
        finished: list[tuple[list[Any], list[Any]]] = []
        with STORAGE_LOCK:
            if current_journal() is not None:
                self._note_in_journal(held)
            for variable in held[: self._num_donated]:
                if variable._shared or self._donates_copies:
                    donated.append(variable.take_for_program(self._group, True))
                else:
                    donated.append(variable._array)
            if self._kept:
                kept = self._lend_kept(held)
            try:
                # An interrupt can arrive between the call and an assignment, when the arguments have
                # been given away already: extending a list keeps the results from C.
                finished += starmap(self._jitted, ((donated, kept, consts, arrays),))
                outputs, new_values = finished[0]
                if isinstance(new_values[0] if new_values else outputs and outputs[0], Tracer):
                    finished.clear()
                    raise SettingsChanged
                self._keep(held, outputs, new_values)
                return outputs, new_values
            except BaseException:
                if finished:
                    self._keep_despite_interrupts(held, *finished[0])
                raise

    def repeater(
        self, result: Callable[[list[Any]], Any] | None, *, in_turn: bool
    ) -> Callable[[list[Any], list[Any]], Any]:
        """Returns a function of inputs and constants that runs the program again, in less time.

        It holds the variables, does what ``run`` does, and returns the result. Only for programs of
        which ``stores_as_returned`` holds and whose new values are stored at once.

        Args:
            result: Makes the result of the outputs; ``None`` if it is the first of them.
            in_turn: Whether the program is launched when the one before it has finished.
        """
        # The devices wait meanwhile. So all that stays as it is is looked up here, and zip and
        # enumerate, which take longer than the loops they make shorter, are not used.
        jitted, group, awaited = self._jitted, self._group, self._awaited
        donated_references, other_references = self._donated, self._others
        kept_positions, kept_as_stored = self._kept, self._kept_as_stored

        def run_again(arrays: list[Any], consts: list[Any]) -> Any:
            held: list[Variable] = []
            donated: list[Any] = []
            kept: list[Any] = []
            new_values: list[Any] | None = None
            with STORAGE_LOCK:
                if THIS_THREAD.journal is not None:
                    return run_with_care(arrays, consts)
                for reference in donated_references:
                    variable = reference()
                    if variable is None or variable._shared:
                        return run_with_care(arrays, consts)
                    held.append(variable)
                    donated.append(variable._array)
                if other_references:
                    held += all_alive(other_references)
                    for position in kept_positions:
                        variable = held[position]
                        if kept_as_stored:
                            kept.append(variable._array)
                        else:
                            kept.append(variable.take_for_program(group, False))
                try:
                    # As in run: unpacking, too, takes the results from C.
                    [(outputs, new_values)] = starmap(jitted, ((donated, kept, consts, arrays),))
                    if isinstance(new_values[0] if new_values else outputs and outputs[0], Tracer):
                        new_values = None
                        raise SettingsChanged
                    if awaited is not None:
                        note_launched((outputs, new_values)[awaited[0]][awaited[1]])
                    position = 0
                    for value in new_values:
                        held[position]._array = value
                        position += 1  # noqa: SIM113
                except BaseException:
                    if new_values is not None:
                        self._keep_despite_interrupts(held, outputs, new_values)
                    raise
            return outputs[0] if result is None else result(outputs)

        def run_with_care(arrays: list[Any], consts: list[Any]) -> Any:
            held = self.hold()
            outputs, _ = self.run(held, consts, arrays)
            return outputs[0] if result is None else result(outputs)

        def run_in_turn(arrays: list[Any], consts: list[Any]) -> Any:
            check_not_in_callback()
            with LAUNCH_LOCK:
                wait_for_previous()
                return run_again(arrays, consts)

        return run_in_turn if in_turn else run_again

    def store(self, held: HeldVariables, new_values: list[Any]) -> None:
        """Stores new values that were not stored at once."""
        with STORAGE_LOCK:
            self._accept(held, new_values)

    def _keep(self, held: HeldVariables, outputs: list[Any], new_values: list[Any]) -> None:
        if self._awaited is not None:
            part, position = self._awaited
            note_launched((outputs, new_values)[part][position])
        if self._stores_at_once:
            self._accept(held, new_values)

    def _accept(self, held: HeldVariables, new_values: list[Any]) -> None:
        if self.stores_as_returned:
            for variable, value in zip(held, new_values):  # noqa: B905  (more are held)
                variable._array = value
                variable._shared = False
            return
        for variable, shared, value in zip(held, self._shared, new_values):  # noqa: B905
            if variable.stored_for_programs:
                variable._array = value
                variable._shared = shared
            else:
                variable.accept_from_program(value, shared)

    def _keep_despite_interrupts(
        self, held: HeldVariables, outputs: list[Any], new_values: list[Any]
    ) -> None:
        """Stores the new values of a program that was launched, whatever else happens."""
        # Some parts of JAX turn an interrupt into an error of their own.
        for attempt in reversed(range(_KEEP_ATTEMPTS)):
            try:
                self._keep(held, outputs, new_values)
            except BaseException:
                if not attempt:
                    raise
            else:
                return

    def _note_in_journal(self, held: HeldVariables) -> None:
        journal = current_journal()
        if journal is not None:
            for variable in held[: self._num_written]:
                journal.record(variable)

    def _lend_kept(self, held: HeldVariables) -> list[Any]:
        return lend([held[i] for i in self._kept], self._group)


def lend(variables: Iterable[Variable], group: ReplicaGroup | None) -> list[Any]:
    """Returns the arrays of variables for a program that does not overwrite them.

    They may be given away to another program as soon as the storage lock is released.
    """
    with STORAGE_LOCK:
        return [variable.take_for_program(group, False) for variable in variables]


def lend_for_long(variable: Variable, group: ReplicaGroup | None) -> Any:
    """Returns the array of a variable, which nobody gives away from now on."""
    with STORAGE_LOCK:
        variable.snapshot()
        return variable.take_for_program(group, False)


def alive(reference: weakref.ref[AnyVariable]) -> AnyVariable:
    """Returns the variable that a program was made for.

    Raises:
        VariablesGone: If it does not exist any more.
    """
    variable = reference()
    if variable is None:
        raise VariablesGone
    return variable


def all_alive(references: Iterable[weakref.ref[AnyVariable]]) -> list[AnyVariable]:
    """Returns variables that a program was made for.

    Raises:
        VariablesGone: If one of them does not exist any more.
    """
    variables = []
    for reference in references:
        variable = reference()
        if variable is None:
            raise VariablesGone
        variables.append(variable)
    return variables
