"""A compiled step: variables in, variables out, and pure in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import jax

from stratagem.core.errors import ReplicaMismatchError
from stratagem.core.launch import (
    LAUNCH_LOCK,
    check_not_in_callback,
    note_launched,
    process_watch,
    wait_for_previous,
)
from stratagem.core.replica_group import ReplicaGroup
from stratagem.core.tracing import is_tracer
from stratagem.execution.draws import (
    Draw,
    DrawMiss,
    DrawSpec,
    RaggedElement,
    draw_element,
    put_back,
)
from stratagem.execution.signature import CallInputs, SettingsChanged
from stratagem.values import state
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica
from stratagem.values.variable import STORAGE_LOCK, Variable

__all__ = ["Program", "ProgramIdentity", "ResultLeaf", "VariableWrite"]

_ACCEPT_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """Where one leaf of the function's result comes from.

    Exactly one of ``output`` (position among the program's outputs), ``variable`` (whose array it is)
    and ``static`` counts.
    """

    output: int | None = None
    variable: Variable | None = None
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
            array = self.variable.snapshot()
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


class ProgramIdentity(NamedTuple):
    """What a program of several processes is called, and what is equal if it is the same."""

    name: str
    fingerprint: str


class Program:
    """A compiled step together with the variables it reads and writes.

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
        smallest_output: Which of all outputs to hold on to until the program has finished.
        callback_errors: Where host callbacks put their exceptions; ``None`` if there are none.
        identity: Set if several processes run the program together.
    """

    def __init__(
        self,
        jitted: Callable[..., Any],
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
        smallest_output: int,
        callback_errors: list[BaseException] | None,
        identity: ProgramIdentity | None,
    ) -> None:
        self._jitted = jitted
        self._donated = donated
        self._kept = kept
        self._consts = consts
        self._writes = writes
        self._results = results
        self._structure = structure
        self._group = group
        self.arrays_if_alike = inputs.arrays_if_alike
        self._plain_positions = inputs.plain_positions() if group is not None else []
        self._returns_one_array = structure == jax.tree.structure(0) and results == [ResultLeaf(0)]
        self._serialize = group is not None and group.serialize_programs
        self._identity = identity
        self._spans_processes = group is not None and group.spans_processes
        self._waits_for_others = identity is not None and group is not None and group.on_cpu
        self._callback_errors = callback_errors
        self._accepts_at_once = callback_errors is None and not self._waits_for_others
        self._draws = draws
        self._callback_lock = threading.RLock()
        self._smallest_output = smallest_output
        self.is_quick_to_match = (
            inputs.has_only_arrays() and not draws and not self._spans_processes
        )

    def run(self, inputs: CallInputs) -> Any:
        """Runs the program with the arguments of a call and returns the function's result.

        Raises:
            DrawMiss: If the next elements are not of the kind that was traced; they are put back.
            OutOfRangeError: If there is no next element.
        """
        if not self._draws:
            return self.run_arrays(inputs.arrays)
        draws, consts = self._draw(inputs)
        try:
            return self.run_arrays(inputs.arrays, consts)
        except BaseException:
            put_back(draws)
            raise

    def _draw(self, inputs: CallInputs) -> tuple[list[Draw], list[Any]]:
        draws: list[Draw] = []
        consts = list(self._consts)
        for spec in self._draws:
            draws.append(draw_element(spec.iterator(inputs.iterators), draws))
            try:
                fits = draws[-1].signature() == spec.signature
            except RaggedElement:
                fits = False
            if not fits:
                put_back(draws)
                raise DrawMiss
            arrays = draws[-1].arrays()
            for position, array in zip(spec.const_positions, arrays, strict=True):
                if position is not None:
                    consts[position] = array
        return draws, consts

    def run_arrays(self, arrays: list[Any], consts: list[Any] | None = None) -> Any:
        """Runs the program with the arrays of the arguments, and others in place of its constants.

        Raises:
            SettingsChanged: If it was made under other JAX settings.
        """
        consts = self._consts if consts is None else consts
        group = self._group
        if group is not None:
            for position in self._plain_positions:
                array = arrays[position]
                if getattr(array, "sharding", None) is not group.replicated:
                    arrays[position] = _place(array, group)
        if self._spans_processes:
            return self._run_together(arrays, consts)
        if self._callback_errors is None:
            outputs = self._launch(arrays, consts)[0]
            return outputs[0] if self._returns_one_array else self._result(outputs)
        # One call at a time: a call that waits for its callbacks has read values it will write.
        with self._callback_lock:
            outputs, new_values = self._launch(arrays, consts)
            self._wait_for_callbacks(outputs, new_values)
            with STORAGE_LOCK:
                self._accept(new_values)
        return self._result(outputs)

    def _run_together(self, arrays: list[Any], consts: list[Any]) -> Any:
        """Runs a program on the devices of several processes; its results can be used in each."""
        group = self._group
        assert group is not None
        check_not_in_callback()
        with self._callback_lock, LAUNCH_LOCK:
            wait_for_previous()
            if self._identity is not None:
                process_watch().before_launch(*self._identity)
            outputs, new_values = self._exchange(arrays, consts)
            leaves = jax.tree.leaves((outputs, new_values))
            if self._waits_for_others and leaves:
                process_watch().wait(leaves[self._smallest_output])
            if self._callback_errors is not None:
                self._wait_for_callbacks_everywhere(outputs, new_values)
            if not self._accepts_at_once:
                with STORAGE_LOCK:
                    self._accept(new_values)
            return self._structure.unflatten(
                [group.local_view(result.build(outputs)) for result in self._results]
            )

    def _launch(self, arrays: list[Any], consts: list[Any]) -> tuple[list[Any], list[Any]]:
        if not self._serialize:
            return self._exchange(arrays, consts)
        check_not_in_callback()
        with LAUNCH_LOCK:
            wait_for_previous()
            finished = self._exchange(arrays, consts)
            leaves = jax.tree.leaves(finished)
            note_launched(leaves[self._smallest_output] if leaves else None)
        return finished

    def _exchange(self, arrays: list[Any], consts: list[Any]) -> tuple[list[Any], list[Any]]:
        """Gives the variables' arrays to the program and stores its results in their place."""
        group = self._group
        finished: list[Any] = []
        with STORAGE_LOCK:
            journal = state.current_journal()
            if journal is not None:
                for variable, _ in self._writes:
                    journal.record(variable)
            call = (
                # What take_for_program does, without a call for the common case.
                [
                    v._array
                    if v.stored_for_programs and not v._shared
                    else v.take_for_program(group, True)
                    for v in self._donated
                ],
                [v.take_for_program(group, False) for v in self._kept],
                consts,
                arrays,
            )
            try:
                # An interrupt can arrive between the call and an assignment, when the arguments have
                # been given away already: list.extend keeps the results from C.
                finished.extend(starmap(self._jitted, (call,)))
                outputs, new_values = finished[0]
                if is_tracer(new_values[0] if new_values else outputs and outputs[0]):
                    finished.clear()
                    raise SettingsChanged
                if self._accepts_at_once:
                    self._accept(new_values)
                return outputs, new_values
            except BaseException:
                if finished and self._accepts_at_once:
                    self._accept_despite_interrupts(finished[0][1])
                raise

    def _accept(self, new_values: list[Any]) -> None:
        for (variable, shared), value in zip(self._writes, new_values, strict=True):
            if variable.stored_for_programs:
                variable._array = value
                variable._shared = shared
            else:
                variable.accept_from_program(value, shared)

    def _accept_despite_interrupts(self, new_values: list[Any]) -> None:
        # Some parts of JAX turn an interrupt into an error of their own.
        for attempt in reversed(range(_ACCEPT_ATTEMPTS)):
            try:
                self._accept(new_values)
            except BaseException:
                if not attempt:
                    raise
            else:
                return

    def _result(self, outputs: list[Any]) -> Any:
        return self._structure.unflatten([result.build(outputs) for result in self._results])

    def _wait_for_callbacks(self, outputs: list[Any], new_values: list[Any]) -> None:
        error = self._callback_error(outputs, new_values)
        if error is not None:
            raise error

    def _wait_for_callbacks_everywhere(self, outputs: list[Any], new_values: list[Any]) -> None:
        """Like ``_wait_for_callbacks``, and raises if those of another process failed."""
        error = self._callback_error(outputs, new_values)
        if self._identity is not None:
            name = self._identity.name
            told = None if error is None else repr(error)
            every = process_watch().exchange("callbacks", told, f"callbacks of {name}")
            failed = [f"process {i}: {text}" for i, text in enumerate(every) if text is not None]
            if error is None and failed:
                raise ReplicaMismatchError(
                    f"A host callback of {name} failed in another process, so that no variable is "
                    f"updated here either; {'; '.join(failed)}."
                )
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


def _place(array: Any, group: ReplicaGroup) -> Any:
    """Returns an input where a program on ``group`` can take it."""
    if group.spans_processes:
        return group.replicate(array)
    if not isinstance(array, jax.Array):
        return array if group.size > 1 else jax.device_put(array, group.replicated)
    if array.sharding == group.replicated:
        return array
    in_place = array.devices() == group.device_set if group.size == 1 else not array.committed
    return array if in_place else jax.device_put(array, group.replicated)
