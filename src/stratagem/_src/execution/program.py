"""``Program``: a compiled step, which is a pure function of its variables, constants and inputs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core.codegen import CodeWriter
from stratagem._src.core.errors import OutOfRangeError
from stratagem._src.core.types import ArrayLike, PyTreeDef, StaticValue
from stratagem._src.execution.buffer_donation import (
    HeldVariables,
    VariableBuffers,
    VariablesGone,
    VariableWrite,
)
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.callbacks import wait_for_callbacks
from stratagem._src.execution.draws import (
    AnyIterator,
    Draw,
    DrawSpec,
    EndMiss,
    draw_element,
    put_back,
)
from stratagem._src.execution.input_placement import place_on
from stratagem._src.execution.launch_codegen import write_launch
from stratagem._src.input.optional import MISSING
from stratagem._src.jax_compat import jax_settings
from stratagem._src.mesh.dispatch_queue import dispatch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.telemetry.measurement.recorder import activity, recorder
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.locking import Conflict, Owner, call_as_owner, call_when_free
from stratagem._src.variables.variable import Variable

__all__ = ["Program", "ResultLeaf"]


@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """Describes where one leaf of the function's result comes from.

    Exactly one of these applies: ``output``, a position among the program's outputs followed by the arrays
    of returned variables; ``variable``, whose array is the leaf (``Program`` assigns it such a position),
    or which is the leaf ``itself``; and ``static``, a value that is known since the trace.
    """

    output: int | None = None
    variable: weakref.ref[Variable] | None = None
    itself: bool = False
    static: StaticValue = None
    group: ReplicaGroup | None = None
    scalar: bool = False
    mirrored: bool = False

    @property
    def is_static(self) -> bool:
        """Whether the leaf is a static value that the function returned while it was traced."""
        return self.output is None and self.variable is None

    @property
    def split(self) -> int | None:
        """The dimension along which the array is sharded over replicas; ``None`` if it is replicated."""
        return None if self.group is None or self.mirrored else 0

    def build(self, outputs: Sequence[Any]) -> Any:
        """Builds the leaf from the program's outputs."""
        if self.output is not None:
            array = outputs[self.output]
        elif self.variable is not None:
            variable = self.variable()
            if variable is None:
                raise VariablesGone
            return variable
        else:
            return self.static
        if self.group is None:
            return array
        if self.mirrored:
            return Mirrored(self.group, array)
        return PerReplica.from_global(self.group, array, scalar=self.scalar)


