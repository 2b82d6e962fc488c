"""A compiled step: variables in, variables out, and pure in between."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core import jax_settings
from stratagem._src.core.straight_line import StraightLine
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.callbacks import wait_for_callbacks
from stratagem._src.execution.draws import (
    Draw,
    DrawSpec,
    draw_element,
    put_back,
)
from stratagem._src.execution.variable_exchange import (
    HeldVariables,
    VariableExchange,
    VariablesGone,
    VariableWrite,
)
from stratagem._src.measurement.recorder import recorder
from stratagem._src.mesh.program_queue import (
    LAUNCH_LOCK,
    check_not_in_callback,
    wait_for_previous,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.variable import Variable

__all__ = ["Program", "ResultLeaf", "place_on"]


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
    def split(self) -> int | None:
        """Along which dim of its array each replica has a block; ``None`` if all have all."""
        return None if self.group is None or self.mirrored else 0

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
        makes_keys: Whether it makes keys for random numbers, whose kind is a setting of JAX.
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
        makes_keys: bool,
        callback_errors: list[BaseException] | None,
    ) -> None:
        self.jitted = jitted
        self.serialize = group is not None and group.serialize_programs
        self.variables = VariableExchange(
            jitted,
            donated=donated,
            kept=kept,
            writes=writes,
            returned=[leaf.variable for leaf in results if leaf.variable is not None],
            group=group,
            awaited=awaited if self.serialize else None,
            stores_at_once=callback_errors is None,
        )
        self.consts = consts
        # Whether a call like one before it needs nothing but a launch.
        self.launches_only = callback_errors is None and self.variables.passes_as_stored
        self.makes_keys = makes_keys
        self._results = results
        self._structure = structure
        self.group = group
        self._plain_positions = inputs.plain_positions() if group is not None else []
        self._returns_one_array = structure == jax.tree.structure(0) and results == [ResultLeaf(0)]
        self._callback_errors = callback_errors
        self.draws = draws
        self._callback_lock = threading.RLock()
        self._compiling = threading.Lock()
        self._compiled_for: set[tuple[Any, ...]] = set()

    def references(self) -> list[weakref.ref[Any]]:
        """Returns a reference to each variable of the program."""
        return self.variables.references()

    def depends_on(self) -> list[weakref.ref[Any]]:
        """Returns what must exist for the program to be of use: its variables and iterators."""
        captured = [spec.captured for spec in self.draws if spec.captured is not None]
        return [*self.references(), *captured]

    def use_compiled_form_of(self, other: Program) -> None:
        """Runs what was compiled for a program that differs from this one in its constants only."""
        self.jitted = other.jitted
        self.variables.use(other.jitted)
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
        run = self.as_step(self.run_arrays)
        if not self.draws:
            return run(arrays)
        draws, consts = self.draw(inputs.iterators)
        try:
            return run(arrays, consts)
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
        held = self.variables.hold()
        self._compile(held, arrays, consts)
        if self._callback_errors is not None:
            return self._run_with_callbacks(self._callback_errors, held, arrays, consts)
        return self.result(self._launch(held, arrays, consts)[0])

    @property
    def changes_variables(self) -> bool:
        """Whether a run of it changes a variable: that is a step."""
        return not self.variables.writes_nothing

    @property
    def is_observed_step(self) -> bool:
        """Whether runs of it are measured, now."""
        return recorder() is not None and self.changes_variables

    def as_step(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Returns ``run``, which runs the program; measured, if somebody observes this process."""
        observer = recorder()
        if observer is None or not self.changes_variables:
            return run
        return observer.as_step(run, None if self.group is None else self.group.replicas_by_device)

    def repeater(self) -> Callable[[list[Any], list[Any]], Any]:
        """Returns a function of inputs and constants that does what ``run_arrays`` does.

        It is for arrays that lie as those of an earlier run did.
        """
        if not self.launches_only:
            return self.run_arrays
        run = StraightLine("run_again(arrays, consts)")
        self.write_run(run, "arrays", "consts")
        return run.compile()

    def write_run(self, call: StraightLine, arrays: str, consts: str) -> None:
        """Writes what a function of ``repeater`` does, if nothing but a launch is needed.

        Args:
            call: The function to write it to.
            arrays: The inputs in that function.
            consts: The constants.
        """
        result = None if self._returns_one_array else self.result
        self.variables.write_run(call, arrays, consts, result, in_turn=self.serialize)

    def _compile(self, held: HeldVariables, arrays: list[Any], consts: list[Any]) -> None:
        """Compiles for where the arrays lie, unless that has been done.

        Otherwise XLA would compile at the first call, while nobody could read any variable.
        """
        variables = self.variables.read(held) if self.group is None else ()
        place = tuple(map(_committed_place, [*arrays, *(v._array for v in variables)]))
        if place in self._compiled_for or jax_settings.jit_is_disabled():
            return
        with self._compiling:
            if place in self._compiled_for:
                return
            donated, kept = self.variables.lend(held)
            self.jitted.lower(donated, kept, consts, arrays).compile()
            self._compiled_for.add(place)

    def _run_with_callbacks(
        self,
        errors: list[BaseException],
        held: HeldVariables,
        arrays: list[Any],
        consts: list[Any],
    ) -> Any:
        # One call at a time: a call that waits for its callbacks has read values it will write.
        with self._callback_lock:
            outputs, new_values = self._launch(held, arrays, consts)
            wait_for_callbacks(errors, (outputs, new_values))
            self.variables.store(held, new_values)
        return self.result(outputs)

    def _launch(
        self, held: HeldVariables, arrays: list[Any], consts: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        if not self.serialize:
            return self.variables.run(held, consts, arrays)
        check_not_in_callback()
        with LAUNCH_LOCK:
            wait_for_previous()
            return self.variables.run(held, consts, arrays)

    def result(self, outputs: list[Any]) -> Any:
        """Returns the function's result, given the program's outputs."""
        if self._returns_one_array:
            return outputs[0]
        return self._structure.unflatten([result.build(outputs) for result in self._results])


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
