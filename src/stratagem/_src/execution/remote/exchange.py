"""What a compiled step fetches from other processes before it runs and sends to them afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.execution.buffer_donation import alive, all_alive, lend_for_long
from stratagem._src.execution.remote.stages import Segment, Stage
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.telemetry.measurement.recorder import Recorder
from stratagem._src.variables.remote_batch import fetch, send
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = ["CompiledStage", "MeasuredExchange", "Passed", "Places", "RemoteExchange", "SentUpdate"]

Place = Callable[["CallValues"], Any]
"""Where a call finds a value."""


@dataclass(slots=True)
class CallValues:
    """The values that a call's stages work with."""

    arrays: list[Any]
    consts: list[Any]
    provided: list[Any]


@dataclass(frozen=True, slots=True)
class SentUpdate:
    """An update of a program, of a variable that it does not keep alive."""

    reference: weakref.ref[RemotelyHeldVariable]
    update: Update


@dataclass(frozen=True, slots=True)
class Passed:
    """Stands for an operand that goes past the program: one of its inputs, say."""

    place: Place


class RemoteExchange:
    """What a program fetches before it runs and sends afterwards."""

    def __init__(
        self, stages: list[CompiledStage], updates: list[SentUpdate], num_provided: int
    ) -> None:
        self._stages = stages
        self._updates = updates
        self._num_provided = num_provided

    def references(self) -> list[weakref.ref[Any]]:
        """Returns references to the variables."""
        own = [sent.reference for sent in self._updates]
        return [*own, *(reference for stage in self._stages for reference in stage.references())]

    @property
    def sends_updates(self) -> bool:
        """Whether anything is sent."""
        return bool(self._updates) or any(stage.sends_updates for stage in self._stages)

    def hold(self) -> list[Any]:
        """Returns the variables.

        Raises:
            VariablesGone: If one does not exist any more.
        """
        return all_alive(self.references())

    def fetch(self, arrays: list[Any], consts: list[Any]) -> CallValues:
        """Returns the call with the program's further constants provided, given its inputs."""
        call = CallValues(arrays, consts, [None] * self._num_provided)
        for stage in self._stages:
            stage.run(call)
        return call

    def send(self, operands: list[list[Any]], call: CallValues) -> None:
        """Sends the updates, whose operands the program has computed or passed."""
        if self._updates:
            send(
                [
                    (
                        alive(sent.reference),
                        sent.update,
                        [leaf.place(call) if isinstance(leaf, Passed) else leaf for leaf in leaves],
                    )
                    for sent, leaves in zip(self._updates, operands, strict=True)
                ]
            )


class MeasuredExchange:
    """A ``RemoteExchange`` whose time is taken, for whoever observes this process."""

    def __init__(self, exchange: RemoteExchange, observer: Recorder) -> None:
        self._exchange = exchange
        self._observer = observer

    def fetch(self, arrays: list[Any], consts: list[Any]) -> CallValues:
        """See ``RemoteExchange``."""
        return self._observer.communicate(lambda: self._exchange.fetch(arrays, consts))

    def send(self, operands: list[list[Any]], call: CallValues) -> None:
        """See ``RemoteExchange``."""
        jax.block_until_ready(operands)  # what is still computed is not yet sent
        self._observer.communicate(lambda: self._exchange.send(operands, call))


class Places:
    """Where a call finds the value of each variable of a jaxpr."""

    def __init__(
        self,
        jaxpr: Any,
        variables: Sequence[Variable],
        provided: Sequence[Any],
        group: ReplicaGroup | None,
    ) -> None:
        self._places: dict[int, Place] = {}
        for position, const in enumerate(jaxpr.constvars):
            self._places[id(const)] = _item("consts", position)
        for position, invar in enumerate(jaxpr.invars[len(variables) :]):
            self._places[id(invar)] = _item("arrays", position)
        self.slot = {id(v): position for position, v in enumerate(provided)}
        for key, position in self.slot.items():
            self._places[key] = _item("provided", position)
        self._lasting = set(self._places)
        for variable, invar in zip(variables, jaxpr.invars, strict=False):
            self._places.setdefault(id(invar), _local_value(weakref.ref(variable), group))

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


def _local_value(reference: weakref.ref[Variable], group: ReplicaGroup | None) -> Place:
    def value(call: CallValues) -> Any:
        # No other call may give the array away before the stage has run.
        return lend_for_long(alive(reference), group)

    return value


class CompiledStage:
    """A stage, ready to run."""

    def __init__(
        self,
        stage: Stage,
        updates: Sequence[SentUpdate],
        places: Places,
        group: ReplicaGroup | None,
    ) -> None:
        segment = stage.segment
        self._compute = _compile(segment) if segment.jaxpr.eqns else None
        self._inputs = [places.place(v) for v in segment.inputs]
        self._outputs = [places.slot[id(v)] for v in segment.outputs]
        self._updates = [
            (updates[staged.position], [places.place(atom) for atom in staged.operands])
            for staged in stage.updates
        ]
        self._reads = [
            (
                weakref.ref(read.variable),
                None if read.indices is None else places.place(read.indices),
            )
            for read in stage.reads
        ]
        self._results = [places.slot[id(read.result)] for read in stage.reads]
        self._group = group

    def references(self) -> list[weakref.ref[Any]]:
        """Returns references to the variables."""
        sent = [update.reference for update, _ in self._updates]
        return [*sent, *(reference for reference, _ in self._reads)]

    @property
    def sends_updates(self) -> bool:
        """Whether the stage sends anything."""
        return bool(self._updates)

    def run(self, call: CallValues) -> None:
        """Computes, sends and fetches."""
        if self._compute is not None:
            inputs = [place(call) for place in self._inputs]
            computed = launch(self._compute, (inputs,), self._group, "row numbers")
            for slot, value in zip(self._outputs, computed, strict=True):
                call.provided[slot] = value
        if self._updates:
            send(
                [
                    (alive(sent.reference), sent.update, [place(call) for place in operands])
                    for sent, operands in self._updates
                ]
            )
        fetched = fetch(
            [
                (alive(reference), None if rows is None else rows(call))
                for reference, rows in self._reads
            ]
        )
        for slot, value in zip(self._results, fetched, strict=True):
            call.provided[slot] = value


def _compile(segment: Segment) -> Callable[[list[Any]], list[Any]]:
    def compute(inputs: list[Any]) -> list[Any]:
        return jax.core.eval_jaxpr(segment.jaxpr, (), *inputs)

    return jax.jit(compute)
