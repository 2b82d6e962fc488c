"""How a program takes the values of variables in and gives new ones back: the one place that knows.

A program is given the arrays that its variables store. Those it will overwrite it is given for good, so
what it returns must end up in the variables whatever else happens meanwhile.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

from jax.core import Tracer

from stratagem._src.core.codegen import StraightLine, listed
from stratagem._src.execution.call_signature import SettingsChanged
from stratagem._src.jax_compat.concrete_array import ConcreteArray
from stratagem._src.mesh.dispatch_queue import (
    LAUNCH_LOCK,
    QUEUE,
    check_not_in_callback,
    interrupting_error,
    wait_for_previous,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.access import before_change
from stratagem._src.variables.atomicity import (
    OPEN,
    STORAGE,
    STORAGE_LOCK,
    Owner,
    check_not_interrupting,
    current_owner,
    take_ownership,
)
from stratagem._src.variables.variable import Variable

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

# Until Python 3.12 any allocation could start the garbage collector, whose callbacks are Python code, at
# the end of which signal handlers run.
_COLLECTS_ANYWHERE = sys.version_info < (3, 12)

_ACQUIRED = iter(STORAGE_LOCK.acquire, False)
_is_shared = operator.attrgetter("_shared")

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
        returned: References to variables whose arrays, after the call, are returned after the outputs.
        mentioned: References to other variables that the result is built from.
        group: The replicas, if the program uses several or particular devices.
        awaited: Which result to note as the one to wait for, if any: 0 for the outputs or 1 for the new
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
        # A variable has one such reference.
        self._references = tuple({id(reference): reference for reference in every}.values())
        assert all(map(operator.is_, donated, written))
        self._donated = self._references[: len(donated)]
        self._others = self._references[len(donated) :]
        self._num_donated, self._num_written = len(donated), len(writes)
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
        return variable.passes_as_stored(self._group) and variable.made_of_array is None

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
        """Like ``lend`` where nothing is donated, before a program that is to change variables.

        The caller owns the variables until it has stored the new values.
        """
        with STORAGE_LOCK:
            self._note_changes(held)
            return self._lend_kept(held)

    def run(
        self,
        held: HeldVariables,
        consts: list[Any],
        arrays: list[Any],
        *,
        owner: Owner | None = None,
        is_first: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Gives the arrays to the program, and stores what it returns.

        Args:
            held: The variables.
            consts: The constants.
            arrays: The inputs.
            owner: The call that owns the variables, if one does.
            is_first: Whether the program has not run yet with arrays that lie as these do.

        Returns:
            The outputs, then the arrays of returned variables; and the new values.

        Raises:
            Conflict: If another call owns one of the variables.
            SettingsChanged: If it was made under other JAX settings.
            ContextError: In a signal handler that interrupts a step or an update.
        """
        finished: list[tuple[list[Any], list[Any]]] = []
        collects = False
        with STORAGE_LOCK:
            check_not_interrupting()
            if OPEN:
                take_ownership(held, owner or current_owner())
            STORAGE.busy = True
            try:
                self._note_changes(held)
                if is_first:
                    # JAX runs a program for the first time in Python code, where an interrupt would lose
                    # what it was given: it gets copies.
                    for variable in held[: self._num_donated]:
                        variable._shared = True
                collects = _COLLECTS_ANYWHERE and gc.isenabled()
                while True:
                    given = [
                        variable for variable in held[: self._num_donated] if not variable._shared
                    ]
                    donated = self._take_donated(held)
                    kept = self._lend_kept(held) if self._kept else []
                    are_shared = map(_is_shared, given)
                    launched = starmap(self._jitted, ((donated, kept, consts, arrays),))
                    STORAGE.complete = functools.partial(self._complete, held, finished)
                    if collects:
                        gc.disable()
                    # From here to where the launch is noted nothing is called from bytecode, so that no
                    # signal handler runs in between: it would find arrays that are given away, and keep
                    # arrays that are about to be.
                    if True not in are_shared:
                        finished += launched
                        if self._awaited is not None:
                            QUEUE.in_flight = finished[0][self._awaited[0]][self._awaited[1]]
                        break
                    STORAGE.complete = None  # a handler has read a variable: it keeps that array
                outputs, new_values = finished[0]
                if isinstance(new_values[0] if new_values else outputs and outputs[0], Tracer):
                    finished.clear()
                    QUEUE.in_flight = None
                    raise SettingsChanged
                self._accept(held, new_values)
                return [*outputs, *self._returned_arrays(held)], new_values
            except BaseException:
                if finished:
                    self._accept_despite_interrupts(held, finished[0][1])
                raise
            finally:
                # Nothing is called before all is as it was: an interrupt cannot come in between.
                was_read, STORAGE.was_read = STORAGE.was_read, False
                STORAGE.complete = None
                STORAGE.busy = False
                if collects:
                    gc.enable()
                if was_read:
                    for variable in held[: self._num_written]:
                        variable._shared = True

    def launch_owned(
        self, held: HeldVariables, consts: list[Any], arrays: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Runs a program that is given nothing for good, and returns its results; ``store`` stores them.

        The caller owns the variables. So no lock is held, and what the program calls back can read them.

        Raises:
            SettingsChanged: If it was made under other JAX settings.
        """
        assert not self._num_donated
        with STORAGE_LOCK:
            kept = self._lend_kept(held)
        outputs, new_values = self._jitted([], kept, consts, arrays)
        if isinstance(new_values[0] if new_values else outputs and outputs[0], Tracer):
            raise SettingsChanged
        if self._awaited is not None:
            QUEUE.in_flight = (outputs, new_values)[self._awaited[0]][self._awaited[1]]
        return outputs, new_values

    def write_run(
        self,
        call: StraightLine,
        arrays: str,
        consts: str,
        result: Callable[[list[Any]], Any] | None,
        careful: Callable[[list[Any], list[Any]], Any],
        *,
        in_turn: bool,
    ) -> None:
        """Writes lines that do what ``hold`` and ``run`` do, in less time, and return a result.

        Only if ``passes_as_stored``, which is about what is written.

        Args:
            call: The function to write them to.
            arrays: The inputs in that function.
            consts: The constants.
            result: Makes the result of the outputs; ``None`` if it is the first of them.
            careful: What to do with inputs and constants where these lines do not suffice.
            in_turn: Whether the program is launched when the one before it has finished.
        """
        if not in_turn:
            self._write_exchange(call, arrays, consts)
        else:
            queue = call.named(QUEUE)
            call.write(f"{call.named(check_not_in_callback)}()")
            with call.block(f"with {call.named(LAUNCH_LOCK)}:"):
                call.write(f"if {queue}.busy: raise {call.named(interrupting_error)}()")
                call.write(f"{queue}.busy = True")
                with call.block("try:"):
                    call.write(f"{call.named(wait_for_previous)}()")
                    self._write_exchange(call, arrays, consts)
                call.write(f"finally: {queue}.busy = False")
        call.write(f"if unusual: return {call.named(careful)}({arrays}, {consts})")
        built = "outputs[0]" if result is None else f"{call.named(result)}(outputs)"
        call.write(f"return {built}")

    def _write_exchange(self, call: StraightLine, arrays: str, consts: str) -> None:
        held = [f"variable_{i}" for i in range(len(self._references))]
        call.write("collects = False")
        # The next item of the iterator is the lock, acquired: in a third of the time of `with`, and like
        # it without a moment in which an interrupt would leave open whether the lock is to be released.
        with call.block(f"for _ in {call.named(_ACQUIRED)}:"):
            with call.block("try:"):
                if not _COLLECTS_ANYWHERE:
                    self._write_with_lock(call, arrays, consts, held)
                else:
                    with call.block("try:"):
                        self._write_with_lock(call, arrays, consts, held)
                    with call.block("finally:"):
                        call.write(f"if collects: {call.named(gc.enable)}()")
            call.write(f"finally: {call.named(STORAGE_LOCK.release)}()")
            call.write("break")

    def _write_with_lock(
        self, call: StraightLine, arrays: str, consts: str, held: list[str]
    ) -> None:
        donated = held[: self._num_donated]
        unusual = [call.named(OPEN)]
        unusual += [f"{variable}._shared" for variable in donated]
        unusual += [f"{variable} is None" for variable in held[len(donated) :]]
        found = self.hold()
        as_stored = [variable.passes_as_stored(self._group) for variable in found]
        unusual += [
            f"{variable}.{found[i].made_of_array} is not None"
            for i, variable in enumerate(held)
            if as_stored[i] and found[i].made_of_array is not None
        ]
        group = call.named(self._group)
        moved = [i for i in self._kept if not as_stored[i]]
        unusual += [f"{held[i]}._array is not stored_{i}" for i in moved]
        unusual.append(f"{call.named(STORAGE)}.busy")  # in a signal handler, which is told so

        for variable, reference in zip(held, self._references, strict=True):
            call.write(f"{variable} = {call.named(reference)}()")
        for i in moved:
            call.write(f"if {held[i]} is None: raise {call.named(VariablesGone)}")
            call.write(f"stored_{i} = {held[i]}._array")
            call.write(f"moved_{i} = {held[i]}.take_for_program({group}, False)")
        kept = [f"{held[i]}._array" if as_stored[i] else f"moved_{i}" for i in self._kept]
        call.write("given = []")
        call.write("kept = []" if kept else f"kept = {call.named([])}")
        launched = f"{call.named(starmap)}({call.named(self._jitted)}, "
        call.write(f"launched = {launched}((given, kept, {consts}, {arrays}),))")
        if _COLLECTS_ANYWHERE:
            call.write(f"collects = {call.named(gc.isenabled)}()")
            call.write(f"if collects: {call.named(gc.disable)}()")
        # Signal handlers run after calls and at the end of loops. From here to where the results are stored
        # there is neither in bytecode: unpacking makes the call that launches the program, and takes the
        # results to where they belong. So a handler comes before or after all of it; it never finds
        # arrays that are given away, and an interrupt never loses results.
        # A variable that is gone is None, which has no such attribute.
        call.write(f"try: unusual = {' or '.join(unusual)}")
        call.write("except AttributeError: unusual = True")
        with call.block("if not unusual:"):
            if kept:
                call.write(f"kept += {', '.join(kept)},")
            self._write_launch(call, held)

    def _write_launch(self, call: StraightLine, held: list[str]) -> None:
        donated, written = held[: self._num_donated], held[: self._num_written]
        others = written[len(donated) :]
        queue = call.named(QUEUE)
        if donated:
            call.write(f"given += {', '.join(f'{variable}._array' for variable in donated)},")
        if others:
            call.write(f"former = {listed(f'{variable}._array' for variable in others)}")
        stored = listed(f"{variable}._array" for variable in written)
        call.write(f"[(outputs, {stored})] = launched")
        if self._awaited is not None:
            part, position = self._awaited
            awaited = f"{written[position]}._array" if part else f"outputs[{position}]"
            call.write(f"{queue}.in_flight = {awaited}")
        first = f"{written[0]}._array" if written else "outputs and outputs[0]"
        is_concrete = f"type({first}) is {call.named(ConcreteArray)}"
        is_traced = f"isinstance({first}, {call.named(Tracer)})"
        with call.block(f"if not {is_concrete} and {is_traced}:"):
            if written:
                call.write(f"{stored} = given{' + former' if others else ''}")
            if self._awaited is not None:
                call.write(f"{queue}.in_flight = None")
            call.write(f"raise {call.named(SettingsChanged)}")
        if self._returned:
            returned = [held[i] for i in self._returned]
            for variable in returned:
                call.write(f"{variable}._shared = True")
            taken = ", ".join(f"{variable}._array" for variable in returned)
            call.write(f"outputs = [*outputs, {taken}]")

    def store(self, held: HeldVariables, new_values: list[Any]) -> list[Any]:
        """Stores the results of ``launch_owned``; the caller owns the variables.

        Returns:
            The arrays of returned variables.
        """
        with STORAGE_LOCK:
            check_not_interrupting()
            STORAGE.busy = True
            try:
                self._note_changes(held)
                STORAGE.complete = functools.partial(self._accept, held, new_values)
                self._accept(held, new_values)
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
        """Stores the results for a signal handler that reads variables, if there are results yet."""
        if finished:
            self._accept(held, finished[0][1])

    def _accept(self, held: HeldVariables, new_values: list[Any]) -> None:
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
        """Returns the arrays of returned variables, which keep these arrays from being donated."""
        arrays = []
        for i in self._returned:
            held[i]._shared = True
            arrays.append(held[i]._array)
        return arrays

    def _accept_despite_interrupts(self, held: HeldVariables, new_values: list[Any]) -> None:
        """Stores the new values of a program that was launched, whatever else happens."""
        # Some parts of JAX turn an interrupt into an error of their own.
        for attempt in reversed(range(_KEEP_ATTEMPTS)):
            try:
                self._accept(held, new_values)
            except BaseException:
                if not attempt:
                    raise
            else:
                return

    def _note_changes(self, held: HeldVariables) -> None:
        if OPEN:
            for variable in held[: self._num_written]:
                before_change(variable)

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
