"""Splits a traced program into stages at the points where it needs values from other processes.

The program becomes a sequence of stages and the rest. A stage computes the numbers of the rows to fetch,
and the operands of updates that must be sent first; then it sends these updates and fetches the rows. Most
programs have one stage that computes nothing. Every operation belongs to exactly one stage or to the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem._src.core.types import Jaxpr
from stratagem._src.execution.remote.reads import Read, is_read
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.jaxpr.dead_code import equations_for

__all__ = ["Segment", "Stage", "StagedUpdate", "Stages", "split_into_stages"]


@dataclass(frozen=True, slots=True, eq=False)
class StagedUpdate:
    """An update of a trace: its position in the trace, and its operand's arrays in the jaxpr."""

    position: int
    variable: Any
    operands: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Some equations of a jaxpr.

    Attributes:
        inputs: The jaxpr's variables that they use and other equations define.
        outputs: Those that they define and other equations use.
        jaxpr: The equations, as a ``Jaxpr`` from ``inputs`` to ``outputs``.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    jaxpr: Jaxpr


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One stage: equations to evaluate, then updates to send, then values to fetch."""

    segment: Segment
    updates: tuple[StagedUpdate, ...]
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """A jaxpr that is split into stages.

    Attributes:
        stages: The stages, in order.
        equations: The equations of the rest.
        updates: The updates that no stage sends.
        provided: The jaxpr's variables that stages define and the rest may use.
    """

    stages: tuple[Stage, ...]
    equations: tuple[Any, ...]
    updates: tuple[StagedUpdate, ...]
    provided: tuple[Any, ...]


def split_into_stages(
    jaxpr: Jaxpr, reads: Sequence[Read], updates: Sequence[StagedUpdate], wanted: Iterable[Any]
) -> Stages:
    """Splits a jaxpr into stages.

    Args:
        jaxpr: A ``Jaxpr`` in which reads are equations or inputs.
        reads: Its reads, in order.
        updates: The updates it computes operands for, in order.
        wanted: Its outputs that are not operands of updates.
    """
    # Forward: repeatedly take the reads that no waiting read blocks, with the updates that must be sent
    # first and the equations that both need. Then backward: what later stages use determines the outputs
    # of each stage.
    # With embedding tables a and b on servers, `b.sparse_read(a.sparse_read(x) + 1)` gives two stages:
    #     stage 0: no equations; fetch rows x of a
    #     stage 1: i = add rows_of_a 1; fetch rows i of b
    # and the rest, which takes the rows of b. Reads that do not depend on each other share a stage, and
    # are fetched together.
    graph = _DependencyGraph(jaxpr, reads)
    finals = [*wanted, *(atom for update in updates for atom in update.operands)]
    everything = graph.equations_for(finals, with_effects=True)
    needed = _uses(everything) | {id(atom) for atom in finals}
    waiting = [read for read in reads if id(read.result) in needed]
    unsent = list(updates)
    assigned: set[int] = set()
    drafts: list[tuple[list[Any], list[StagedUpdate], list[Read]]] = []
    while waiting:
        ready = [read for read in waiting if not _is_blocked(read, waiting, updates, graph)]
        assert ready, "a read can depend on earlier reads only"
        due = [update for update in unsent if any(_precedes(update, read) for read in ready)]
        targets = [read.indices for read in ready if read.indices is not None]
        targets += [atom for update in due for atom in update.operands]
        equations = [
            eqn
            for eqn in graph.equations_for(targets)
            if id(eqn) not in assigned and not is_read(eqn)
        ]
        assigned.update(id(eqn) for eqn in equations)
        drafts.append((equations, due, ready))
        waiting = [read for read in waiting if read not in ready]
        unsent = [update for update in unsent if update not in due]
    rest = [eqn for eqn in everything if id(eqn) not in assigned and not is_read(eqn)]
    later = _uses(rest) | {id(atom) for atom in finals}
    stages: list[Stage] = []
    for equations, due, ready in reversed(drafts):
        requested = [read.indices for read in ready]
        requested += [atom for update in due for atom in update.operands]
        later |= {id(atom) for atom in requested}
        segment = _segment(jaxpr, equations, later)
        stages.append(Stage(segment, tuple(due), tuple(ready)))
        later |= _uses(equations)
    stages.reverse()
    provided: dict[int, Any] = {}
    for stage in stages:
        provided.update((id(v), v) for v in stage.segment.outputs)
        provided.update((id(read.result), read.result) for read in stage.reads)
    return Stages(tuple(stages), tuple(rest), tuple(unsent), tuple(provided.values()))


class _DependencyGraph:
    """Which values of a jaxpr depend on which reads, and which equations compute them."""

    def __init__(self, jaxpr: Jaxpr, reads: Sequence[Read]) -> None:
        self._jaxpr = jaxpr
        # For each variable of the jaxpr, a bit mask of the reads that it depends on.
        # Read 0 has the mask 0b01, read 1 has 0b10, and what is computed from both has 0b11. So one pass
        # over the equations finds all dependencies.
        self._reads: dict[int, int] = {
            id(read.result): 1 << position for position, read in enumerate(reads)
        }
        for eqn in jaxpr.eqns:
            if not is_read(eqn):
                mask = self._mask(eqn.invars)
                if mask:
                    self._reads.update((id(v), mask) for v in eqn.outvars)

    def _mask(self, atoms: Iterable[Any]) -> int:
        mask = 0
        for atom in atoms:
            mask |= self._reads.get(id(atom), 0)
        return mask

    def depend_on(self, atoms: Iterable[Any], read: Read) -> bool:
        """Returns whether ``atoms`` are computed from the value of ``read``."""
        return bool(self._mask(atoms) & self._reads[id(read.result)])

    def equations_for(self, atoms: Iterable[Any], *, with_effects: bool = False) -> list[Any]:
        """Returns all equations that compute ``atoms``, in order."""
        keep = (lambda eqn: bool(eqn.effects)) if with_effects else (lambda eqn: False)
        return equations_for(self._jaxpr.eqns, atoms, keep)


def _segment(jaxpr: Jaxpr, equations: list[Any], used: set[int]) -> Segment:
    """Returns equations of a jaxpr as a separate program.

    Args:
        jaxpr: The jaxpr.
        equations: Some of its equations, in order.
        used: The ids of the jaxpr's variables that are used elsewhere.
    """
    defined = {id(v): v for eqn in equations for v in eqn.outvars}
    inputs = {
        id(v): v
        for eqn in equations
        for v in eqn.invars
        if not isinstance(v, jax_core().Literal) and id(v) not in defined
    }
    outputs = [v for key, v in defined.items() if key in used]
    part = jaxpr.replace(
        constvars=[],
        invars=list(inputs.values()),
        outvars=outputs,
        eqns=equations,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return Segment(tuple(inputs.values()), tuple(outputs), part)


def _precedes(update: StagedUpdate, read: Read) -> bool:
    return update.variable.overlaps(read.variable) and update.position < read.after


def _is_blocked(
    read: Read, waiting: Sequence[Read], updates: Sequence[StagedUpdate], graph: _DependencyGraph
) -> bool:
    """Returns whether a read depends on another one that is still waiting."""
    first = [update for update in updates if _precedes(update, read)]
    atoms = [atom for update in first for atom in update.operands]
    if read.indices is not None:
        atoms.append(read.indices)
    return any(
        other is not read
        and (
            graph.depend_on(atoms, other)
            # The updates that this read needs must not be sent before the other one is made, which would
            # see them.
            or (other.variable.overlaps(read.variable) and other.after < read.after)
        )
        for other in waiting
    )


def _uses(equations: Iterable[Any]) -> set[int]:
    return {id(v) for eqn in equations for v in eqn.invars}
