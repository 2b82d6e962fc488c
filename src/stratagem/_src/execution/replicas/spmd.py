"""``strategy.run`` inside a compiled step: one SPMD program for all replicas.

The steps, each with its own result: split the arguments (``ReplicaArgument``), trace one replica
(``ReplicaTrace``), give its jaxpr the values of all replicas (``MappedJaxpr``), evaluate it as one
``shard_map`` of the outer trace, and hand what the replicas wrote to the outer frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.collectives.divergence import check_divergence
from stratagem._src.collectives.mapped_jaxpr import MappedInput, MappedJaxpr
from stratagem._src.core import structures
from stratagem._src.core.types import Jaxpr
from stratagem._src.current_strategy.protocols import ReplicaContextProtocol, StrategyProtocol
from stratagem._src.execution.remote.reads import find_reads
from stratagem._src.execution.remote.remote_access import PendingUpdate
from stratagem._src.execution.replicas.channel import Channel
from stratagem._src.execution.replicas.replica_trace import (
    ReplicaCall,
    ReplicaTrace,
    trace_replica,
)
from stratagem._src.execution.replicas.spmd_values import ReplicaArgument, place_on_replicas
from stratagem._src.execution.variable_reads import lift_reads
from stratagem._src.jax_compat.tracing import without_consts
from stratagem._src.jaxpr.constant_hoisting import current_hoisting
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.variables import frames
from stratagem._src.variables.frames import StateFrame
from stratagem._src.variables.variable import Variable

__all__ = ["run_spmd"]


def run_spmd(
    strategy: StrategyProtocol,
    group: ReplicaGroup,
    make_context: Callable[[Channel], ReplicaContextProtocol],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Traces ``fn`` once for all replicas, and returns its results as per-replica values.

    It runs while an outer function is traced. The replicas become one ``shard_map`` in that trace.

    Args:
        strategy: The strategy, current in the replicas.
        group: The replicas.
        make_context: Makes the replica context of a channel.
        fn: The replica function.
        args: Its positional arguments; each replica gets its component of per-replica values.
        kwargs: Its keyword arguments, likewise.
    """
    outer = frames.current_frame()
    assert outer is None or not outer.spmd
    if outer is not None:
        outer.use_group(group)
    leaves, structure = structures.flatten((tuple(args), kwargs), is_value_leaf)
    arguments = [ReplicaArgument.of(leaf, group) for leaf in leaves]
    call = ReplicaCall(strategy, group, make_context, fn, arguments, structure)
    trace = trace_replica(call, in_function=outer is not None)
    jaxpr, replicas = _map_over_replicas(call, trace, outer)
    if outer is None:
        # In the user's own `jax.jit`: variables are refused there, so there is nothing to hand over.
        return trace.result.rebuild(replicas.call(jaxpr.eqns, jaxpr.outvars), group)
    return trace.result.rebuild(_evaluate(trace, jaxpr, replicas, outer), group)


def _map_over_replicas(
    call: ReplicaCall, trace: ReplicaTrace, outer: StateFrame | None
) -> tuple[Jaxpr, MappedJaxpr]:
    """Returns the jaxpr of a replica with variables as inputs, and with the values of all replicas."""
    group = call.group
    variables, jaxpr = lift_reads(without_consts(trace.closed.jaxpr))
    consts, hoisting = trace.closed.consts, current_hoisting()
    if hoisting is not None and not trace.creates_variables:
        jaxpr, consts = hoisting.hoist(jaxpr, consts)
    values = [] if outer is None else [_read(variable, outer) for variable in variables]
    # The inputs of the lifted jaxpr: variables, then arguments.
    pairs = [
        *zip(values, (variable.program_shard_dim for variable in variables), strict=True),
        *((argument.array, argument.split) for argument in call.inputs),
    ]
    inputs = [
        MappedInput(invar, value, split)
        for invar, (value, split) in zip(jaxpr.invars, pairs, strict=True)
    ]
    check_divergence(jaxpr, [item.sharded for item in inputs], group.size)
    placed = []
    for constvar, const in zip(jaxpr.constvars, consts, strict=True):
        placed.append(MappedInput(constvar, place_on_replicas(const, group)))
        if hoisting is not None:
            hoisting.note_copy(placed[-1].value, const)
    axes = {REPLICA_AXIS} if trace.with_layouts else set(group.mesh.axis_names)
    return jaxpr, MappedJaxpr(jaxpr, group, [*placed, *inputs], manual_axes=axes)


def _read(variable: Variable, outer: StateFrame) -> Any:
    value = outer.read(variable)
    if variable.program_shard_dim is not None:
        return value
    # A gradient tape around the replicas cannot see their reads, so it is told of the values they get.
    return frames.record_read(variable, value)


def _evaluate(
    trace: ReplicaTrace, jaxpr: Jaxpr, replicas: MappedJaxpr, outer: StateFrame
) -> list[Any]:
    """Evaluates the replicas in the outer trace, and applies what they wrote to the outer frame.

    Returns:
        The arrays of the result, for all replicas.
    """
    # How each output of one replica becomes a value of all: 0 puts the replicas one after the other along
    # the first dim, `None` takes one copy, since all are equal, and a sharded variable has a dim of its
    # own. For a step that returns a loss and writes the replicated variable w, `split` is [0, None].
    frame = trace.frame
    written, updates = list(frame.written.values()), frame.remote.updates
    split = [
        *[0] * trace.result.num_arrays,
        *(variable.program_shard_dim for variable in written),
        *[None] * len(frame.created),
    ]
    wanted, equations = jaxpr.outvars[: len(split)], jaxpr.eqns
    sent_after: list[PendingUpdate] = []
    operands: list[Any] = []
    if updates or find_reads(jaxpr):
        # Imported lazily, to keep `import stratagem` cheap.
        from stratagem._src.execution.remote.replica_reads import lift_replica_reads

        remaining = lift_replica_reads(replicas, jaxpr, wanted, updates, outer)
        equations = remaining.equations
        sent_after = [updates[update.position] for update in remaining.updates]
        operands = [atom for update in remaining.updates for atom in update.operands]
    values = iter(replicas.call(equations, [*wanted, *operands], [*split, *[None] * len(operands)]))
    arrays = [next(values) for _ in range(trace.result.num_arrays)]
    new_values = [next(values) for _ in written]
    for variable in frame.created:
        outer.create(variable, next(values))
    for variable, value in zip(written, new_values, strict=True):
        outer.check_writable(variable)
        outer.write(variable, value)
    for update in sent_after:
        update.forward(values, outer)
    return arrays
