"""Remote transfers of a compiled step: it fetches values before it runs and sends updates afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core.types import Atom, Jaxpr
from stratagem._src.execution.buffer_donation import borrow_pinned, dereference, dereference_all
from stratagem._src.execution.remote.stages import Segment, Stage
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.telemetry.measurement.recorder import Recorder
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.remote_batch import fetch, send
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = [
    "CompiledStage",
    "MeasuredTransfers",
    "PassedThrough",
    "RemoteTransfers",
    "SentUpdate",
    "ValueGetters",
]

ValueGetter = Callable[["CallValues"], Any]
"""Returns one value of a call."""


@dataclass(slots=True)
class CallValues:
    """The values of one call: its inputs, its constants, and what its stages have provided so far."""

    arrays: list[Any]
    consts: list[Any]
    provided: list[Any]


@dataclass(frozen=True, slots=True)
class SentUpdate:
    """An update that a program sends; it does not keep the variable alive."""

    reference: weakref.ref[BaseRemoteVariable]
    update: Update


@dataclass(frozen=True, slots=True)
class PassedThrough:
    """An operand that bypasses the program, because it is one of its inputs, for example."""

    get: ValueGetter


class RemoteTransfers:
    """Fetches what a program reads before it runs, and sends its updates afterwards."""

    def __init__(
        self, stages: list[CompiledStage], updates: list[SentUpdate], num_provided: int
    ) -> None:
        self._stages = stages
        self._updates = updates
        self._num_provided = num_provided

    def references(self) -> list[weakref.ref[Any]]:
        """Returns weak references to the variables."""
        own = [sent.reference for sent in self._updates]
        return [*own, *(reference for stage in self._stages for reference in stage.references())]

    @property
    def sends_updates(self) -> bool:
        """Whether anything is sent."""
        return bool(self._updates) or any(stage.sends_updates for stage in self._stages)

    def hold(self) -> list[Any]:
        """Returns the variables.

        Raises:
            VariablesGone: If one has been garbage-collected.
        """
        return dereference_all(self.references())

    def fetch(self, arrays: list[Any], consts: list[Any]) -> CallValues:
        """Runs the stages, and returns the values of the call with the fetched constants."""
        call = CallValues(arrays, consts, [None] * self._num_provided)
        for stage in self._stages:
            stage.run(call)
        return call

    def send(self, operands: list[list[Any]], call: CallValues) -> None:
        """Sends the updates with the operands that the program has computed or passed through."""
        if self._updates:
            send(
                [
                    (
                        dereference(sent.reference),
                        sent.update,
                        [
                            leaf.get(call) if isinstance(leaf, PassedThrough) else leaf
                            for leaf in leaves
                        ],
                    )
                    for sent, leaves in zip(self._updates, operands, strict=True)
                ]
            )


class MeasuredTransfers:
    """A ``RemoteTransfers`` that reports its communication time to a recorder."""

    def __init__(self, transfers: RemoteTransfers, observer: Recorder) -> None:
        self._transfers = transfers
        self._observer = observer

    def fetch(self, arrays: list[Any], consts: list[Any]) -> CallValues:
        """See ``RemoteTransfers``."""
        return self._observer.communicate(lambda: self._transfers.fetch(arrays, consts))

    def send(self, operands: list[list[Any]], call: CallValues) -> None:
        """See ``RemoteTransfers``."""
        jax.block_until_ready(operands)  # the time to compute is not communication time
        self._observer.communicate(lambda: self._transfers.send(operands, call))


class ValueGetters:
    """Finds the value of each variable of a jaxpr among the values of a call."""

    def __init__(
        self,
        jaxpr: Jaxpr,
        variables: Sequence[Variable],
        provided: Sequence[Any],
        group: ReplicaGroup | None,
    ) -> None:
        self._getters: dict[int, ValueGetter] = {}
        for position, const in enumerate(jaxpr.constvars):
            self._getters[id(const)] = _item("consts", position)
        for position, invar in enumerate(jaxpr.invars[len(variables) :]):
            self._getters[id(invar)] = _item("arrays", position)
        self.slot = {id(v): position for position, v in enumerate(provided)}
        for key, position in self.slot.items():
            self._getters[key] = _item("provided", position)
        # A variable of this process is not stable: the program may overwrite it before its value is sent.
        self._stable = set(self._getters)
        # A remote variable that is read in full is an input too, but a stage provides it: it keeps that
        # getter.
        for variable, invar in zip(variables, jaxpr.invars, strict=False):
            self._getters.setdefault(id(invar), _local_value(weakref.ref(variable), group))

    def is_stable(self, atom: Atom) -> bool:
        """Returns whether an atom's value can be found, and is unchanged after the program has run."""
        return isinstance(atom, jax_core().Literal) or id(atom) in self._stable

    def getter(self, atom: Atom) -> ValueGetter:
        """Returns the getter of an atom's value, or of a known array."""
        if isinstance(atom, jax_core().Literal):
            return lambda call: atom.val
        return self._getters.get(id(atom)) or (lambda call: atom)


def _item(values: str, position: int) -> ValueGetter:
    return lambda call: getattr(call, values)[position]


def _local_value(reference: weakref.ref[Variable], group: ReplicaGroup | None) -> ValueGetter:
    def value(call: CallValues) -> Any:
        # Pinned: no other call may donate the array before the stage has run.
        return borrow_pinned(dereference(reference), group)

    return value


class CompiledStage:
    """A stage that is ready to run: its computation is compiled."""

    def __init__(
        self,
        stage: Stage,
        updates: Sequence[SentUpdate],
        getters: ValueGetters,
        group: ReplicaGroup | None,
    ) -> None:
        segment = stage.segment
        self._compute = _compile(segment) if segment.jaxpr.eqns else None
        self._inputs = [getters.getter(v) for v in segment.inputs]
        self._outputs = [getters.slot[id(v)] for v in segment.outputs]
        self._updates = [
            (updates[staged.position], [getters.getter(atom) for atom in staged.operands])
            for staged in stage.updates
        ]
        self._reads = [
            (
                weakref.ref(read.variable),
                None if read.indices is None else getters.getter(read.indices),
            )
            for read in stage.reads
        ]
        self._results = [getters.slot[id(read.result)] for read in stage.reads]
        self._group = group

    def references(self) -> list[weakref.ref[Any]]:
        """Returns weak references to the variables."""
        sent = [update.reference for update, _ in self._updates]
        return [*sent, *(reference for reference, _ in self._reads)]

    @property
    def sends_updates(self) -> bool:
        """Whether the stage sends anything."""
        return bool(self._updates)

    def run(self, call: CallValues) -> None:
        """Computes row numbers and operands, sends updates, then fetches."""
        if self._compute is not None:
            inputs = [get(call) for get in self._inputs]
            computed = launch(self._compute, (inputs,), self._group, "row numbers")
            for slot, value in zip(self._outputs, computed, strict=True):
                call.provided[slot] = value
        if self._updates:
            send(
                [
                    (dereference(sent.reference), sent.update, [get(call) for get in operands])
                    for sent, operands in self._updates
                ]
            )
        fetched = fetch(
            [
                (dereference(reference), None if rows is None else rows(call))
                for reference, rows in self._reads
            ]
        )
        for slot, value in zip(self._results, fetched, strict=True):
            call.provided[slot] = value


def _compile(segment: Segment) -> Callable[[list[Any]], list[Any]]:
    def compute(inputs: list[Any]) -> list[Any]:
        return jax.core.eval_jaxpr(segment.jaxpr, (), *inputs)

    return jax.jit(compute)
