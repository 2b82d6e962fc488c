"""The channel of a single replica, which waits for no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.values.host_arrays import own_host_array

__all__ = ["SingleChannel", "reduce_single"]


class SingleChannel:
    """The channel of a strategy with one replica; collectives are the identity."""

    index: int | None = 0

    def __init__(self, strategy: StrategyProtocol) -> None:
        self._strategy = strategy

    def replica_id(self) -> np.int32:
        """Returns 0."""
        return np.int32(0)

    def merge_call(
        self,
        merge_fn: Callable[Concatenate[StrategyProtocol, ...], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls ``merge_fn`` in cross-replica context."""
        with context.enter(context.Frame(self._strategy, None)):
            return merge_fn(self._strategy, *args, **kwargs)

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        """Calls ``fn`` in cross-replica context."""
        return self.merge_call(fn, (value,), {})

    def all_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        """Returns the leaves; means are floating point."""
        return [reduce_single(op, leaf) for leaf in leaves]

    def all_gather(self, leaves: list[Any], axis: int) -> list[Any]:
        """Returns the leaves."""
        for leaf in leaves:
            if not -jnp.ndim(leaf) <= axis < jnp.ndim(leaf):
                raise ShapeMismatchError(
                    f"all_gather needs an axis of the value, which has {jnp.ndim(leaf)} dimensions, "
                    f"got axis {axis}."
                )
        return leaves


def reduce_single(op: ReduceOp, value: ArrayLike) -> Any:
    """Returns the reduction of one replica's value: the value itself, in the dtype of a reduction."""
    if isinstance(value, IndexedSlices):
        return value
    array = value if isinstance(value, jax.Array) else jnp.asarray(own_host_array(value))
    if op is ReduceOp.MEAN and not jnp.issubdtype(array.dtype, jnp.inexact):
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))
    if array.dtype == jnp.bool_ and op in (ReduceOp.SUM, ReduceOp.MEAN):
        return array.astype(jnp.int32)
    return array
