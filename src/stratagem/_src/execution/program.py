"""A compiled step: variables in, variables out, and pure in between."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import jax

from stratagem._src.core import jax_settings
from stratagem._src.core.tracing import is_tracer
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.execution.call_signature import CallInputs, SettingsChanged
from stratagem._src.execution.draws import (
    Draw,
    DrawSpec,
    draw_element,
    put_back,
)
from stratagem._src.mesh.program_queue import (
    LAUNCH_LOCK,
    check_not_in_callback,
    note_launched,
    wait_for_previous,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import access as state
from stratagem._src.variables.variable import STORAGE_LOCK, Variable

__all__ = [
    "HeldVariables",
    "Program",
    "ResultLeaf",
    "VariableWrite",
    "VariablesGone",
    "_committed_place",
    "place_on",
]

_KEEP_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """Where one leaf of the function's result comes from.

    Exactly one of ``output`` (position among the program's outputs), ``variable`` (whose array it is,
    or which it is ``itself``) and ``static`` counts.
    """

    output: int | None = None
    variable: weakref.ref[Variable] | None = None
    itself: bool = False
    static: Any = None
    group: ReplicaGroup | None = None
    scalar: bool = False
    mirrored: bool = False

    @property
    def sharded(self) -> bool:
        """Whether the leaf differs between replicas."""
        return self.group is not None and not self.mirrored

    def build(self, outputs: Sequence[Any]) -> Any:
        """Returns the leaf, given the program's outputs."""
        if self.output is not None:
            array = outputs[self.output]
        elif self.variable is not None:
            variable = self.variable()
            if variable is None:
                raise VariablesGone
            if self.itself:
                return variable
            array = variable.snapshot()
        else:
            return self.static
        if self.group is None:
            return array
        if self.mirrored:
            return Mirrored(self.group, array)
        return PerReplica.from_global(self.group, array, scalar=self.scalar)


class VariableWrite(NamedTuple):
    """A variable that the program gives a new value; ``shared`` if someone else holds it too."""

    variable: Variable
    shared: bool


class VariablesGone(Exception):
    """A variable that a program was made for does not exist any more."""


class HeldVariables(NamedTuple):
    """The variables of a program, kept alive while it runs."""

    donated: list[Variable]
    kept: list[Variable]
    written: list[Variable]
    returned: list[Variable]


