"""``Clipping``: gradient clipping, applied after the reduction over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike, Tensor

__all__ = ["NO_CLIPPING", "Clipping"]


@dataclass(frozen=True, slots=True)
class Clipping:
    """Bounds of gradients; at most one is set.

    Attributes:
        clipnorm: Maximum norm of each variable's gradient.
        clipvalue: Maximum absolute value of each element.
        global_clipnorm: Maximum norm of all gradients together.
    """

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None

    def __post_init__(self) -> None:
        given = {
            name: bound
            for name in ("clipnorm", "clipvalue", "global_clipnorm")
            if (bound := getattr(self, name)) is not None
        }
        if len(given) > 1:
            raise InvalidArgumentError(
                f"Only one of clipnorm, clipvalue and global_clipnorm can be set, got {given}."
            )
        for name, bound in given.items():
            if not bound > 0:
                raise InvalidArgumentError(f"{name} must be positive, got {bound}.")

    def __bool__(self) -> bool:
        return (self.clipnorm, self.clipvalue, self.global_clipnorm) != (None, None, None)

    def apply(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns the clipped gradients, arrays or ``IndexedSlices``."""
        distinct = [_distinct_rows(g) if isinstance(g, IndexedSlices) else g for g in gradients]
        if self.clipvalue is not None:
            bound = self.clipvalue
            return [_map(lambda x: jnp.clip(x, -bound, bound), gradient) for gradient in distinct]
        squares = [_sum_of_squares(gradient) for gradient in distinct]
        if self.global_clipnorm is not None:
            total = sum(squares, jnp.zeros(()))
            return [_scaled(gradient, total, self.global_clipnorm) for gradient in distinct]
        assert self.clipnorm is not None
        return [_scaled(g, own, self.clipnorm) for g, own in zip(distinct, squares, strict=True)]


NO_CLIPPING = Clipping()
"""No bounds."""


def _map(fn: Callable[[Any], Any], gradient: ArrayLike) -> Any:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(jnp.asarray(gradient))


def _sum_of_squares(gradient: ArrayLike) -> Any:
    values = gradient.values if isinstance(gradient, IndexedSlices) else jnp.asarray(gradient)
    # In float32: squares overflow in half precision.
    return jnp.sum(jnp.square(jnp.abs(values.astype(jnp.promote_types(values.dtype, jnp.float32)))))


def _scaled(gradient: ArrayLike, sum_of_squares: Tensor, bound: float) -> Any:
    norm = jnp.sqrt(sum_of_squares)
    factor = jnp.where(norm > bound, bound / norm, 1)
    return _map(lambda x: (x * factor).astype(x.dtype), gradient)


def _distinct_rows(slices: IndexedSlices) -> IndexedSlices:
    """Returns slices in which each row's values are summed once, padded with zero rows.

    The shape must stay static under ``jit``: duplicates become zeros at the end instead of being removed.
    """
    values, indices = jnp.asarray(slices.values), jnp.asarray(slices.indices).reshape((-1,))
    if indices.size < 2:
        return IndexedSlices(values, indices, slices.dense_shape)
    order = jnp.argsort(indices)
    ordered = indices[order]
    begins = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    sums = jax.ops.segment_sum(values[order], jnp.cumsum(begins) - 1, indices.size)
    rows = jnp.zeros_like(ordered).at[jnp.cumsum(begins) - 1].set(ordered)
    return IndexedSlices(sums, rows, slices.dense_shape)
