"""``RemoteProgram``: a compiled step that uses remote variables."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core.types import Atom, Jaxpr, PyTree, PyTreeDef
from stratagem._src.execution.draws import Draw
from stratagem._src.execution.program import Program, ResultLeaf
from stratagem._src.execution.remote.reads import Read, find_reads
from stratagem._src.execution.remote.remote_access import PendingUpdate, RemoteAccess
from stratagem._src.execution.remote.stages import StagedUpdate, split_into_stages
from stratagem._src.execution.remote.transfers import (
    CompiledStage,
    MeasuredTransfers,
    PassedThrough,
    RemoteTransfers,
    SentUpdate,
    ValueGetters,
)
from stratagem._src.jax_compat.tracing import jax_core, with_constvars
from stratagem._src.jaxpr.walk import mentioned_variables
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.variable import Variable

__all__ = ["RemoteProgram", "RemoteTrace", "split_remote_access"]


class RemoteProgram(Program):
    """A program that fetches the remote values it reads before it runs, and sends updates afterwards.

    Its function returns a pair: the result, and the operands of the updates.

    Args:
        transfers: What to fetch and to send.
        *args: Arguments of ``Program``.
        **kwargs: Keyword arguments of ``Program``.
    """

    def __init__(self, transfers: RemoteTransfers, *args: PyTree, **kwargs: PyTree) -> None:
        super().__init__(*args, **kwargs)
        self._remote = transfers
        self.launches_only = False
        self._computes_nothing = (
            not self.has_outputs
            and all(result.output is None for result in self._results)
            and self.variables.writes_nothing
            and self._callback_errors is None
        )

    @property
    def changes_variables(self) -> bool:
        """Whether it changes a variable, here or on a server; such a run counts as a step."""
        return super().changes_variables or self._remote.sends_updates

    def references(self) -> list[weakref.ref[Any]]:
        """Returns a weak reference to each variable of the program, including remote ones."""
        return [*super().references(), *self._remote.references()]

    def run_arrays(
        self,
        arrays: list[Any],
        consts: list[Any] | None = None,
        draws: list[Draw] | None = None,
    ) -> Any:
        """Fetches remote values, runs the program and sends its updates."""
        consts = self.consts if consts is None else consts
        held = self._remote.hold()
        observer = recorder()
        transfers = self._remote if observer is None else MeasuredTransfers(self._remote, observer)
        call = transfers.fetch(arrays, consts)
        if self._computes_nothing:
            result, operands = self.result([])
        else:
            result, operands = super().run_arrays(arrays, [*consts, *call.provided])
        transfers.send(operands, call)
        if draws is not None:
            del draws[:]
        del held  # keeps the remote variables alive until here
        return result


class RemoteTrace:
    """A traced function that uses remote variables, split into stages and the program itself.

    Args:
        jaxpr: The traced function: takes variables and arrays; returns results, operands of the updates and
            new values of variables.
        variables: The variables that are its first inputs.
        updates: The updates of the trace.
        operands: For each update its operand's arrays: atoms of the jaxpr, or known arrays.
        wanted: Its outputs that are not operands of updates.
        group: The replicas, if the program uses several or particular devices.
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        variables: Sequence[Variable],
        updates: Sequence[PendingUpdate],
        operands: Sequence[Sequence[Any]],
        wanted: Sequence[Any],
        group: ReplicaGroup | None,
    ) -> None:
        self._jaxpr = jaxpr
        self._group = group
        self._updates = [SentUpdate(weakref.ref(u.variable), u.update) for u in updates]
        mentioned = mentioned_variables(jaxpr)
        self._full_reads = {
            id(invar): Read(variable, invar)
            for variable, invar in zip(variables, jaxpr.invars, strict=False)
            if isinstance(variable, BaseRemoteVariable) and id(invar) in mentioned
        }
        staged = [
            StagedUpdate(position, noted.variable, tuple(atoms))
            for position, (noted, atoms) in enumerate(zip(updates, operands, strict=True))
        ]
        reads = [*self._full_reads.values(), *find_reads(jaxpr)]
        self._stages = split_into_stages(jaxpr, reads, staged, wanted)
        self._getters = ValueGetters(jaxpr, variables, self._stages.provided, group)

    @property
    def remaining(self) -> list[int]:
        """Positions of the updates that are sent after the program, not by a stage."""
        return [update.position for update in self._stages.updates]

    def jaxpr(self, outvars: Sequence[Any]) -> Any:
        """Returns the jaxpr of the program itself, with the fetched values as additional constants."""
        fresh = [
            jax_core().Var(v.aval) if id(v) in self._full_reads else v for v in self._jaxpr.invars
        ]
        return with_constvars(
            self._jaxpr,
            [*self._jaxpr.constvars, *self._stages.provided],
            invars=fresh,
            outvars=list(outvars),
            eqns=list(self._stages.equations),
            debug_info=self._jaxpr.debug_info.with_unknown_names(),
        )

    def passed_through(self, atom: Atom) -> PassedThrough | None:
        """Returns how to find an operand that the program need not return, or ``None`` if it must."""
        return PassedThrough(self._getters.getter(atom)) if self._getters.is_stable(atom) else None

    def transfers(self) -> RemoteTransfers:
        """Returns what to fetch before the program runs and to send afterwards."""
        stages = [
            CompiledStage(stage, self._updates, self._getters, self._group)
            for stage in self._stages.stages
        ]
        return RemoteTransfers(
            stages,
            [self._updates[position] for position in self.remaining],
            len(self._stages.provided),
        )