class Program:
    """A compiled step together with the variables that it reads and writes.

    It does not keep the variables alive: a compiled function must not keep a model alive that it was
    called with or that it once captured.

    Args:
        jitted: The ``jax.jit`` function of (donated values, kept values, constants, inputs).
        donated: Variables whose buffers are donated to the program.
        kept: Variables that are only read.
        consts: Arrays that the function captured; ``None`` for those that it draws from iterators.
        writes: Variables that get new values, in the order of the outputs.
        results: How to build the leaves of the function's result.
        num_outputs: Number of outputs of the program; it may be more than the results are built from.
        structure: The structure of the result.
        group: The replicas, if the program uses several or particular devices.
        inputs: The call that was traced.
        draws: The elements that the program draws from iterators.
        awaited: The result to wait for before the next program is launched, where launches are serialized:
            0 for the outputs or 1 for the new values, and the position there.
        makes_keys: Whether it makes PRNG keys, whose implementation is a setting of JAX.
        callback_errors: The list to which host callbacks add their exceptions; ``None`` without callbacks.
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
        num_outputs: int,
        structure: PyTreeDef,
        group: ReplicaGroup | None,
        inputs: CallInputs,
        draws: list[DrawSpec],
        awaited: tuple[int, int] | None,
        makes_keys: bool,
        callback_errors: list[BaseException] | None,
    ) -> None:
        self.jitted = jitted
        results, returned = _append_returned_variables(results, num_outputs)
        self.has_outputs = num_outputs > 0
        self.variables = VariableBuffers(
            jitted,
            donated=donated,
            kept=kept,
            writes=writes,
            returned=returned,
            mentioned=[leaf.variable for leaf in results if leaf.variable is not None],
            group=group,
            awaited=awaited if group is not None and group.serialize_programs else None,
        )
        self.consts = consts
        # Whether a repeated call needs nothing but a launch.
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
        # Reentrant: a signal handler may make the same call while the first one compiles.
        self._compiling = threading.RLock()
        self._compiled_for: set[tuple[Any, ...]] = set()

    def references(self) -> list[weakref.ref[Any]]:
        """Returns a weak reference to each variable of the program."""
        return self.variables.references()

    def depends_on(self) -> list[weakref.ref[Any]]:
        """Returns weak references to what the program needs: its variables and captured iterators."""
        captured = [spec.captured for spec in self.draws if spec.captured is not None]
        return [*self.references(), *captured]

    def for_another_trace(self, consts: list[Any], static: Sequence[Any]) -> Program:
        """Returns a copy for an equal trace, with the constants and static results of that trace.

        Args:
            consts: The constants of the other trace.
            static: The static leaves of the other trace's result, in order.
        """
        program = copy.copy(self)
        program.consts = consts
        remaining = iter(static)
        # Leaves after those of the function's own result (operands of remote updates) stay as they are.
        program._results = [
            dataclasses.replace(leaf, static=next(remaining, leaf.static))
            if leaf.is_static
            else leaf
            for leaf in self._results
        ]
        return program

    def run(self, inputs: CallInputs) -> Any:
        """Runs the program with the arguments of a call and returns the function's result.

        Raises:
            DrawMiss: If the next elements have another signature than the traced ones; they are put back.
            VariablesGone: If a variable of the program has been garbage-collected.
            OutOfRangeError: At the end of the data, if the function does not catch that.
        """
        arrays = list(inputs.arrays)
        if self.group is not None:
            for position in self._plain_positions:
                arrays[position] = place_on(self.group, arrays[position])
        run = self.as_step(self.run_arrays)
        if not self.draws:
            return run(arrays)
        draws: list[Draw] = []
        try:
            return run(arrays, self.draw(inputs.iterators, draws), draws)
        except BaseException:
            put_back(draws)
            raise

    def draw(self, iterators: Sequence[AnyIterator], draws: list[Draw]) -> list[Any]:
        """Draws the elements, and returns the constants that include their arrays.

        Args:
            iterators: The iterators in the call's arguments.
            draws: Gets the draws. The caller puts them back if the call fails.

        Raises:
            DrawMiss: If they have another signature than the traced ones.
            OutOfRangeError: At the end of the data, if the function does not catch that.
        """
        consts = list(self.consts)
        for position, spec in enumerate(self.draws):
            draw = draw_element(spec.iterator(iterators), draws)
            if draw.element is MISSING and spec.signature[0] is not MISSING:
                if spec.end_is_error:
                    raise OutOfRangeError("End of the dataset.")
                raise EndMiss(self.draws, position)
            spec.put_into(consts, draw, self.group)
        return consts

    def run_arrays(
        self,
        arrays: list[Any],
        consts: list[Any] | None = None,
        draws: list[Draw] | None = None,
    ) -> Any:
        """Runs the program with the arrays of a call, and optionally with other constants.

        Args:
            arrays: The arrays.
            consts: The constants; default those of the trace.
            draws: The elements that the call has drawn. Emptied in the moment in which the program takes
                effect: an interrupt (Ctrl-C) after it must not put them back.

        Raises:
            SettingsChanged: If the program was compiled under other JAX settings.
        """
        consts = self.consts if consts is None else consts
        held = self.variables.hold()
        is_first = self._compile(held, arrays, consts)
        if self._callback_errors is not None:
            return self._run_with_callbacks(self._callback_errors, held, arrays, consts, draws)
        return self.result(self._launch(held, arrays, consts, draws, is_first=is_first)[0])

    @property
    def changes_variables(self) -> bool:
        """Whether it changes a variable; such a run counts as a step."""
        return not self.variables.writes_nothing

    @property
    def is_observed_step(self) -> bool:
        """Whether its runs are measured at present."""
        return recorder() is not None and self.changes_variables

    def as_step(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Returns ``run``, which runs the program; measured if this process is monitored."""
        observer = recorder()
        if observer is None or not self.changes_variables:
            return run
        return observer.as_step(run, None if self.group is None else self.group.replicas_by_device)

    def repeater(self) -> Callable[..., Any]:
        """Returns a faster ``run_arrays``, as a function of inputs and constants, and draws if it draws.

        Its arrays must have the shardings of an earlier run, for which the program is already compiled.
        """
        if not self.launches_only:
            return self.run_arrays
        draws = "draws" if self.draws else None
        run = CodeWriter(f"run_again(arrays, consts{', draws' if draws else ''})")
        self.write_run(run, "arrays", "consts", draws)
        return run.compile()

    def write_run(
        self, call: CodeWriter, arrays: str, consts: str, draws: str | None = None
    ) -> None:
        """Writes the body of ``repeater``; only for a program that ``launches_only``.

        Args:
            call: The function to write to.
            arrays: The expression of the inputs in that function.
            consts: The expression of the constants.
            draws: The expression of the drawn elements, if the program draws any.
        """
        result = None if self._returns_one_array else self.result

        def run_slow_path(
            arrays: list[Any], consts: list[Any], draws: list[Draw] | None = None
        ) -> Any:
            return self.result(self._launch(self.variables.hold(), arrays, consts, draws)[0])

        write_launch(self.variables.layout, call, arrays, consts, draws, result, run_slow_path)

    def _compile(self, held: HeldVariables, arrays: list[Any], consts: list[Any]) -> bool:
        """Compiles for the shardings of the arrays, if needed; returns whether it did.

        Otherwise XLA would compile during the first launch, which holds the storage lock: no thread could
        read any variable until the compilation ends.
        """
        variables = self.variables.read(held) if self.group is None else ()
        place = tuple(map(_committed_sharding, [*arrays, *(v._array for v in variables)]))
        # Placement is part of it because XLA compiles for shardings, of which the cache key of a call
        # knows nothing: the same call signature on another device is another executable of the same
        # program.
        if place in self._compiled_for or jax_settings.jit_is_disabled():
            return False
        with self._compiling:
            if place in self._compiled_for:
                return False
            donated, kept = self.variables.borrow(held)
            with activity("compiling"):
                self.jitted.lower(donated, kept, consts, arrays).compile()
            self._compiled_for.add(place)
            return True

    def _run_with_callbacks(
        self,
        errors: list[BaseException],
        held: HeldVariables,
        arrays: list[Any],
        consts: list[Any],
        draws: list[Draw] | None,
    ) -> Any:
        # This call owns the variables until it has stored the new values: otherwise it would overwrite what
        # another call stores in between.
        def run(_: Owner) -> list[Any]:
            # One call at a time, also of a program without variables: all calls share one list of errors.
            with self._callback_lock:
                outputs, new_values = dispatch(
                    functools.partial(self.variables.launch_owned, held, consts, arrays), self.group
                )
                wait_for_callbacks(errors, (outputs, new_values))
                return [*outputs, *self.variables.store(held, new_values, draws)]

        return self.result(call_as_owner(held, run))

    def _launch(
        self,
        held: HeldVariables,
        arrays: list[Any],
        consts: list[Any],
        draws: list[Draw] | None = None,
        *,
        is_first: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        run = functools.partial(self.variables.run, held, consts, arrays, draws, is_first=is_first)
        try:
            return dispatch(run, self.group)
        except Conflict:
            return call_when_free(held, lambda: dispatch(run, self.group))

    def result(self, outputs: list[Any]) -> Any:
        """Builds the function's result from the program's outputs."""
        if self._returns_one_array:
            return outputs[0]
        return self._structure.unflatten([result.build(outputs) for result in self._results])


def _append_returned_variables(
    results: list[ResultLeaf], num_outputs: int
) -> tuple[list[ResultLeaf], list[weakref.ref[Variable]]]:
    """Gives arrays of returned variables positions after the outputs; returns the leaves and the variables.

    These arrays are taken while the storage lock is held. Taken later, they could be those of another call.
    """
    returned: list[weakref.ref[Variable]] = []
    leaves = []
    for leaf in results:
        if leaf.variable is not None and not leaf.itself:
            position = num_outputs + len(returned)
            returned.append(leaf.variable)
            leaf = dataclasses.replace(leaf, variable=None, output=position)
        leaves.append(leaf)
    return leaves, returned


def _committed_sharding(array: ArrayLike) -> Any:
    """Returns the sharding of a committed array, which XLA compiles for; ``None`` for other arrays."""
    return array.sharding if getattr(array, "committed", False) else None
