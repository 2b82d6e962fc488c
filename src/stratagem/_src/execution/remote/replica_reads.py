"""Lifts remote reads of replicas out of the SPMD program: one read serves all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.collectives.mapped_jaxpr import MappedInput, MappedJaxpr
from stratagem._src.core.types import Atom, Jaxpr
from stratagem._src.execution.remote.reads import Read, find_reads
from stratagem._src.execution.remote.remote_access import PendingUpdate
from stratagem._src.execution.remote.stages import StagedUpdate, Stages, split_into_stages
from stratagem._src.variables.frames import StateFrame

__all__ = ["lift_replica_reads"]


def lift_replica_reads(
    replicas: MappedJaxpr,
    jaxpr: Jaxpr,
    wanted: Sequence[Any],
    updates: Sequence[PendingUpdate],
    outer: StateFrame,
) -> Stages:
    """Makes the remote reads of a replica in the outer frame, once for all replicas.

    Args:
        replicas: Evaluates parts of the jaxpr; it is provided with the values that are read.
        jaxpr: The jaxpr of a replica; its last outputs are the operands of its updates.
        wanted: Its other outputs.
        updates: The updates, in order; those that must be sent before a read are forwarded to ``outer``.
        outer: The frame around the replicas.

    Returns:
        The stages of the jaxpr, and the rest that remains to be evaluated.
    """
    operands = iter(jaxpr.outvars[len(wanted) :])
    staged = [
        StagedUpdate(
            position, noted.variable, tuple(next(operands) for _ in jax.tree.leaves(noted.operand))
        )
        for position, noted in enumerate(updates)
    ]
    split = split_into_stages(jaxpr, find_reads(jaxpr), staged, wanted)
    for stage in split.stages:
        segment = stage.segment
        sent = [atom for update in stage.updates for atom in update.operands]
        # Row numbers that are an unchanged argument of the replica need no program.
        row_numbers = [
            read.indices
            for read in stage.reads
            if read.indices is not None and not _is_per_replica(replicas, read.indices)
        ]
        outvars = [*segment.outputs, *row_numbers, *sent]
        dims = [*[0] * (len(outvars) - len(sent)), *[None] * len(sent)]
        values = iter(replicas.call(segment.jaxpr.eqns, outvars, dims))
        for var in segment.outputs:
            replicas.provide(MappedInput(var, next(values), 0))
        indices = {id(atom): next(values) for atom in row_numbers}
        for update in stage.updates:
            updates[update.position].forward(values, outer)
        for read in stage.reads:
            replicas.provide(_read(read, replicas, indices, outer))
    return split


def _is_per_replica(replicas: MappedJaxpr, atom: Atom) -> bool:
    known = replicas.known(atom)
    return known is not None and known.sharded


def _read(
    read: Read, replicas: MappedJaxpr, indices: dict[int, Any], outer: StateFrame
) -> MappedInput:
    if read.indices is None:
        return MappedInput(read.result, outer.read(read.variable))
    numbers = indices.get(id(read.indices))
    if numbers is None:
        known = replicas.known(read.indices)
        assert known is not None
        numbers = known.value
    return MappedInput(read.result, outer.read_rows(read.variable, numbers), 0)
