"""``ThreadChannel``: the channel of a replica that runs as a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collectives.all_gather import component_shapes, gather
from stratagem._src.core import structures
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import Leaf, PyTree, Tensor, Tracer
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.replicas.threads import Barrier, ReplicaThreads
from stratagem._src.jax_compat.recording_trace import is_recorded
from stratagem._src.jax_compat.tracing import is_tracer, under_jit
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.host_arrays import (
    HostArraySnapshot,
    copy_host_arrays,
    merge_snapshots,
    own_host_array,
)
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.values.regroup import is_array, map_values, regroup, select_replica

__all__ = ["ThreadChannel"]


class ThreadChannel:
    """Connects replica ``index`` with the other threads of the same ``run``."""

    def __init__(
        self, strategy: StrategyProtocol, group: ReplicaGroup, threads: ReplicaThreads, index: int
    ) -> None:
        self._strategy = strategy
        self._group = group
        self._threads = threads
        self.index: int | None = index
        self._position = index

    def replica_id(self) -> jax.Array:
        """Returns the index as an array on the replica's device."""
        number = np.int32(self._group.first_local + self._position)
        return jax.device_put(number, self._group.local_devices[self._position])

    def merge_call(
        self,
        merge_fn: Callable[Concatenate[StrategyProtocol, ...], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls ``merge_fn`` in the thread that called ``run``."""

        def action(payloads: list[Any]) -> Sequence[Any]:
            given = merge_snapshots(payloads)
            merged_args, merged_kwargs = regroup(self._group, given, unwrap_same_arrays=True)
            return self._hand_back(merge_fn(self._strategy, *merged_args, **merged_kwargs))

        code = getattr(merge_fn, "__code__", None)
        name = getattr(merge_fn, "__qualname__", type(merge_fn).__name__)
        line = "" if code is None else f", line {code.co_firstlineno}"
        return self._wait_at_barrier(
            f"merge_call({name}{line})", action, HostArraySnapshot.of((tuple(args), kwargs))
        )

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        """Calls ``fn`` in the thread that called ``run``."""

        def action(payloads: list[Any]) -> Sequence[Any]:
            return self._hand_back(fn(self._strategy, self._wrap(payloads)))

        return self._wait_at_barrier(label, action, copy_host_arrays(value))

    def all_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        """Returns each leaf reduced over the replicas; differentiable in reverse mode."""
        parts = jax.tree.leaves(leaves)
        if not any(is_tracer(part) for part in parts) and not is_recorded(parts):
            return self._all_reduce(op, leaves, options)
        leaves = [
            x if isinstance(x, IndexedSlices) else jnp.asarray(own_host_array(x)) for x in leaves
        ]
        results: list[Any] = [None] * len(leaves)
        dense = [
            i
            for i, leaf in enumerate(leaves)
            if not isinstance(leaf, IndexedSlices) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, IndexedSlices):
                values, indices = self.all_gather([leaf.values, leaf.indices], 0)
                values = values / self._group.size if op is ReduceOp.MEAN else values
                results[i] = IndexedSlices(values, indices, leaf.dense_shape)
            elif i not in dense:
                results[i] = self._all_reduce(op, [_without_gradient(leaf)], options)[0]
        reduced = self._traced_reduce(op, [leaves[i] for i in dense], options)
        for i, result in zip(dense, reduced, strict=True):
            results[i] = result
        return results

    def all_gather(self, leaves: list[Any], axis: int) -> list[Any]:
        """Returns each leaf concatenated over the replicas; differentiable in reverse mode."""
        if not any(is_tracer(leaf) for leaf in leaves) and not is_recorded(leaves):
            return self._all_gather(leaves, axis)[0]

        # With nested tapes, the outer ones record what the inner one computes.
        @jax.custom_vjp
        def gathered(parts: list[Any]) -> list[Any]:
            return self.all_gather(parts, axis)

        def forward(parts: list[Any]) -> tuple[list[Any], list[int]]:
            if not is_recorded(parts):
                return self._all_gather(parts, axis)
            return self.all_gather(parts, axis), self._all_gather(parts, axis)[1]

        def backward(starts: list[int], cotangents: list[Any]) -> tuple[list[Any]]:
            summed = self._traced_reduce(ReduceOp.SUM, list(cotangents), None)
            return (
                [
                    jax.lax.dynamic_slice_in_dim(total, start, np.shape(leaf)[axis], axis)
                    for total, start, leaf in zip(summed, starts, leaves, strict=True)
                ],
            )

        gathered.defvjp(forward, backward)
        return gathered(leaves)

    def _traced_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        extremum = op in (ReduceOp.MIN, ReduceOp.MAX)
        if not any(is_tracer(leaf) for leaf in leaves) and not is_recorded(leaves):
            return self._all_reduce(op, leaves, options)

        @jax.custom_vjp
        def reduced(parts: list[Any]) -> list[Any]:
            return again(op, parts)

        def again(op: ReduceOp, parts: list[Any]) -> list[Any]:
            # With nested tapes, the outer ones record what the inner one computes.
            recorded = is_recorded(parts)
            return (self._traced_reduce if recorded else self._all_reduce)(op, parts, options)

        def forward(parts: list[Any]) -> tuple[list[Any], Any]:
            results = again(op, parts)
            return results, (parts, results) if extremum else None

        def backward(residuals: PyTree, cotangents: list[Any]) -> tuple[list[Any]]:
            # The transpose of a sum (mean) over replicas is a sum (mean) of the cotangents. For an extremum
            # the gradient goes to the replicas that hold it, in equal shares.
            back = ReduceOp.SUM if extremum else op
            totals = again(back, list(cotangents))
            if not extremum:
                return (totals,)
            holds = [
                ((p == r) | (jnp.isnan(p) & jnp.isnan(r))).astype(p.dtype)
                for p, r in zip(*residuals, strict=True)
            ]
            counts = self._all_reduce(ReduceOp.SUM, holds, options)
            return ([t * h / c for t, h, c in zip(totals, holds, counts, strict=True)],)

        reduced.defvjp(forward, backward)
        return reduced(leaves)

    def _all_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        def reduce_all(strategy: StrategyProtocol, values: list[Any]) -> list[Any]:
            return strategy.extended.reduce_values(op, values, options)

        arrays = map_values(jnp.asarray, leaves)
        reduced: list[Any] = self.merge_per_replica(f"all_reduce({op.name})", reduce_all, arrays)
        return reduced

    def _all_gather(self, leaves: list[Any], axis: int) -> tuple[list[Any], list[int]]:
        def action(payloads: list[Any]) -> Sequence[Any]:
            wrapped = self._wrap(payloads)
            gathered = self._hand_back([gather(value, axis, self._group) for value in wrapped])
            # For each leaf, the offset of each replica's part in the gathered array.
            columns = [self._starts(value, axis) for value in wrapped]
            starts = [list(row) for row in zip(*columns, strict=True)]
            return list(zip(gathered, starts, strict=True))

        arrays = [x if isinstance(x, jax.Array) else jnp.asarray(own_host_array(x)) for x in leaves]
        answer: tuple[list[Any], list[int]] = self._wait_at_barrier(
            f"all_gather(axis={axis})", action, arrays
        )
        return answer

    def _starts(self, value: PerReplica, axis: int) -> list[int]:
        sizes = [shape[axis] for shape in component_shapes(value, self._group)]
        first = self._group.first_local
        return [sum(sizes[:replica]) for replica in range(first, first + self._group.local_size)]

    def _wait_at_barrier(
        self, label: str, action: Callable[[list[Any]], Sequence[Any]], payload: PyTree
    ) -> Any:
        if under_jit() or any(is_tracer(leaf) for leaf in structures.leaves_of(payload)):
            raise ContextError(
                f"{label} is called inside a JAX transformation (jax.jit, jax.vmap, lax.scan, "
                "jax.jvp, ...) of a replica that runs eagerly, where it cannot reach the other "
                "replicas. Put the whole step into a stratagem.function."
            )
        return self._threads.wait_at(self._position, Barrier(label, action, payload))

    def _wrap(self, payloads: list[Any]) -> Any:
        """Returns the payloads' structure with every array as a ``PerReplica``."""
        return regroup(self._group, payloads)

    def _hand_back(self, result: PyTree) -> list[Any]:
        """Returns each replica's component of a merged result."""

        def place(leaf: Leaf) -> Any:
            if is_array(leaf) and isinstance(leaf, jax.Array):
                return Mirrored(self._group, self._group.replicate(leaf))
            return leaf

        placed = map_values(place, result)
        return [
            select_replica(index, placed) if self._group.size > 1 else result
            for index in range(self._group.local_size)
        ]


def _without_gradient(value: Tracer) -> Any:
    """Returns the concrete value of integers that are traced only because a gradient is taken."""
    kept: list[Any] = []

    @jax.custom_vjp
    def keep(x: Tensor) -> Any:
        kept.append(x)
        return x

    keep.defvjp(lambda x: (keep(x), None), lambda _, ct: (ct,))
    keep(value)
    return jnp.asarray(kept[-1])
