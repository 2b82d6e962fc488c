"""Remote variables in a step of several replicas: read for all at once, outside of the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.collectives.mapped_jaxpr import MappedInput, MappedJaxpr
from stratagem._src.execution.remote.reads import Read, find_reads
from stratagem._src.execution.remote.remote_access import NotedUpdate
from stratagem._src.execution.remote.stages import StagedUpdate, Stages, cut
from stratagem._src.variables.access import StateFrame

__all__ = ["exchange_for_replicas"]


def exchange_for_replicas(
    replicas: MappedJaxpr,
    jaxpr: Any,
    wanted: Sequence[Any],
    updates: Sequence[NotedUpdate],
    around: StateFrame,
) -> Stages:
    """Makes a replica's reads of rows in the frame around the replicas, for all of them.

    Args:
        replicas: Evaluates parts of the jaxpr; what is read is provided to it.
        jaxpr: The replica's: its last outputs are the operands of its updates.
        wanted: Its other outputs.
        updates: The updates, in order; what must be sent before a read is handed on to ``around``.
        around: The frame around the replicas.

    Returns:
        What remains of the jaxpr.
    """
    operands = iter(jaxpr.outvars[len(wanted) :])
    staged = [
        StagedUpdate(
            position, noted.variable, tuple(next(operands) for _ in jax.tree.leaves(noted.operand))
        )
        for position, noted in enumerate(updates)
    ]
    parts = cut(jaxpr, find_reads(jaxpr), staged, wanted)
    for stage in parts.stages:
        segment = stage.segment
        sent = [atom for update in stage.updates for atom in update.operands]
        # Row numbers that are a replica's argument as it is need no program.
        asked = [
            read.indices
            for read in stage.reads
            if read.indices is not None and not _is_per_replica(replicas, read.indices)
        ]
        outvars = [*segment.outputs, *asked, *sent]
        split = [*[0] * (len(outvars) - len(sent)), *[None] * len(sent)]
        values = iter(replicas.call(segment.jaxpr.eqns, outvars, split))
        for var in segment.outputs:
            replicas.provide(MappedInput(var, next(values), 0))
        indices = {id(atom): next(values) for atom in asked}
        for update in stage.updates:
            updates[update.position].hand_on(values, around)
        for read in stage.reads:
            replicas.provide(_made(read, replicas, indices, around))
    return parts


def _is_per_replica(replicas: MappedJaxpr, atom: Any) -> bool:
    known = replicas.known(atom)
    return known is not None and known.sharded


def _made(
    read: Read, replicas: MappedJaxpr, indices: dict[int, Any], around: StateFrame
) -> MappedInput:
    if read.indices is None:
        return MappedInput(read.result, around.read(read.variable))
    numbers = indices.get(id(read.indices))
    if numbers is None:
        known = replicas.known(read.indices)
        assert known is not None
        numbers = known.value
    return MappedInput(read.result, around.read_rows(read.variable, numbers), 0)