def split_remote_access(
    jaxpr: Jaxpr,
    variables: Sequence[Variable],
    written: Sequence[Variable],
    remote: RemoteAccess,
    results: list[ResultLeaf],
    structure: PyTreeDef,
    group: ReplicaGroup | None,
) -> tuple[list[ResultLeaf], Any, Any, Callable[..., Program]]:
    """Splits a traced function into its remote transfers and the program itself.

    Args:
        jaxpr: The traced function.
        variables: The variables that are its first inputs.
        written: The variables of this process that get new values.
        remote: The updates of remote variables.
        results: How to build the function's result and, after it, the operands of updates.
        structure: The structure of the pair of both.
        group: The replicas, if the program uses several or particular devices.

    Returns:
        Results, structure and jaxpr of the program, and its constructor.
    """
    trace, results, jaxpr = _split(jaxpr, variables, len(written), remote, results, group)
    remaining = [remote.operands()[i] for i in trace.remaining]
    make = functools.partial(RemoteProgram, trace.transfers())
    return results, _with_operands(structure, remaining), jaxpr, make


def _split(
    jaxpr: Jaxpr,
    variables: Sequence[Variable],
    num_written: int,
    remote: RemoteAccess,
    results: list[ResultLeaf],
    group: ReplicaGroup | None,
) -> tuple[RemoteTrace, list[ResultLeaf], Any]:
    """Splits a traced function into its remote transfers and the program itself.

    Returns:
        The split trace; the results of the program, which include the operands of updates; and its jaxpr.
    """
    # `results` are the leaves of the function's own result, then those of every operand:
    #     [loss, ids of update 0, gradient of update 0, ids of update 1, ...]
    # An operand that is known since the trace is a static leaf and no output of the jaxpr.
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
            passed = None if leaf.output is None else trace.passed_through(atom)
            kept.append(leaf if passed is None else ResultLeaf(static=passed))
    outvars = [jaxpr.outvars[leaf.output] for leaf in kept if leaf.output is not None]
    numbers = iter(range(len(outvars)))
    renumbered = [
        leaf if leaf.output is None else dataclasses.replace(leaf, output=next(numbers))
        for leaf in kept
    ]
    return trace, renumbered, trace.jaxpr([*outvars, *written])


def _with_operands(structure: PyTreeDef, operands: list[list[Any]]) -> Any:
    """Returns the structure of the pair of a function's result and the remaining operands."""
    result = structure.children()[0]
    empty = jax.tree.unflatten(result, [0] * result.num_leaves)
    return jax.tree.structure((empty, [[0] * len(arrays) for arrays in operands]))
