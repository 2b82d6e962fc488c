"""How a program takes the values of variables in and gives new ones back: the one place that knows.

A program is given the arrays that its variables store. Those it will overwrite it is given for good, so
what it returns must end up in the variables whatever else happens meanwhile.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

from jax.core import Tracer

from stratagem._src.core.straight_line import StraightLine, listed
from stratagem._src.core.this_thread import INSIDE, THIS_THREAD
from stratagem._src.execution.call_signature import SettingsChanged
from stratagem._src.jax_internals.concrete_array import ConcreteArray
from stratagem._src.mesh.program_queue import (
    LAUNCH_LOCK,
    check_not_in_callback,
    note_launched,
    wait_for_previous,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.access import current_journal
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
        self._shared = [write.shared for write in writes]
        self._group = group
        self._awaited = awaited
        self._stores_at_once = stores_at_once
        self.writes_nothing = not writes
        self._donates_copies = not all(map(self._always_passes, donated))
        self._stores_as_returned = not any(self._shared) and all(map(self._always_passes, written))
        self.passes_as_stored = not any(self._shared) and all(
            variable.passes_as_stored(group) for variable in written
        )

    def _always_passes(self, variable: Variable) -> bool:
        return variable.passes_as_stored(self._group) and variable.made_of_array is None

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

    def write_run(
        self,
        call: StraightLine,
        arrays: str,
        consts: str,
        result: Callable[[list[Any]], Any] | None,
        *,
        in_turn: bool,
    ) -> None:
        """Writes lines that do what ``hold`` and ``run`` do, in less time, and return a result.

        Only if ``passes_as_stored``, which is about what is written, and new values are stored at once.

        Args:
            call: The function to write them to.
            arrays: The inputs in that function.
            consts: The constants.
            result: Makes the result of the outputs; ``None`` if it is the first of them.
            in_turn: Whether the program is launched when the one before it has finished.
        """

        def run_with_care(arrays: list[Any], consts: list[Any]) -> Any:
            outputs, _ = self.run(self.hold(), consts, arrays)
            return outputs[0] if result is None else result(outputs)

        careful = f"{call.named(run_with_care)}({arrays}, {consts})"
        if not in_turn:
            self._write_exchange(call, arrays, consts, careful)
        else:
            call.write(f"{call.named(check_not_in_callback)}()")
            with call.block(f"with {call.named(LAUNCH_LOCK)}:"):
                call.write(f"{call.named(wait_for_previous)}()")
                self._write_exchange(call, arrays, consts, careful)
        built = "outputs[0]" if result is None else f"{call.named(result)}(outputs)"
        call.write(f"return {built}")

    def _write_exchange(self, call: StraightLine, arrays: str, consts: str, careful: str) -> None:
        held = [f"variable_{i}" for i in range(len(self._references))]
        donated, written = held[: self._num_donated], held[: self._num_written]
        journal = f"{call.named(THIS_THREAD)}.state.journal"
        unusual = [f"{call.named(INSIDE)} and {journal} is not None"]
        unusual += [f"{variable}._shared" for variable in donated]
        unusual += [f"{variable} is None" for variable in held[len(donated) :]]
        found = self.hold()
        as_stored = [variable.passes_as_stored(self._group) for variable in found]
        unusual += [
            f"{variable}.{found[i].made_of_array} is not None"
            for i, variable in enumerate(held)
            if as_stored[i] and found[i].made_of_array is not None
        ]
        given = listed(f"{variable}._array" for variable in donated)
        group = call.named(self._group)
        lent = [
            f"{held[i]}._array" if as_stored[i] else f"{held[i]}.take_for_program({group}, False)"
            for i in self._kept
        ]
        kept = listed(lent) if lent else call.named([])
        # As in run: unpacking, too, takes the results from C.
        launched = f"{call.named(starmap)}({call.named(self._jitted)}, "
        launched += f"(({given}, {kept}, {consts}, {arrays}),))"
        first = "new_values[0]" if written else "outputs and outputs[0]"
        keep = f"{call.named(self._keep_despite_interrupts)}({listed(held)}, outputs, new_values)"

        # `with` takes three times as long as acquire and release. An interrupt can come after either:
        # the lock itself knows then whether it is to be released.
        acquire, release = call.named(STORAGE_LOCK.acquire), call.named(STORAGE_LOCK.release)
        call.write("new_values = None")
        with call.block("try:"):
            call.write(f"{acquire}()")
            for variable, reference in zip(held, self._references, strict=True):
                call.write(f"{variable} = {call.named(reference)}()")
            # A variable that is gone is None, which has no such attribute.
            call.write(f"try: unusual = {' or '.join(unusual)}")
            call.write("except AttributeError: unusual = True")
            with call.block("if unusual:"):
                call.write(f"{release}()")
                call.write(f"return {careful}")
            call.write(f"[(outputs, new_values)] = {launched}")
            with call.block(f"if type({first}) is not {call.named(ConcreteArray)}:"):
                call.write(f"if isinstance({first}, {call.named(Tracer)}): new_values = None")
                call.write(f"if new_values is None: raise {call.named(SettingsChanged)}")
            if self._awaited is not None:
                part, position = self._awaited
                awaited = f"{('outputs', 'new_values')[part]}[{position}]"
                call.write(f"{call.named(note_launched)}({awaited})")
            call.write(f"{listed(f'{variable}._array' for variable in written)} = new_values")
            call.write("new_values = None")
            call.write(f"{release}()")
        with call.block("except BaseException:"):
            call.write(f"if new_values is not None: {keep}")
            call.write(f"{call.named(_release_if_acquired)}()")
            call.write("raise")

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
        if self._stores_as_returned:
            for variable, value in zip(held, new_values):  # noqa: B905  (more are held)
                variable._array = value
                variable._shared = False
            return
        for variable, shared, value in zip(held, self._shared, new_values):  # noqa: B905
            if self._always_passes(variable):
                variable._array = value
                variable._shared = shared
            else:
                variable.accept_from_program(self._group, value, shared)

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


def _release_if_acquired() -> None:
    with contextlib.suppress(RuntimeError):
        STORAGE_LOCK.release()


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
