"""Indexing arrays: gather, scatter, where, masks and partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, AxisLike, IntegerLike, ShapeLike, Tensor
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    canonical_dtype,
    concrete,
    concrete_or_raise,
    integer,
    matched,
    shape_of,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor
from stratagem._src.values.array_operators import ArrayOperators

__all__ = [
    "boolean_mask",
    "dynamic_partition",
    "dynamic_stitch",
    "gather",
    "gather_nd",
    "invert_permutation",
    "scatter_nd",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "unravel_index",
    "where",
]


def gather(
    params: ArrayLike,
    indices: ArrayLike,
    validate_indices: bool | None = None,
    axis: AxisLike = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Tensor:
    """Returns the slices of an array at indices along an axis.

    Args:
        params: An array or a variable. Parameter servers send only the rows at ``indices``.
        indices: Integers in ``[0, size of the axis)``. Others raise; traced ones give zeros, as in
            TensorFlow on GPUs.
        validate_indices: Ignored.
        axis: The axis; default: the first after the batch dimensions.
        batch_dims: The number of leading dimensions that both arrays share.
        name: Ignored.

    JAX equivalent: ``jax.numpy.take``.

    >>> gather([10, 20, 30], [2, 0])
    Array([30, 10], dtype=int32)
    """
    index = _indices("gather", indices)
    batch = integer("gather", "batch_dims", batch_dims)
    if (
        isinstance(params, ArrayOperators)
        and axis in (None, 0)
        and batch == 0
        and hasattr(params, "sparse_read")
    ):
        _check_range("gather", indices, getattr(params, "shape")[0])  # noqa: B009  (of variables)
        return as_tensor(params.sparse_read(index))
    x = as_tensor(params)
    batch = batch % (index.ndim + 1) if batch < 0 else batch
    [along] = axes_of("gather", batch if axis is None else axis, x.ndim)
    if along < batch or x.shape[:batch] != index.shape[:batch]:
        raise InvalidArgumentError(
            f"tf.gather with batch_dims={batch} needs equal leading sizes and a later axis, got shapes "
            f"{x.shape} and {index.shape}, axis {along}."
        )
    _check_range("gather", indices, x.shape[along])
    if is_host_only(x.dtype):
        return HostTensor.of(np.take(x, np.asarray(index), along))
    take = _take(along - batch)
    for _ in range(batch):
        take = jax.vmap(take)
    return take(x, index)


def gather_nd(
    params: ArrayLike,
    indices: ArrayLike,
    batch_dims: int = 0,
    name: str | None = None,
    bad_indices_policy: str = "",
) -> jax.Array:
    """Returns the slices of an array at rows of indices, with one index for each leading dimension.

    Indices out of range raise; traced ones give zeros, as in TensorFlow on GPUs.

    >>> gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]])
    Array([2, 3], dtype=int32)
    """
    x, index = as_tensor(params), _indices("gather_nd", indices)
    batch = integer("gather_nd", "batch_dims", batch_dims)
    depth = index.shape[-1]
    _check_rows("gather_nd", index, indices, x.shape[batch : batch + depth])

    def take(array: Tensor, rows: Tensor) -> Tensor:
        columns = tuple(jnp.moveaxis(rows, -1, 0))
        return _unwrapped(array, columns).get(mode="fill", fill_value=0)

    for _ in range(batch):
        take = jax.vmap(take)
    return take(x, index)


def scatter_nd(
    indices: ArrayLike,
    updates: ArrayLike,
    shape: ShapeLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> jax.Array:
    """Adds updates at rows of indices to zeros of a shape, and returns them.

    Indices out of range raise; traced ones are dropped.

    >>> scatter_nd([[1], [1]], [5, 6], [3])
    Array([ 0, 11,  0], dtype=int32)
    """
    sizes = shape_of("scatter_nd", shape)
    values = as_tensor(updates)
    return _scattered("scatter_nd", jnp.zeros(sizes, values.dtype), indices, values, "add")


def tensor_scatter_nd_update(
    tensor: ArrayLike, indices: ArrayLike, updates: ArrayLike, name: str | None = None
) -> jax.Array:
    """Returns the array with elements at rows of indices replaced.

    Indices out of range raise; traced ones are dropped. For duplicate indices, any of the updates may win.

    >>> tensor_scatter_nd_update([1, 2, 3], [[1]], [9])
    Array([1, 9, 3], dtype=int32)
    """
    return _scattered("tensor_scatter_nd_update", tensor, indices, updates, "set")


def tensor_scatter_nd_add(
    tensor: ArrayLike,
    indices: ArrayLike,
    updates: ArrayLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> jax.Array:
    """Returns the array with updates added at rows of indices.

    >>> tensor_scatter_nd_add([1, 2, 3], [[1]], [9])
    Array([ 1, 11,  3], dtype=int32)
    """
    return _scattered("tensor_scatter_nd_add", tensor, indices, updates, "add")


def tensor_scatter_nd_sub(
    tensor: ArrayLike,
    indices: ArrayLike,
    updates: ArrayLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> jax.Array:
    """Returns the array with updates subtracted at rows of indices.

    >>> tensor_scatter_nd_sub([1, 2, 3], [[1]], [9])
    Array([ 1, -7,  3], dtype=int32)
    """
    return _scattered("tensor_scatter_nd_sub", tensor, indices, updates, "subtract")


def tensor_scatter_nd_max(
    tensor: ArrayLike,
    indices: ArrayLike,
    updates: ArrayLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> jax.Array:
    """Returns the array with the maximum of elements and updates at rows of indices.

    >>> tensor_scatter_nd_max([1, 2, 3], [[1], [2]], [9, 0])
    Array([1, 9, 3], dtype=int32)
    """
    return _scattered("tensor_scatter_nd_max", tensor, indices, updates, "max")


def tensor_scatter_nd_min(
    tensor: ArrayLike,
    indices: ArrayLike,
    updates: ArrayLike,
    bad_indices_policy: str = "",
    name: str | None = None,
) -> jax.Array:
    """Returns the array with the minimum of elements and updates at rows of indices.

    >>> tensor_scatter_nd_min([1, 2, 3], [[1], [2]], [9, 0])
    Array([1, 2, 0], dtype=int32)
    """
    return _scattered("tensor_scatter_nd_min", tensor, indices, updates, "min")


def where(
    condition: ArrayLike, x: ArrayLike = None, y: ArrayLike = None, name: str | None = None
) -> Tensor:
    """Returns elements of ``x`` where a condition is true, and of ``y`` elsewhere.

    Without ``x`` and ``y``, returns the indices of the true elements, one row each, as ``int64`` (``int32``
    in JAX's default mode). The condition must not be traced then.

    JAX equivalent: ``jax.numpy.where``, ``jax.numpy.argwhere``.

    >>> where([True, False], [1, 2], 0)
    Array([1, 0], dtype=int32)
    >>> where([True, False, True])
    Array([[0],
           [2]], dtype=int32)
    """
    if (x is None) != (y is None):
        raise ValueError("tf.where needs both x and y, or neither.")
    if x is None:
        found = concrete_or_raise(
            "where", "condition, without x and y,", condition, "tf.where(condition, x, y)"
        )
        return jnp.asarray(np.argwhere(found != 0), canonical_dtype(np.int64))
    chosen = as_tensor(condition)
    if chosen.dtype != np.bool_:
        raise InvalidArgumentError(
            f"condition of tf.where must be booleans, got {chosen.dtype.name}."
        )
    first, second = matched("where", x, y)
    if is_host_only(first.dtype):
        return HostTensor.of(np.where(np.asarray(chosen), first, second))
    return jnp.where(chosen, first, second)


def boolean_mask(
    tensor: ArrayLike, mask: ArrayLike, axis: AxisLike = None, name: str | None = None
) -> Tensor:
    """Returns the elements where a mask is true.

    The size of the result depends on the mask, so it must not be traced. In compiled code use
    ``tf.where(mask, x, other)``, or weights.

    >>> boolean_mask([1, 2, 3], [True, False, True])
    Array([1, 3], dtype=int32)
    """
    values = as_tensor(tensor)
    chosen = concrete_or_raise("boolean_mask", "mask", mask, "tf.where(mask, x, other)").astype(
        bool
    )
    along = 0 if axis is None else integer("boolean_mask", "axis", axis)
    if chosen.ndim == 0:
        raise ValueError("mask of tf.boolean_mask cannot be a scalar.")
    if values.shape[along : along + chosen.ndim] != chosen.shape:
        raise ValueError(
            f"mask of tf.boolean_mask must have the leading shape of the array, got {chosen.shape} and "
            f"{values.shape}."
        )
    shape = values.shape
    size = int(np.prod(chosen.shape))
    flat = values.reshape((*shape[:along], size, *shape[along + chosen.ndim :]))
    index = np.flatnonzero(chosen)
    if is_host_only(values.dtype):
        return HostTensor.of(np.take(flat, index, along))
    return jnp.take(flat, index, along)


def dynamic_partition(
    data: ArrayLike, partitions: ArrayLike, num_partitions: IntegerLike, name: str | None = None
) -> list[Tensor]:
    """Returns the rows of each partition, as a list of arrays; ``partitions`` must not be traced.

    >>> dynamic_partition([1, 2, 3], [0, 1, 0], 2)
    [Array([1, 3], dtype=int32), Array([2], dtype=int32)]
    """
    rows = as_tensor(data)
    which = concrete_or_raise(
        "dynamic_partition", "partitions", partitions, "tf.where(partitions == i, x, other)"
    )
    flat = rows.reshape((which.size, *rows.shape[which.ndim :]))
    return [
        jnp.take(flat, np.flatnonzero(which.ravel() == i), 0)
        for i in range(integer("dynamic_partition", "num_partitions", num_partitions))
    ]


def dynamic_stitch(
    indices: Sequence[ArrayLike], data: Sequence[ArrayLike], name: str | None = None
) -> jax.Array:
    """Merges rows into one array at their indices; the last row wins for duplicate indices.

    >>> dynamic_stitch([[0, 2], [1]], [[10, 30], [20]])
    Array([10, 20, 30], dtype=int32)
    """
    places = [
        concrete_or_raise("dynamic_stitch", "indices", i, "x.at[indices].set(rows)")
        for i in indices
    ]
    rows = matched("dynamic_stitch", *data)
    extra = rows[0].shape[places[0].ndim :]
    size = max((int(place.max()) for place in places if place.size), default=-1) + 1
    result = jnp.zeros((size, *extra), rows[0].dtype)
    for place, row in zip(places, rows, strict=True):
        result = result.at[place.ravel()].set(row.reshape((place.size, *extra)))
    return result


def unravel_index(indices: ArrayLike, dims: ShapeLike, name: str | None = None) -> jax.Array:
    """Converts flat indices to coordinates in an array with dimensions ``dims``, one row per dimension.

    >>> unravel_index([3, 4], [2, 3])
    Array([[1, 1],
           [0, 1]], dtype=int32)
    """
    index = _indices("unravel_index", indices)
    return jnp.stack(jnp.unravel_index(index, shape_of("unravel_index", dims)))


def invert_permutation(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the inverse permutation.

    >>> invert_permutation([2, 0, 1])
    Array([1, 2, 0], dtype=int32)
    """
    return jnp.argsort(_indices("math.invert_permutation", x)).astype(as_tensor(x).dtype)


def _take(along: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, index: jnp.take(x, index, along, mode="fill", fill_value=0)


def _indices(op: str, value: ArrayLike) -> Tensor:
    array = as_tensor(value)
    if array.size == 0 and not isinstance(value, (jax.Array, np.ndarray)):
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"indices of tf.{op} must be integers, got {array.dtype.name}.")
    return array


def _check_range(op: str, index: ArrayLike, size: int) -> None:
    values = concrete(index)
    if values is not None and values.size and (values.min() < 0 or values.max() >= size):
        raise InvalidArgumentError(
            f"indices of tf.{op} must be in [0, {size}), got {values.min()} to {values.max()}."
        )


def _check_rows(op: str, index: Tensor, given: ArrayLike, sizes: ShapeLike) -> None:
    if index.ndim == 0 or index.shape[-1] != len(sizes):
        raise InvalidArgumentError(
            f"The last axis of indices of tf.{op} must have one index per leading dimension, got shape "
            f"{index.shape} for sizes {tuple(sizes)}."
        )
    values = concrete(given)
    if values is not None:
        for column, size in enumerate(sizes):
            _check_range(op, values[..., column], size)


def _unwrapped(array: Tensor, columns: tuple[Tensor, ...]) -> Any:
    # JAX counts negative indices from the end in every mode. TensorFlow does not: map them to the size of
    # the axis, which is out of range, so that mode="fill" and mode="drop" see them.
    if not columns:
        return array.at[...]
    return array.at[
        tuple(jnp.where(c < 0, n, c) for c, n in zip(columns, array.shape, strict=False))
    ]


def _scattered(op: str, array: Tensor, indices: ArrayLike, updates: ArrayLike, how: str) -> Tensor:
    x, values = matched(op, array, updates)
    index = _indices(op, indices)
    depth = index.shape[-1]
    if depth > x.ndim:
        raise InvalidArgumentError(
            f"indices of tf.{op} must have at most {x.ndim} columns for shape {x.shape}, got {depth}."
        )
    _check_rows(op, index, indices, x.shape[:depth])
    wanted = (*index.shape[:-1], *x.shape[depth:])
    if values.shape != wanted and not (values.ndim == 0 and op != "scatter_nd"):
        raise InvalidArgumentError(
            f"updates of tf.{op} must have shape {wanted}, got {values.shape}."
        )
    place = _unwrapped(x, tuple(jnp.moveaxis(index, -1, 0)))
    return getattr(place, how)(values, mode="drop")
