"""``strategy.run`` inside a compiled step: one SPMD program for all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate

import jax
import jax.numpy as jnp

from stratagem._src.collectives.all_gather import gather_spmd
from stratagem._src.collectives.divergence import check_divergence
from stratagem._src.collectives.mapped_jaxpr import MappedInput, MappedJaxpr
from stratagem._src.core import structures
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError, ShapeMismatchError
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, Leaf, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import ReplicaContextProtocol, StrategyProtocol
from stratagem._src.execution.remote.reads import find_reads
from stratagem._src.execution.remote.remote_access import PendingUpdate
from stratagem._src.execution.replicas.channel import Channel
from stratagem._src.execution.tracing_frames import ReplicaFrame, UserJitFrame
from stratagem._src.execution.variable_reads import lift_reads
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.leaked_tracers import find_leaked_tracers, leaked_tracer_error
from stratagem._src.jax_compat.tracer_owner import belongs_to
from stratagem._src.jax_compat.tracing import active_trace, is_tracer
from stratagem._src.jaxpr.constant_hoisting import current_hoisting
from stratagem._src.mesh.logical_devices import (
    check_partitioned,
    has_layouts,
    may_have_layouts,
    tracing_replica,
)
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.host_arrays import own_host_array
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.values.regroup import is_array, map_values
from stratagem._src.variables import frames

__all__ = ["SpmdChannel", "run_spmd"]


class SpmdChannel:
    """Connects the replicas of one SPMD program."""

    index: int | None = None

    def __init__(
        self, strategy: StrategyProtocol, group: ReplicaGroup, frame: ReplicaFrame
    ) -> None:
        self._strategy = strategy
        self._group = group
        self._frame = frame

    def replica_id(self) -> jax.Array:
        """Returns the position on the mesh axis."""
        return jax.lax.axis_index(REPLICA_AXIS)

    def merge_call(
        self,
        merge_fn: Callable[Concatenate[StrategyProtocol, ...], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls ``merge_fn`` with traced arguments as per-replica values."""
        wrap = self._wrap_traced
        return self._merge(
            lambda strategy: merge_fn(
                strategy,
                *map_values(wrap, tuple(args)),
                **{key: map_values(wrap, value) for key, value in kwargs.items()},
            )
        )

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        """Calls ``fn`` with every array as a per-replica value."""
        wrapped = map_values(lambda leaf: SpmdPerReplica(self._group, leaf), value)
        return self._merge(lambda strategy: fn(strategy, wrapped))

    def all_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        """Returns each leaf reduced over the replicas."""

        def reduce_all(strategy: StrategyProtocol, values: list[Any]) -> Any:
            return strategy.extended.reduce_values(op, values, options)

        reduced: list[Any] = self.merge_per_replica("all_reduce", reduce_all, leaves)
        return reduced

    def all_gather(self, leaves: list[Any], axis: int) -> list[Any]:
        """Returns each leaf concatenated over the replicas."""
        self._frame.flush()
        return [gather_spmd(leaf, axis) for leaf in leaves]

    def _merge(self, fn: Callable[[StrategyProtocol], Any]) -> Any:
        self._frame.flush()
        with context.enter(context.Frame(self._strategy, None)):
            result = fn(self._strategy)
        self._frame.flush()
        return map_values(_unwrap, result)

    def _wrap_traced(self, leaf: Leaf) -> Any:
        return SpmdPerReplica(self._group, leaf) if is_tracer(leaf) else leaf


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
    parent = frames.current_frame()
    assert parent is None or not parent.spmd
    if parent is not None:
        parent.use_group(group)
    leaves, structure = structures.flatten((tuple(args), kwargs), is_value_leaf)
    inputs = [_Input.of(leaf, group) for leaf in leaves]
    arrays = [item for item in inputs if item.array is not None]
    frame: ReplicaFrame | None = None
    outputs = _Outputs()

    def traced(blocks: Sequence[Any]) -> Any:
        remaining = iter(blocks)
        local = [next(remaining) if item.array is not None else item.static for item in inputs]
        local_args, local_kwargs = jax.tree.unflatten(structure, local)
        if frame is None:
            active: frames.StateFrame = UserJitFrame()
            channel_frame = ReplicaFrame(group)
        else:
            active = channel_frame = frame
        active.open()
        replica = make_context(SpmdChannel(strategy, group, channel_frame))
        with context.enter(context.Frame(strategy, replica)), frames.enter(active):
            result = fn(*local_args, **local_kwargs)
            channel_frame.flush()
        written = [] if frame is None else frame.written_values()
        created = [] if frame is None else frame.initial_values()
        operands = [] if frame is None else frame.remote.operands()
        channel_frame.close()
        return outputs.collect(result), written, created, operands

    def trace(with_layouts: bool) -> Any:
        nonlocal frame
        frame = ReplicaFrame(group) if parent is not None else None
        with tracing_replica(group, with_layouts=with_layouts):
            return jax.make_jaxpr(traced, axis_env=[(REPLICA_AXIS, group.size)])(
                [item.local_aval for item in arrays]
            )

    def creates() -> bool:
        # The outer function is then traced once more anyway. A second trace here would create the
        # variables twice.
        return frame is not None and bool(frame.created)

    # Layouts within a replica (tensor parallelism) need automatic mesh axes. Whether the function uses any
    # is only known once it has been traced: a wrong guess is traced again.
    with_layouts = may_have_layouts(group)
    closed = trace(with_layouts)
    if not with_layouts and may_have_layouts(group) and not creates():
        with_layouts, closed = True, trace(True)
    if with_layouts and not has_layouts(closed.jaxpr) and not creates():
        with_layouts, closed = False, trace(False)
    if with_layouts:
        check_partitioned(group, closed.jaxpr)
    # The jaxpr of one replica returns the results, new values and initial values of variables, and the
    # operands of remote updates, in this order.
    variables, jaxpr = lift_reads(closed.jaxpr)
    captured, hoisting = closed.consts, current_hoisting()
    if hoisting is not None and not creates():
        jaxpr, captured = hoisting.hoist(jaxpr, captured)
    consts = [_placed(const, group) for const in captured]
    of_arrays = [item.per_replica for item in arrays]
    of_variables = [variable.program_shard_dim for variable in variables]
    check_divergence(jaxpr, [*(s is not None for s in of_variables), *of_arrays], group.size)
    # A gradient tape around the replicas cannot see their reads, so it is told of the values they get.
    variable_values = (
        [
            parent.read(v)
            if v.program_shard_dim is not None
            else frames.record_read(v, parent.read(v))
            for v in variables
        ]
        if parent is not None
        else []
    )
    replicas = MappedJaxpr(
        jaxpr,
        group,
        [MappedInput(const, value) for const, value in zip(jaxpr.constvars, consts, strict=True)]
        + [
            MappedInput(invar, value, split)
            for invar, split, value in zip(
                jaxpr.invars, of_variables, variable_values, strict=False
            )
        ]
        + [
            MappedInput(invar, item.array, 0 if item.per_replica else None)
            for invar, item in zip(jaxpr.invars[len(variables) :], arrays, strict=True)
        ],
        manual_axes={REPLICA_AXIS} if with_layouts else set(group.mesh.axis_names),
    )
    if frame is None or parent is None:
        return outputs.rebuild(replicas.call(jaxpr.eqns, jaxpr.outvars), group)
    written = list(frame.written.values())
    split = [
        *[0] * outputs.num_arrays,
        *(variable.program_shard_dim for variable in written),
        *[None] * len(frame.created),
    ]
    wanted = jaxpr.outvars[: len(split)]
    updates = frame.remote.updates
    sent_after: list[PendingUpdate] = []
    if updates or find_reads(jaxpr):
        # Imported lazily, to keep `import stratagem` cheap.
        from stratagem._src.execution.remote.replica_reads import lift_replica_reads

        remaining = lift_replica_reads(replicas, jaxpr, wanted, updates, parent)
        sent_after = [updates[update.position] for update in remaining.updates]
        operands = [atom for update in remaining.updates for atom in update.operands]
        dims = [*split, *[None] * len(operands)]
        values = iter(replicas.call(remaining.equations, [*wanted, *operands], dims))
    else:
        values = iter(replicas.call(jaxpr.eqns, wanted, split))
    own = [next(values) for _ in range(outputs.num_arrays)]
    new_values = [next(values) for _ in written]
    for variable in frame.created:
        parent.create(variable, next(values))
    for variable, value in zip(written, new_values, strict=True):
        parent.check_writable(variable)
        parent.write(variable, value)
    for update in sent_after:
        update.forward(values, parent)
    return outputs.rebuild(own, group)


