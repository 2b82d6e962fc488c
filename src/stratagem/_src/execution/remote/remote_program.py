"""A compiled step that uses variables which other processes hold."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.execution.program import Program, ResultLeaf
from stratagem._src.execution.remote.exchange import (
    CompiledStage,
    MeasuredExchange,
    Passed,
    Places,
    RemoteExchange,
    SentUpdate,
)
from stratagem._src.execution.remote.reads import Read, find_reads
from stratagem._src.execution.remote.remote_access import NotedUpdate, RemoteAccess
from stratagem._src.execution.remote.stages import StagedUpdate, cut
from stratagem._src.jax_compat.tracing import jax_core, mentioned_variables, with_constvars
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
from stratagem._src.variables.variable import Variable

__all__ = ["RemoteProgram", "RemoteTrace", "take_apart"]


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
        self.launches_only = False
        self._computes_nothing = (
            not self.has_outputs
            and all(result.output is None for result in self._results)
            and self.variables.writes_nothing
            and self._callback_errors is None
        )

    @property
    def changes_variables(self) -> bool:
        """Whether a run of it changes a variable, here or on a server: that is a step."""
        return super().changes_variables or self._remote.sends_updates

    def references(self) -> list[weakref.ref[Any]]:
        """Returns a reference to each variable of the program, remote ones too."""
        return [*super().references(), *self._remote.references()]

    def run_arrays(self, arrays: list[Any], consts: list[Any] | None = None) -> Any:
        """Fetches, runs the program and sends its updates."""
        consts = self.consts if consts is None else consts
        held = self._remote.hold()
        observer = recorder()
        exchange = self._remote if observer is None else MeasuredExchange(self._remote, observer)
        call = exchange.fetch(arrays, consts)
        if self._computes_nothing:
            result, operands = self.result([])
        else:
            result, operands = super().run_arrays(arrays, [*consts, *call.provided])
        exchange.send(operands, call)
        del held  # kept alive until here
        return result


class RemoteTrace:
    """A traced function that uses remote variables, taken apart.

    Args:
        jaxpr: What was traced: variables and arrays in; results, operands of the updates and new
            values of variables out.
        variables: The variables that are its first inputs.
        updates: The updates of the trace.
        operands: For each update its operand's arrays: atoms of the jaxpr, or known arrays.
        wanted: Those of its outputs that are not operands.
        group: The replicas, if the program uses several or particular devices.
    """

    def __init__(
        self,
        jaxpr: Any,
        variables: Sequence[Variable],
        updates: Sequence[NotedUpdate],
        operands: Sequence[Sequence[Any]],
        wanted: Sequence[Any],
        group: ReplicaGroup | None,
    ) -> None:
        self._jaxpr = jaxpr
        self._group = group
        self._updates = [SentUpdate(weakref.ref(u.variable), u.update) for u in updates]
        mentioned = mentioned_variables(jaxpr)
        self._whole = {
            id(invar): Read(variable, invar)
            for variable, invar in zip(variables, jaxpr.invars, strict=False)
            if isinstance(variable, RemotelyHeldVariable) and id(invar) in mentioned
        }
        staged = [
            StagedUpdate(position, noted.variable, tuple(atoms))
            for position, (noted, atoms) in enumerate(zip(updates, operands, strict=True))
        ]
        reads = [*self._whole.values(), *find_reads(jaxpr)]
        self._parts = cut(jaxpr, reads, staged, wanted)
        self._places = Places(jaxpr, variables, self._parts.provided, group)

    @property
    def remaining(self) -> list[int]:
        """Positions of the updates whose operands the program itself computes."""
        return [update.position for update in self._parts.updates]

    def jaxpr(self, outvars: Sequence[Any]) -> Any:
        """Returns the program's own part, with what was fetched as further constants."""
        fresh = [jax_core().Var(v.aval) if id(v) in self._whole else v for v in self._jaxpr.invars]
        return with_constvars(
            self._jaxpr,
            [*self._jaxpr.constvars, *self._parts.provided],
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
            CompiledStage(stage, self._updates, self._places, self._group)
            for stage in self._parts.stages
        ]
        return RemoteExchange(
            stages,
            [self._updates[position] for position in self.remaining],
            len(self._parts.provided),
        )


def take_apart(
    jaxpr: Any,
    variables: Sequence[Variable],
    written: Sequence[Variable],
    remote: RemoteAccess,
    results: list[ResultLeaf],
    structure: Any,
    group: ReplicaGroup | None,
) -> tuple[list[ResultLeaf], Any, Any, Callable[..., Program]]:
    """Separates what a function does with remote variables from the program itself.

    Args:
        jaxpr: What was traced.
        variables: The variables that are its first inputs.
        written: The variables of this process that get new values.
        remote: What was done with remote variables.
        results: How to build the function's result and, after it, the operands of updates.
        structure: The structure of both.
        group: The replicas, if the program uses several or particular devices.

    Returns:
        Results, structure and jaxpr of the program, and what makes it.
    """
    trace, results, jaxpr = _separate(jaxpr, variables, len(written), remote, results, group)
    remaining = [remote.operands()[i] for i in trace.remaining]
    make = functools.partial(RemoteProgram, trace.exchange())
    return results, _with_operands(structure, remaining), jaxpr, make


def _separate(
    jaxpr: Any,
    variables: Sequence[Variable],
    num_written: int,
    remote: RemoteAccess,
    results: list[ResultLeaf],
    group: ReplicaGroup | None,
) -> tuple[RemoteTrace, list[ResultLeaf], Any]:
    """Separates what a function does with remote variables from the program itself.

    Returns:
        That, and the program: its results, to which the operands of updates belong, and its jaxpr.
    """
    operands = remote.operands()
    num_own = len(results) - sum(map(len, operands))
    own, remaining = results[:num_own], iter(results[num_own:])
    leaves = [[next(remaining) for _ in arrays] for arrays in operands]
    atoms = [
        [leaf.static if leaf.output is None else jaxpr.outvars[leaf.output] for leaf in of_update]
        for of_update in leaves
    ]
    num_outputs = len(jaxpr.outvars) - num_written
    written = jaxpr.outvars[num_outputs:]
    wanted = [jaxpr.outvars[leaf.output] for leaf in own if leaf.output is not None]
    updates = remote.updates
    trace = RemoteTrace(jaxpr, variables, updates, atoms, [*wanted, *written], group)
    kept = [*own]
    for position in trace.remaining:
        for leaf, atom in zip(leaves[position], atoms[position], strict=True):
            passed = None if leaf.output is None else trace.passed(atom)
            kept.append(leaf if passed is None else ResultLeaf(static=passed))
    outvars = [jaxpr.outvars[leaf.output] for leaf in kept if leaf.output is not None]
    numbers = iter(range(len(outvars)))
    renumbered = [
        leaf if leaf.output is None else dataclasses.replace(leaf, output=next(numbers))
        for leaf in kept
    ]
    return trace, renumbered, trace.jaxpr([*outvars, *written])


def _with_operands(structure: Any, operands: list[list[Any]]) -> Any:
    """Returns the structure of a pair: a function's result, and the operands that remain."""
    result = structure.children()[0]
    empty = jax.tree.unflatten(result, [0] * result.num_leaves)
    return jax.tree.structure((empty, [[0] * len(arrays) for arrays in operands]))
