"""Sorting and searching: order, top k, unique elements, histograms."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, AxisLike, DTypeLike, IntegerLike, Tensor
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    canonical_dtype,
    concrete_or_raise,
    integer,
    matched,
    numbers,
)

__all__ = [
    "TopK",
    "Unique",
    "UniqueWithCounts",
    "argsort",
    "histogram_fixed_width",
    "histogram_fixed_width_bins",
    "in_top_k",
    "searchsorted",
    "sort",
    "top_k",
    "unique",
    "unique_with_counts",
]


class Unique(NamedTuple):
    """The result of ``tf.unique``.

    Attributes:
        y: The unique elements, in order of first occurrence.
        idx: The position of each element in ``y``.
    """

    y: Any
    idx: Any


class UniqueWithCounts(NamedTuple):
    """The result of ``tf.unique_with_counts``.

    Attributes:
        y: The unique elements, in order of first occurrence.
        idx: The position of each element in ``y``.
        count: The number of occurrences of each element of ``y``.
    """

    y: Any
    idx: Any
    count: Any


def unique(x: ArrayLike, out_idx: DTypeLike = np.int32, name: str | None = None) -> Unique:
    """Returns the unique elements of a vector in order of first occurrence, and the index of each element.

    The size of the result depends on the values, so they must not be traced.

    >>> unique([3, 1, 3])
    Unique(y=Array([3, 1], dtype=int32), idx=Array([0, 1, 0], dtype=int32))
    """
    found = unique_with_counts(x, out_idx)
    return Unique(found.y, found.idx)


def unique_with_counts(
    x: ArrayLike, out_idx: DTypeLike = np.int32, name: str | None = None
) -> UniqueWithCounts:
    """Returns the unique elements of a vector, the index of each element, and the counts.

    The size of the result depends on the values, so they must not be traced.

    >>> unique_with_counts([3, 1, 3]).count
    Array([2, 1], dtype=int32)
    """
    values = concrete_or_raise("unique", "x", x, "jax.numpy.unique(x, size=n)")
    if values.ndim != 1:
        raise InvalidArgumentError(f"tf.unique needs a vector, got shape {values.shape}.")
    places: dict[Any, int] = {}
    index = np.array([places.setdefault(value, len(places)) for value in values.tolist()], np.int64)
    first = np.unique(index, return_index=True)[1] if index.size else np.zeros(0, np.int64)
    counts = np.bincount(index, minlength=len(places))
    dtype = canonical_dtype(out_idx)
    return UniqueWithCounts(
        as_tensor(as_tensor(x)[first]), jnp.asarray(index, dtype), jnp.asarray(counts, dtype)
    )


def sort(
    values: ArrayLike, axis: AxisLike = -1, direction: str = "ASCENDING", name: str | None = None
) -> jax.Array:
    """Returns the elements sorted along an axis.

    >>> sort([3, 1, 2], direction="DESCENDING")
    Array([3, 2, 1], dtype=int32)
    """
    x = numbers("sort", values)
    descending = _is_descending(direction)
    [along] = axes_of("sort", integer("sort", "axis", axis), x.ndim)
    return jnp.sort(x, along, descending=descending)


def argsort(
    values: ArrayLike,
    axis: AxisLike = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Returns the indices that sort the elements along an axis. The sort is stable.

    >>> argsort([3, 1, 2])
    Array([1, 2, 0], dtype=int32)
    """
    x = numbers("argsort", values)
    descending = _is_descending(direction)
    [along] = axes_of("argsort", integer("argsort", "axis", axis), x.ndim)
    return jnp.argsort(x, along, stable=True, descending=descending).astype(np.int32)


class TopK(NamedTuple):
    """The result of ``tf.math.top_k``.

    Attributes:
        values: The largest elements.
        indices: Their indices.
    """

    values: Any
    indices: Any