@dataclass(frozen=True, slots=True)
class _Input:
    """One leaf of the arguments: an array that is an input of the program, or a static value."""

    array: Any = None
    static: Any = None
    per_replica: bool = False
    scalar: bool = False
    local_aval: Any = None

    @classmethod
    def of(cls, leaf: Leaf, group: ReplicaGroup) -> _Input:
        if isinstance(leaf, PerReplica):
            array = leaf.global_array(group)
            if array is None:
                raise ShapeMismatchError(
                    "In a compiled function every replica's argument must be an array of the same "
                    f"shape, got {leaf!r}. Pass it as an argument of the stratagem.function, which then "
                    "runs eagerly for that call."
                )
            aval = jax.ShapeDtypeStruct(leaf.local_shape, array.dtype)
            return cls(array, per_replica=True, scalar=leaf.scalar, local_aval=aval)
        if isinstance(leaf, Mirrored):
            leaf = leaf._value()
        if is_array(leaf):
            leaf = jnp.asarray(guard_int64(leaf)) if not isinstance(leaf, jax.Array) else leaf
            weak_type = getattr(leaf, "weak_type", False)
            aval = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak_type)
            return cls(_placed(leaf, group), local_aval=aval)
        return cls(static=leaf)


class _Outputs:
    """Splits a replica's result into arrays and static leaves, and rebuilds it."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._static: list[Any] = []
        self._is_array: list[bool] = []
        self._scalar: list[bool] = []

    @property
    def num_arrays(self) -> int:
        return len(self._scalar)

    def collect(self, result: PyTree) -> list[Any]:
        leaves, self._structure = structures.flatten(result, is_value_leaf)
        leaves = [_unwrap(leaf) for leaf in leaves]
        self._is_array = [is_array(leaf) for leaf in leaves]
        arrays = [jnp.asarray(guard_int64(leaf)) for leaf in leaves if is_array(leaf)]
        self._scalar = [array.ndim == 0 for array in arrays]
        self._static = [None if is_array(leaf) else leaf for leaf in leaves]
        _check_static(self._static)
        return arrays

    def rebuild(self, arrays: Sequence[Any], group: ReplicaGroup) -> Any:
        values = (
            PerReplica.from_global(group, array, scalar=scalar)
            for array, scalar in zip(arrays, self._scalar, strict=True)
        )
        leaves = [
            next(values) if array else static
            for array, static in zip(self._is_array, self._static, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)


def _check_static(leaves: Sequence[Any]) -> None:
    """Checks that no object in a replica's result holds an array of the replica's trace."""
    trace = active_trace()
    for leaf in leaves:
        if not isinstance(leaf, structures.ValueLeaf):
            for way, tracer in find_leaked_tracers(leaf):
                if belongs_to(tracer, trace):
                    raise leaked_tracer_error(leaf, way)


def _placed(value: ArrayLike, group: ReplicaGroup) -> Any:
    if is_tracer(value):
        return value
    # A copy: later changes of a captured NumPy array must not change the program.
    taken_value = value if isinstance(value, jax.Array) else own_host_array(value)
    return evaluate_now(lambda: group.replicate(jnp.asarray(taken_value)))


def _unwrap(leaf: Leaf) -> Any:
    if isinstance(leaf, SpmdPerReplica):
        return leaf.local
    if isinstance(leaf, PerReplica):
        if leaf._group is not None and leaf._group.spans_processes:
            raise ContextError(
                "A PerReplica that was made outside of a multi-process compiled function cannot be "
                "returned from merge_call inside it. Pass it as an argument of the function."
            )
        return jnp.stack(leaf.values)[jax.lax.axis_index(REPLICA_AXIS)]
    return leaf._value() if isinstance(leaf, Mirrored) else leaf
