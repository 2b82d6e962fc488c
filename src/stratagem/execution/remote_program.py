"""A compiled step that uses variables which other processes hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem.core.launch import launch
from stratagem.core.replica_group import ReplicaGroup
from stratagem.core.tracing import jax_core, mentioned_variables
from stratagem.execution.program import Program, place_input
from stratagem.execution.remote_access import NotedUpdate
from stratagem.execution.remote_reads import Read, find_reads
from stratagem.execution.remote_stages import Segment, Stage, StagedUpdate, cut
from stratagem.values.remote_batch import fetch, send
from stratagem.values.remotely_held import RemotelyHeldVariable
from stratagem.values.variable import STORAGE_LOCK, Variable

__all__ = ["RemoteExchange", "RemoteProgram", "RemoteTrace", "uses_remote_variables"]

Place = Callable[["_Call"], Any]


class RemoteProgram(Program):
    """A program that fetches what it reads before it runs and sends its updates afterwards.

    Its function returns a pair: the result, and the operands of the updates.

    Args:
        exchange: What to fetch and to send.
        *args: As of ``Program``.
        **kwargs: Likewise.
    """

    def __init__(self, exchange: RemoteExchange, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._remote = exchange
        self._computes_nothing = (
            all(result.output is None for result in self._results)
            and not self._writes
            and self._callback_errors is None
        )

    def run_arrays(self, arrays: list[Any], consts: list[Any] | None = None) -> Any:
        """Fetches, runs the program and sends its updates."""
        consts = self._consts if consts is None else consts
        if self._group is not None and self._remote.computes:
            for position in self._plain_positions:
                arrays[position] = place_input(arrays[position], self._group)
        call = self._remote.fetch(arrays, consts)
        if self._computes_nothing:
            result, operands = self._result([])
        else:
            result, operands = super().run_arrays(arrays, [*consts, *call.provided])
        self._remote.send(operands, call)
        return result


class RemoteTrace:
    """A traced function that uses remote variables, taken apart.

    Args:
        jaxpr: What was traced: candidates and arrays in; results, operands of the updates and new
            values of variables out.
        candidates: The variables that are its first inputs.
        updates: The updates of the trace.
        operands: For each update its operand's arrays: atoms of the jaxpr, or known arrays.
        wanted: Those of its outputs that are not operands.
        group: The replicas, if the program uses several or particular devices.
    """

    def __init__(
        self,
        jaxpr: Any,
        candidates: Sequence[Variable],
        updates: Sequence[NotedUpdate],
        operands: Sequence[Sequence[Any]],
        wanted: Sequence[Any],
        group: ReplicaGroup | None,
    ) -> None:
        self._jaxpr = jaxpr
        self._group = group
        # Without the operands, which are tracers of a trace that has ended.
        self._updates = [NotedUpdate(noted.variable, noted.update, None) for noted in updates]
        mentioned = mentioned_variables(jaxpr)
        self._whole = {
            id(invar): Read(variable, invar)
            for variable, invar in zip(candidates, jaxpr.invars, strict=False)
            if isinstance(variable, RemotelyHeldVariable) and id(invar) in mentioned
        }
        staged = [
            StagedUpdate(position, noted.variable, tuple(atoms))
            for position, (noted, atoms) in enumerate(zip(updates, operands, strict=True))
        ]
        reads = [*self._whole.values(), *find_reads(jaxpr)]
        self._parts = cut(jaxpr, reads, staged, wanted)
        self._places = _Places(jaxpr, candidates, self._parts.provided, group)

    @property
    def remaining(self) -> list[int]:
        """Positions of the updates whose operands the program itself computes."""
        return [update.position for update in self._parts.updates]

    def jaxpr(self, outvars: Sequence[Any]) -> Any:
        """Returns the program's own part, with what was fetched as further constants."""
        fresh = [jax_core().Var(v.aval) if id(v) in self._whole else v for v in self._jaxpr.invars]
        return self._jaxpr.replace(
            constvars=[*self._jaxpr.constvars, *self._parts.provided],
            invars=fresh,
            outvars=list(outvars),
            eqns=list(self._parts.equations),
            debug_info=self._jaxpr.debug_info.with_unknown_names(),
        )

    def passed(self, atom: Any) -> Passed | None:
        """Returns how to find an operand that the program itself need not return, if it is one."""
        return Passed(self._places.place(atom)) if self._places.lasts(atom) else None

    def exchange(self) -> RemoteExchange:
        """Returns what to fetch before the program and to send after it."""
        stages = [
            _CompiledStage(stage, self._updates, self._places, self._group)
            for stage in self._parts.stages
        ]
        return RemoteExchange(
            stages,
            [self._updates[position] for position in self.remaining],
            len(self._parts.provided),
        )


def uses_remote_variables(
    jaxpr: Any, candidates: Sequence[Variable], updates: Sequence[NotedUpdate]
) -> bool:
    """Returns whether a trace reads or updates variables that other processes hold."""
    if updates or find_reads(jaxpr):
        return True
    mentioned = mentioned_variables(jaxpr)
    return any(
        isinstance(variable, RemotelyHeldVariable) and id(invar) in mentioned
        for variable, invar in zip(candidates, jaxpr.invars, strict=False)
    )


