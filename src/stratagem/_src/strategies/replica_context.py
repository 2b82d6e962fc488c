"""``ReplicaContext``: the API for code inside a replica: its id, collectives and ``merge_call``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError, UnsupportedError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.replicas.channel import Channel
from stratagem._src.values.array_operators import operand_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica

if TYPE_CHECKING:
    from stratagem._src.strategies.base import Strategy

__all__ = ["ReplicaContext", "ValueContext"]


class ReplicaContext:
    """The replica that the code runs in; from ``get_replica_context()`` inside ``strategy.run``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def replica_fn():
    ...     replica = sg.distribute.get_replica_context()
    ...     return replica.all_reduce("SUM", replica.replica_id_in_sync_group + 1)
    >>> [int(x) for x in strategy.experimental_local_results(strategy.run(replica_fn))]
    [3, 3]
    """

    def __init__(self, strategy: Strategy, channel: Channel) -> None:
        self._strategy = strategy
        self._channel = channel

    @property
    def strategy(self) -> Strategy:
        """The strategy that runs the replica."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas whose gradients are combined."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> jax.Array | np.int32:
        """Index of this replica, an ``int32`` scalar; in a compiled step a traced value."""
        return self._channel.replica_id()

    @property
    def replica_index(self) -> int | None:
        """Index of this replica as a Python integer, or ``None`` in a compiled step."""
        return self._channel.index

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this replica; in a compiled step, those of all replicas."""
        names = self._strategy.extended.worker_devices
        return names if self._channel.index is None else (names[self._channel.index],)

    def all_reduce(
        self,
        reduce_op: ReduceOp | str,
        value: PyTree,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Returns ``value`` combined over all replicas, in each of them.

        Differentiable: the gradient of a SUM is the SUM of the gradients, of a MEAN their MEAN.

        Args:
            reduce_op: ``SUM``, ``MEAN``, ``MIN`` or ``MAX``.
            value: Any structure of arrays, numbers and ``IndexedSlices``; the same in all replicas.
            options: Packing (bucketing), and the wire dtype of sums and means. Default: the strategy's.

        Differs from tf.distribute: an array that is the same object in all replicas is summed like any
        other; mixed dtypes, booleans, numbers and empty structures work.

        JAX equivalent: ``jax.lax.psum``.
        """
        op = ReduceOp(reduce_op)
        self._require_here("all_reduce")
        leaves, structure = _flatten("all_reduce", value)
        if not leaves:
            return value
        options = options or self._strategy.extended.gradient_options
        return jax.tree.unflatten(structure, self._channel.all_reduce(op, leaves, options))

    def all_gather(
        self, value: PyTree, axis: int, options: CommunicationOptions | None = None
    ) -> Any:
        """Returns the replicas' values concatenated along ``axis``, in each of them.

        Differentiable: the gradient is summed over the replicas, and each gets its own slice. Eagerly
        the replicas' sizes along ``axis`` may differ.

        Args:
            value: Any structure of arrays.
            axis: The dimension along which to concatenate.
            options: Accepted for compatibility; gathers are not packed.

        JAX equivalent: ``jax.lax.all_gather(..., tiled=True)``.
        """
        self._require_here("all_gather")
        leaves, structure = _flatten("all_gather", value)
        for leaf in leaves:
            if isinstance(leaf, IndexedSlices):
                raise UnsupportedError(
                    "all_gather takes arrays, got IndexedSlices. Use all_reduce."
                )
        if not leaves:
            return value
        return jax.tree.unflatten(structure, self._channel.all_gather(leaves, axis))

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls ``merge_fn(strategy, *args, **kwargs)`` once for all replicas, in cross-replica context.

        Every replica must call it. Arguments that are the same object in all replicas are passed unchanged,
        others as ``PerReplica``. Each replica gets its component of per-replica results.

        Args:
            merge_fn: Takes the strategy and the merged arguments.
            args: Positional arguments.
            kwargs: Keyword arguments.
        """
        self._require_here("merge_call")
        return self._channel.merge_call(merge_fn, tuple(args), dict(kwargs or {}))

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        """Calls ``fn(strategy, value)`` once, with every array of ``value`` as a ``PerReplica``.

        Args:
            label: Name of the operation in error messages.
            fn: Takes the strategy and the merged value.
            value: Any structure of arrays.
        """
        return self._channel.merge_per_replica(label, fn, value)

    def first_replica(self, value: PyTree) -> Any:
        """Returns the first replica's ``value`` in every replica."""

        def first(leaf: Leaf) -> Any:
            return self._channel.all_gather([jnp.asarray(leaf)[None]], 0)[0][0]

        return jax.tree.map(first, value)

    def _require_here(self, caller: str) -> None:
        if context.get_replica_context() is not self:
            raise ContextError(
                f"{caller}() was called on a ReplicaContext outside of its replica. Call "
                "get_replica_context() inside the function given to strategy.run()."
            )

    def __repr__(self) -> str:
        place = "all" if self._channel.index is None else self._channel.index
        return f"<ReplicaContext replica={place} of {self._strategy!r}>"


class ValueContext:
    """Tells a value function for which replica it creates a value.

    >>> ValueContext(1, 4).replica_id_in_sync_group
    1
    """

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self._replica_id = replica_id_in_sync_group
        self._num_replicas = num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> int:
        """Index of the replica."""
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas."""
        return self._num_replicas

    def __str__(self) -> str:
        return f"ValueContext(replica {self._replica_id} of {self._num_replicas})"


def _flatten(caller: str, value: PyTree) -> tuple[list[Any], Any]:
    leaves, structure = structures.flatten(
        value, is_leaf=lambda x: is_value_leaf(x) or isinstance(x, IndexedSlices)
    )
    for leaf in leaves:
        if isinstance(leaf, PerReplica):
            raise ValueError(
                f"{caller}() takes this replica's value, got a PerReplica. Pass it through "
                "strategy.run(fn, args=...), which hands each replica its own."
            )
    return [operand_of(leaf) for leaf in leaves], structure