class Program:
    """A compiled step together with the variables it reads and writes.

    It does not keep the variables alive: a function that has been called with a model, or in whose
    closure one has been, must not hold on to it.

    Args:
        jitted: The ``jax.jit`` function of (donated values, kept values, constants, inputs).
        donated: Variables whose arrays are given away to the program.
        kept: Variables that are only read.
        consts: Arrays that the function captured.
        writes: Variables that get new values, in the order of the outputs.
        results: How to build the leaves of the function's result.
        structure: The structure of the result.
        group: The replicas, if the program uses several or particular devices.
        inputs: The call that was traced.
        draws: The elements that the program draws from iterators.
        awaited: Which result to wait for before the next program is launched, if it must be waited for:
            0 for the outputs or 1 for the new values, and the position there.
        callback_errors: Where host callbacks put their exceptions; ``None`` if there are none.
    """

    def __init__(
        self,
        jitted: Any,
        *,
        donated: list[Variable],
        kept: list[Variable],
        consts: list[Any],
        writes: list[VariableWrite],
        results: list[ResultLeaf],
        structure: Any,
        group: ReplicaGroup | None,
        inputs: CallInputs,
        draws: list[DrawSpec],
        awaited: tuple[int, int] | None,
        callback_errors: list[BaseException] | None,
    ) -> None:
        self.jitted = jitted
        self.donated = [weakref.ref(variable) for variable in donated]
        self.kept = [weakref.ref(variable) for variable in kept]
        self.written = [weakref.ref(write.variable) for write in writes]
        self.consts = consts
        self._shared = [write.shared for write in writes]
        # Whether new values are stored as they are, each in one place and as soon as they are there.
        self.stores_results = callback_errors is None and not any(
            write.shared or not write.variable.stored_for_programs for write in writes
        )
        self._results = results
        self._returned = [leaf.variable for leaf in results if leaf.variable is not None]
        self._structure = structure
        self.group = group
        self._plain_positions = inputs.plain_positions() if group is not None else []
        self.returns_one_array = structure == jax.tree.structure(0) and results == [ResultLeaf(0)]
        self.serialize = group is not None and group.serialize_programs
        self._callback_errors = callback_errors
        self.draws = draws
        self._callback_lock = threading.RLock()
        self.awaited = awaited if self.serialize else None
        self._compiling = threading.Lock()
        self._compiled_for: set[tuple[Any, ...]] = set()

    def references(self) -> list[weakref.ref[Variable]]:
        """Returns a reference to each variable of the program."""
        every = [*self.donated, *self.kept, *self.written, *self._returned]
        # A variable has one such reference.
        return list({id(reference): reference for reference in every}.values())

    def depends_on(self) -> list[weakref.ref[Any]]:
        """Returns what must exist for the program to be of use: its variables and iterators."""
        captured = [spec.captured for spec in self.draws if spec.captured is not None]
        return [*self.references(), *captured]

    def hold(self) -> HeldVariables:
        """Returns the variables.

        Raises:
            VariablesGone: If one does not exist any more.
        """
        return HeldVariables(
            _alive(self.donated), _alive(self.kept), _alive(self.written), _alive(self._returned)
        )

    def use_compiled_form_of(self, other: Program) -> None:
        """Runs what was compiled for a program that differs from this one in its constants only."""
        self.jitted = other.jitted
        self._compiling, self._compiled_for = other._compiling, other._compiled_for

    def run(self, inputs: CallInputs) -> Any:
        """Runs the program with the arguments of a call and returns the function's result.

        Raises:
            DrawMiss: If the next elements are not of the kind that was traced; they are put back.
            VariablesGone: If a variable of the program does not exist any more.
            OutOfRangeError: If there is no next element.
        """
        arrays = list(inputs.arrays)
        if self.group is not None:
            for position in self._plain_positions:
                arrays[position] = place_on(self.group, arrays[position])
        if not self.draws:
            return self.run_arrays(arrays)
        draws, consts = self.draw(inputs.iterators)
        try:
            return self.run_arrays(arrays, consts)
        except BaseException:
            put_back(draws)
            raise

    def draw(self, iterators: Sequence[DistributedIterator]) -> tuple[list[Draw], list[Any]]:
        """Draws elements, and returns them and the constants with them in their places.

        Raises:
            DrawMiss: If they are not of the kind that was traced; they are put back.
            OutOfRangeError: If there is no next element.
        """
        draws: list[Draw] = []
        consts = list(self.consts)
        try:
            for spec in self.draws:
                iterator = spec.iterator(iterators)
                draws.append(draw_element(iterator, optional=spec.optional))
                for position, array in zip(
                    spec.const_positions, spec.arrays_of(draws[-1]), strict=True
                ):
                    if position is not None:
                        consts[position] = array
        except BaseException:
            put_back(draws)
            raise
        return draws, consts

    def run_arrays(self, arrays: list[Any], consts: list[Any] | None = None) -> Any:
        """Runs the program with the arrays of the arguments, and others in place of its constants.

        Raises:
            SettingsChanged: If it was made under other JAX settings.
        """
        consts = self.consts if consts is None else consts
        held = self.hold()
        self._compile(held, arrays, consts)
        if self._callback_errors is not None:
            return self._run_with_callbacks(held, arrays, consts)
        return self.result(self._launch(held, arrays, consts)[0])

    def _compile(self, held: HeldVariables, arrays: list[Any], consts: list[Any]) -> None:
        """Compiles for where the arrays lie, unless that has been done.

        Otherwise XLA would compile at the first call, while nobody could read any variable.
        """
        variables = (*held.donated, *held.kept) if self.group is None else ()
        place = tuple(map(_committed_place, [*arrays, *(v._array for v in variables)]))
        if place in self._compiled_for or jax_settings.jit_is_disabled():
            return
        with self._compiling:
            if place in self._compiled_for:
                return
            with STORAGE_LOCK:
                donated = [v.take_for_program(self.group, False) for v in held.donated]
                kept = [v.take_for_program(self.group, False) for v in held.kept]
            self.jitted.lower(donated, kept, consts, arrays).compile()
            self._compiled_for.add(place)

    def _run_with_callbacks(self, held: HeldVariables, arrays: list[Any], consts: list[Any]) -> Any:
        # One call at a time: a call that waits for its callbacks has read values it will write.
        with self._callback_lock:
            outputs, new_values = self._launch(held, arrays, consts)
            self._wait_for_callbacks(outputs, new_values)
            with STORAGE_LOCK:
                self._accept(held, new_values)
        return self.result(outputs)

    def _launch(
        self, held: HeldVariables, arrays: list[Any], consts: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        if not self.serialize:
            return self.exchange(held, arrays, consts)
        check_not_in_callback()
        with LAUNCH_LOCK:
            wait_for_previous()
            return self.exchange(held, arrays, consts)

    def exchange(
        self, held: HeldVariables, arrays: list[Any], consts: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Gives the variables' arrays to the program and stores its results in their place."""
        finished: list[Any] = []
        with STORAGE_LOCK:
            journal = state.current_journal()
            if journal is not None:
                for variable in held.written:
                    journal.record(variable)
            group = self.group
            donated = [
                v._array
                if v.stored_for_programs and not v._shared
                else v.take_for_program(group, True)
                for v in held.donated
            ]
            kept = [v.take_for_program(group, False) for v in held.kept]
            try:
                # An interrupt can arrive between the call and an assignment, when the arguments have
                # been given away already: list.extend keeps the results from C.
                finished.extend(starmap(self.jitted, ((donated, kept, consts, arrays),)))
                outputs, new_values = finished[0]
                if is_tracer(new_values[0] if new_values else outputs and outputs[0]):
                    finished.clear()
                    raise SettingsChanged
                self._keep(held, outputs, new_values)
                return outputs, new_values
            except BaseException:
                if finished:
                    self.keep_despite_interrupts(held, *finished[0])
                raise

    def _keep(self, held: HeldVariables, outputs: list[Any], new_values: list[Any]) -> None:
        if self.awaited is not None:
            part, position = self.awaited
            note_launched((outputs, new_values)[part][position])
        if self._callback_errors is None:
            self._accept(held, new_values)

    def _accept(self, held: HeldVariables, new_values: list[Any]) -> None:
        for variable, shared, value in zip(held.written, self._shared, new_values, strict=True):
            if variable.stored_for_programs:
                variable._array = value
                variable._shared = shared
            else:
                variable.accept_from_program(value, shared)

    def keep_despite_interrupts(
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

    def result(self, outputs: list[Any]) -> Any:
        """Returns the function's result, given the program's outputs."""
        return self._structure.unflatten([result.build(outputs) for result in self._results])

    def _wait_for_callbacks(self, outputs: list[Any], new_values: list[Any]) -> None:
        error = self._callback_error(outputs, new_values)
        if error is not None:
            raise error

    def _callback_error(self, outputs: list[Any], new_values: list[Any]) -> BaseException | None:
        """Waits for the callbacks of this process; returns the first error."""
        errors = self._callback_errors
        assert errors is not None
        jax.block_until_ready((outputs, new_values))
        jax.effects_barrier()
        first = errors[0] if errors else None
        errors.clear()
        return first


def _alive(references: Sequence[weakref.ref[Variable]]) -> list[Variable]:
    variables = [reference() for reference in references]
    if any(variable is None for variable in variables):
        raise VariablesGone
    return variables  # type: ignore[return-value]


def _committed_place(array: Any) -> Any:
    """Returns where an array must stay, if anywhere: XLA compiles for that."""
    return array.sharding if getattr(array, "committed", False) else None


def place_on(group: ReplicaGroup, array: Any) -> Any:
    """Returns an input where a program on ``group`` can take it."""
    if group.spans_processes:
        return group.replicate(array)
    if not isinstance(array, jax.Array):
        return array if group.size > 1 else jax.device_put(array, group.replicated)
    if array.sharding == group.replicated:
        return array
    in_place = array.devices() == group.device_set if group.size == 1 else not array.committed
    return array if in_place else jax.device_put(array, group.replicated)