def top_k(
    input: ArrayLike,
    k: IntegerLike = 1,
    sorted: bool = True,
    index_type: DTypeLike = np.int32,
    name: str | None = None,
) -> TopK:
    """Returns the ``k`` largest elements along the last axis, largest first, and their indices.

    JAX equivalent: ``jax.lax.top_k``.

    >>> top_k([1, 5, 3], 2)
    TopK(values=Array([5, 3], dtype=int32), indices=Array([1, 2], dtype=int32))
    """
    x = numbers("math.top_k", input)
    count = integer("math.top_k", "k", k)
    if x.ndim == 0 or count > x.shape[-1]:
        raise InvalidArgumentError(
            f"tf.math.top_k needs at least k elements along the last axis, got {x.shape} and k={count}."
        )
    values, index = jax.lax.top_k(x, count)
    return TopK(values, index.astype(canonical_dtype(index_type)))


def in_top_k(
    targets: ArrayLike, predictions: ArrayLike, k: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns whether the score of each target is among the ``k`` highest of its row.

    A row with a score that is not finite, or a target out of range, gives false.

    >>> in_top_k([0, 1], [[0.1, 0.9], [0.1, 0.9]], 1)
    Array([False,  True], dtype=bool)
    """
    scores, classes = as_tensor(predictions), as_tensor(targets)
    count = integer("math.in_top_k", "k", k)
    valid = (classes >= 0) & (classes < scores.shape[1])
    own = jnp.take_along_axis(scores, jnp.where(valid, classes, 0)[:, None], 1)
    higher = jnp.sum(scores > own, 1)
    return valid & jnp.isfinite(own[:, 0]) & (higher < count) & jnp.all(jnp.isfinite(scores), 1)


def searchsorted(
    sorted_sequence: ArrayLike,
    values: ArrayLike,
    side: str = "left",
    out_type: DTypeLike = np.int32,
    name: str | None = None,
) -> jax.Array:
    """Returns the indices at which values would be inserted into sorted rows.

    >>> searchsorted([1, 3, 5], [3, 4])
    Array([1, 2], dtype=int32)
    """
    row, value = matched("searchsorted", sorted_sequence, values)
    dtype = canonical_dtype(out_type)
    if row.shape[:-1] != value.shape[:-1]:
        raise InvalidArgumentError(
            f"tf.searchsorted needs equal leading sizes, got shapes {row.shape} and {value.shape}."
        )

    def find(a: Tensor, v: Tensor) -> Tensor:
        return jnp.searchsorted(a, v, side=side).astype(dtype)

    for _ in range(row.ndim - 1):
        find = jax.vmap(find)
    return find(row, value)


def histogram_fixed_width_bins(
    values: ArrayLike,
    value_range: ArrayLike,
    nbins: int = 100,
    dtype: DTypeLike = np.int32,
    name: str | None = None,
) -> jax.Array:
    """Returns the bin of each value. Values out of range go to the first or last bin.

    >>> histogram_fixed_width_bins([-1.0, 0.5, 5.0], [0.0, 2.0], nbins=2)
    Array([0, 0, 1], dtype=int32)
    """
    x = as_tensor(values)
    low, high = as_tensor(value_range, x.dtype)
    bins = integer("histogram_fixed_width_bins", "nbins", nbins)
    scaled = (x - low).astype(np.float32) / (high - low).astype(np.float32)
    return jnp.clip(jnp.floor(bins * scaled), 0, bins - 1).astype(canonical_dtype(dtype))


def histogram_fixed_width(
    values: ArrayLike,
    value_range: ArrayLike,
    nbins: int = 100,
    dtype: DTypeLike = np.int32,
    name: str | None = None,
) -> jax.Array:
    """Returns the number of values in each of ``nbins`` bins of equal width.

    >>> histogram_fixed_width([-1.0, 0.5, 5.0], [0.0, 2.0], nbins=2)
    Array([2, 1], dtype=int32)
    """
    index = histogram_fixed_width_bins(values, value_range, nbins).ravel()
    return jnp.zeros(nbins, canonical_dtype(dtype)).at[index].add(1)


def _is_descending(direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction must be 'ASCENDING' or 'DESCENDING', got {direction!r}.")
    return direction == "DESCENDING"
