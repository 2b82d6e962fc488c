"""Chooses how the replicas of a call run: a single replica, eager threads, or one SPMD program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from stratagem._src.core.errors import ContextError
from stratagem._src.core.torch_tensors import check_not_tensor
from stratagem._src.core.types import Leaf
from stratagem._src.current_strategy import context
from stratagem._src.execution.bound_function import CompiledFunction
from stratagem._src.execution.dataset_loops.step_cache import compiled_step
from stratagem._src.execution.flax_modules import ModuleArguments
from stratagem._src.execution.gradient_frame import GradientFrame
from stratagem._src.execution.replicas.single import SingleChannel
from stratagem._src.execution.replicas.spmd import run_spmd
from stratagem._src.execution.replicas.thread_channel import ThreadChannel
from stratagem._src.execution.replicas.threads import ReplicaThreads
from stratagem._src.execution.tracing_frame import TracingFrame
from stratagem._src.jax_compat.tracing import is_tracer, under_jit
from stratagem._src.mesh import process_settings as config
from stratagem._src.mesh.logical_devices import PartitionedGroup, tracing_alone
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.replica_context import ReplicaContext
from stratagem._src.values.host_arrays import copy_host_arrays, own_host_array
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica, check_size
from stratagem._src.values.regroup import map_values, regroup
from stratagem._src.variables import frames, transactions

if TYPE_CHECKING:
    from stratagem._src.strategies.base import Strategy

__all__ = ["call_for_each_replica"]


def call_for_each_replica(
    strategy: Strategy,
    group: ReplicaGroup,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Returns the merged results of ``fn`` in every replica of ``group``."""
    strategy.extended.check_rules()
    frame = frames.current_frame()
    staged = frame is not None or under_jit()
    if frame is not None:
        frame.note_step(fn)
    steps = None if staged else compiled_step(fn)
    if steps is not None:
        return steps.run(strategy, fn, tuple(args), kwargs)
    if isinstance(fn, CompiledFunction):
        if not staged and not config.functions_run_eagerly():
            return fn.run_in_replicas(strategy, tuple(args), kwargs)
        fn = fn.replica_function
    if frame is not None and frame.spmd:
        raise ContextError(
            "strategy.run() cannot be called from merge_call inside a compiled step, which is one "
            "program for all replicas already. Call the function directly, or run the step eagerly."
        )
    if group.size == 1:
        return _run_alone(strategy, group, fn, args, kwargs, staged=staged)
    if not staged:
        return _run_threads(strategy, group, fn, args, kwargs)
    if frame is not None and not _is_traced(frame):
        raise ContextError(
            "strategy.run() with several replicas cannot be differentiated from outside while it runs "
            "eagerly. Call value_and_grad inside the replica function, or put it all into a "
            "stratagem.function."
        )
    return run_spmd(
        strategy, group, lambda channel: ReplicaContext(strategy, channel), fn, args, kwargs
    )


def _is_traced(frame: frames.StateFrame) -> bool:
    """Returns whether a function is being traced around ``frame``, rather than only a gradient taken."""
    while isinstance(frame, GradientFrame) and frame.parent is not None:
        frame = frame.parent
    return isinstance(frame, TracingFrame)


def _run_alone(
    strategy: Strategy,
    group: ReplicaGroup,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    staged: bool,
) -> Any:
    replica = ReplicaContext(strategy, SingleChannel(strategy))
    frame = frames.current_frame()
    if frame is not None:
        frame.use_group(group)

    is_traced = frame is not None and _is_traced(frame)

    def component(leaf: Leaf) -> Any:
        if isinstance(leaf, PerReplica):
            check_size(leaf, group)
            if is_traced and isinstance(group, PartitionedGroup):
                return group.constrain_batch(leaf.values[0])
        if isinstance(leaf, (PerReplica, Mirrored)):
            leaf = leaf.values[0]
        if isinstance(leaf, jax.Array) and not staged:
            return jax.device_put(leaf, group.devices[0])
        check_not_tensor(leaf)
        return own_host_array(leaf)

    with tracing_alone(group) if is_traced else contextlib.nullcontext():
        local_args, local_kwargs = map_values(component, (tuple(args), kwargs))
    modules = ModuleArguments((local_args, local_kwargs))

    def call() -> Any:
        result = fn(*local_args, **local_kwargs)
        modules.warn_of_discarded_changes(result)
        return result

    with context.enter(context.Frame(strategy, replica)):
        if is_traced:
            with tracing_alone(group):
                return call()
        if staged:
            return call()
        with jax.default_device(group.devices[0]):
            return transactions.atomically(lambda _: call())


def _run_threads(
    strategy: Strategy,
    group: ReplicaGroup,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    threads = ReplicaThreads(strategy, group)
    placed = map_values(lambda leaf: _spread(leaf, group), (tuple(args), kwargs))

    def body(index: int) -> Callable[[], Any]:
        replica = ReplicaContext(strategy, ThreadChannel(strategy, group, threads, index))

        def call() -> Any:
            local_args, local_kwargs = map_values(
                lambda leaf: leaf.values[index] if isinstance(leaf, PerReplica) else leaf, placed
            )
            modules = ModuleArguments((local_args, local_kwargs))
            with context.enter(context.Frame(strategy, replica)):
                result = fn(*local_args, **local_kwargs)
                modules.warn_of_discarded_changes(result)
                return copy_host_arrays(result)

        return call

    bodies = [body(index) for index in range(group.local_size)]
    return threads.run(bodies, lambda results: regroup(group, results))


def _spread(leaf: Leaf, group: ReplicaGroup) -> Any:
    """Returns ``leaf`` as a per-replica value with each component on its own device."""
    if isinstance(leaf, Mirrored):
        return PerReplica(leaf.values, group)
    if isinstance(leaf, PerReplica):
        check_size(leaf, group)
        return leaf
    if not isinstance(leaf, jax.Array):
        check_not_tensor(leaf)
        return own_host_array(leaf)
    if is_tracer(leaf):
        raise ContextError(
            "strategy.run() with several replicas got a traced argument while it runs eagerly. "
            "Differentiate inside the replica function, or put it all into a stratagem.function."
        )
    if leaf.sharding == group.replicated:
        return PerReplica(group.shards(leaf), group)
    return PerReplica([jax.device_put(leaf, device) for device in group.local_devices], group)