@dataclass(slots=True)
class _Call:
    """The values that a call's stages work with."""

    arrays: list[Any]
    consts: list[Any]
    provided: list[Any]


@dataclass(frozen=True, slots=True)
class Passed:
    """Stands for an operand that goes past the program: one of its inputs, say."""

    place: Place


class RemoteExchange:
    """What a program fetches before it runs and sends afterwards.

    Attributes:
        computes: Whether a stage computes something, from the program's inputs.
    """

    def __init__(
        self, stages: list[_CompiledStage], updates: list[NotedUpdate], num_provided: int
    ) -> None:
        self._stages = stages
        self._updates = updates
        self._num_provided = num_provided
        self.computes = any(stage.computes for stage in stages)

    def fetch(self, arrays: list[Any], consts: list[Any]) -> _Call:
        """Returns the call with the program's further constants provided, given its inputs."""
        call = _Call(arrays, consts, [None] * self._num_provided)
        for stage in self._stages:
            stage.run(call)
        return call

    def send(self, operands: list[list[Any]], call: _Call) -> None:
        """Sends the updates, whose operands the program has computed or passed."""
        if self._updates:
            send(
                [
                    (
                        noted.variable,
                        noted.update,
                        [leaf.place(call) if isinstance(leaf, Passed) else leaf for leaf in leaves],
                    )
                    for noted, leaves in zip(self._updates, operands, strict=True)
                ]
            )


class _Places:
    """Where a call finds the value of each variable of a jaxpr."""

    def __init__(
        self,
        jaxpr: Any,
        candidates: Sequence[Variable],
        provided: Sequence[Any],
        group: ReplicaGroup | None,
    ) -> None:
        self._places: dict[int, Place] = {}
        for position, const in enumerate(jaxpr.constvars):
            self._places[id(const)] = _item("consts", position)
        for position, invar in enumerate(jaxpr.invars[len(candidates) :]):
            self._places[id(invar)] = _item("arrays", position)
        self.slot = {id(v): position for position, v in enumerate(provided)}
        for key, position in self.slot.items():
            self._places[key] = _item("provided", position)
        self._lasting = set(self._places)
        for variable, invar in zip(candidates, jaxpr.invars, strict=False):
            self._places.setdefault(id(invar), _local_value(variable, group))

    def lasts(self, atom: Any) -> bool:
        """Returns whether an atom's value can be found and is the same after the program has run."""
        return isinstance(atom, jax_core().Literal) or id(atom) in self._lasting

    def place(self, atom: Any) -> Place:
        """Returns how to find an atom's value, or a known array."""
        if isinstance(atom, jax_core().Literal):
            return lambda call: atom.val
        return self._places.get(id(atom)) or (lambda call: atom)


def _item(values: str, position: int) -> Place:
    return lambda call: getattr(call, values)[position]


def _local_value(variable: Variable, group: ReplicaGroup | None) -> Place:
    def value(call: _Call) -> Any:
        with STORAGE_LOCK:
            # From now on shared: no other call may give the array away before the stage has run.
            variable.snapshot()
            return variable.take_for_program(group, False)

    return value


class _CompiledStage:
    """A stage, ready to run.

    Attributes:
        computes: Whether it computes something.
    """

    def __init__(
        self,
        stage: Stage,
        updates: Sequence[NotedUpdate],
        places: _Places,
        group: ReplicaGroup | None,
    ) -> None:
        segment = stage.segment
        self._compute = _compile(segment) if segment.jaxpr.eqns else None
        self.computes = self._compute is not None
        self._inputs = [places.place(v) for v in segment.inputs]
        self._outputs = [places.slot[id(v)] for v in segment.outputs]
        self._updates = [
            (updates[staged.position], [places.place(atom) for atom in staged.operands])
            for staged in stage.updates
        ]
        self._reads = [
            (read.variable, None if read.indices is None else places.place(read.indices))
            for read in stage.reads
        ]
        self._results = [places.slot[id(read.result)] for read in stage.reads]
        self._serialize = group is not None and group.serialize_programs

    def run(self, call: _Call) -> None:
        """Computes, sends and fetches."""
        if self._compute is not None:
            inputs = [place(call) for place in self._inputs]
            computed = launch(self._compute, (inputs,), self._serialize)
            for slot, value in zip(self._outputs, computed, strict=True):
                call.provided[slot] = value
        if self._updates:
            send(
                [
                    (noted.variable, noted.update, [place(call) for place in operands])
                    for noted, operands in self._updates
                ]
            )
        fetched = fetch(
            [(variable, None if rows is None else rows(call)) for variable, rows in self._reads]
        )
        for slot, value in zip(self._results, fetched, strict=True):
            call.provided[slot] = value


def _compile(segment: Segment) -> Callable[[list[Any]], list[Any]]:
    def compute(inputs: list[Any]) -> list[Any]:
        return jax.core.eval_jaxpr(segment.jaxpr, (), *inputs)

    return jax.jit(compute)
