"""Elements by their indices: gathering, scattering, choosing, sorting, finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError, TracedValueError
from stratagem._src.core.types import ArrayLike, AxisLike, DTypeLike, IntegerLike, ShapeLike, Tensor
from stratagem._src.tensorflow_api.conversion import (
    available,
    axes_of,
    integer,
    known,
    matched,
    numbers,
    shape_of,
    tensor,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor
from stratagem._src.values.array_operators import ArrayOperators

__all__ = [
    "TopK",
    "Unique",
    "UniqueWithCounts",
    "argsort",
    "boolean_mask",
    "dynamic_partition",
    "dynamic_stitch",
    "gather",
    "gather_nd",
    "histogram_fixed_width",
    "histogram_fixed_width_bins",
    "in_top_k",
    "invert_permutation",
    "scatter_nd",
    "searchsorted",
    "sort",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "top_k",
    "unique",
    "unique_with_counts",
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
    """Returns the parts of an array at indices along an axis.

    Args:
        params: An array, or a variable: of one on parameter servers only the rows asked for move.
        indices: Whole numbers in ``[0, size of the axis)``. Others raise, but for traced ones, which give
            zeros, as TensorFlow does on GPUs.
        validate_indices: Ignored.
        axis: Along which axis; default: the first after the batch dimensions.
        batch_dims: How many leading dimensions of both are the same, and not gathered from.
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
        return tensor(params.sparse_read(index))
    x = tensor(params)
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
    """Returns the parts of an array at rows of indices, one index for each leading dimension.

    Traced indices out of range give zeros, as TensorFlow does on GPUs; others raise.

    >>> gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]])
    Array([2, 3], dtype=int32)
    """
    x, index = tensor(params), _indices("gather_nd", indices)
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
    """Returns zeros of a shape, to which updates are added at rows of indices.

    Traced indices out of range are left out; others raise.

    >>> scatter_nd([[1], [1]], [5, 6], [3])
    Array([ 0, 11,  0], dtype=int32)
    """
    sizes = shape_of("scatter_nd", shape)
    values = tensor(updates)
    return _scattered("scatter_nd", jnp.zeros(sizes, values.dtype), indices, values, "add")


def tensor_scatter_nd_update(
    tensor: ArrayLike, indices: ArrayLike, updates: ArrayLike, name: str | None = None
) -> jax.Array:
    """Returns the array with elements at rows of indices replaced.

    Traced indices out of range are left out; others raise. Of two updates of one element either may stay.

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
    """Returns the array with elements at rows of indices replaced by updates that are larger.

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
    """Returns the array with elements at rows of indices replaced by updates that are smaller.

    >>> tensor_scatter_nd_min([1, 2, 3], [[1], [2]], [9, 0])
    Array([1, 2, 0], dtype=int32)
    """
    return _scattered("tensor_scatter_nd_min", tensor, indices, updates, "min")


def where(
    condition: ArrayLike, x: ArrayLike = None, y: ArrayLike = None, name: str | None = None
) -> Tensor:
    """Returns elements of ``x`` where a condition is true, and of ``y`` elsewhere.

    Without ``x`` and ``y`` it returns the indices where the condition is true, a row for each, as ``int64``
    (``int32`` in JAX's default mode); that needs a condition which is not traced.

    JAX equivalent: ``jax.numpy.where``, ``jax.numpy.argwhere``.

    >>> where([True, False], [1, 2], 0)
    Array([1, 0], dtype=int32)
    >>> where([True, False, True])
    Array([[0],
           [2]], dtype=int32)
    """
    if (x is None) != (y is None):
        raise ValueError("where needs both x and y, or neither of them.")
    if x is None:
        found = _needed(
            "where", "condition, without x and y,", condition, "tf.where(condition, x, y)"
        )
        return jnp.asarray(np.argwhere(found != 0), available(np.int64))
    chosen = tensor(condition)
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
    """Returns the elements at which a mask is true.

    The size of the result depends on the mask, which must not be traced: in compiled code use
    ``tf.where(mask, x, other)``, or weights.

    >>> boolean_mask([1, 2, 3], [True, False, True])
    Array([1, 3], dtype=int32)
    """
    values = as_array(tensor)
    chosen = _needed("boolean_mask", "mask", mask, "tf.where(mask, x, other)").astype(bool)
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


class Unique(NamedTuple):
    """What ``tf.unique`` returns.

    Attributes:
        y: The elements, in the order in which they occur first.
        idx: For each element its place in ``y``.
    """

    y: Any
    idx: Any


class UniqueWithCounts(NamedTuple):
    """What ``tf.unique_with_counts`` returns.

    Attributes:
        y: The elements, in the order in which they occur first.
        idx: For each element its place in ``y``.
        count: How often each of ``y`` occurs.
    """

    y: Any
    idx: Any
    count: Any


def unique(x: ArrayLike, out_idx: DTypeLike = np.int32, name: str | None = None) -> Unique:
    """Returns the different elements of a vector in the order in which they occur, and where each is.

    Its size depends on the values, which must not be traced.

    >>> unique([3, 1, 3])
    Unique(y=Array([3, 1], dtype=int32), idx=Array([0, 1, 0], dtype=int32))
    """
    found = unique_with_counts(x, out_idx)
    return Unique(found.y, found.idx)


def unique_with_counts(
    x: ArrayLike, out_idx: DTypeLike = np.int32, name: str | None = None
) -> UniqueWithCounts:
    """Returns the different elements of a vector in order of occurrence, where each is, and counts.

    Its size depends on the values, which must not be traced.

    >>> unique_with_counts([3, 1, 3]).count
    Array([2, 1], dtype=int32)
    """
    values = _needed("unique", "x", x, "jax.numpy.unique(x, size=n)")
    if values.ndim != 1:
        raise InvalidArgumentError(f"tf.unique needs a vector, got shape {values.shape}.")
    places: dict[Any, int] = {}
    index = np.array([places.setdefault(value, len(places)) for value in values.tolist()], np.int64)
    first = np.unique(index, return_index=True)[1] if index.size else np.zeros(0, np.int64)
    counts = np.bincount(index, minlength=len(places))
    dtype = available(out_idx)
    return UniqueWithCounts(
        tensor(tensor(x)[first]), jnp.asarray(index, dtype), jnp.asarray(counts, dtype)
    )


def dynamic_partition(
    data: ArrayLike, partitions: ArrayLike, num_partitions: IntegerLike, name: str | None = None
) -> list[Tensor]:
    """Returns a list of arrays, each with the rows of one partition; partitions must not be traced.

    >>> dynamic_partition([1, 2, 3], [0, 1, 0], 2)
    [Array([1, 3], dtype=int32), Array([2], dtype=int32)]
    """
    rows = tensor(data)
    which = _needed(
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
    """Returns rows put at their indices; of several rows for one index the last stays.

    >>> dynamic_stitch([[0, 2], [1]], [[10, 30], [20]])
    Array([10, 20, 30], dtype=int32)
    """
    places = [_needed("dynamic_stitch", "indices", i, "x.at[indices].set(rows)") for i in indices]
    rows = matched("dynamic_stitch", *data)
    extra = rows[0].shape[places[0].ndim :]
    size = max((int(place.max()) for place in places if place.size), default=-1) + 1
    result = jnp.zeros((size, *extra), rows[0].dtype)
    for place, row in zip(places, rows, strict=True):
        result = result.at[place.ravel()].set(row.reshape((place.size, *extra)))
    return result


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
    """Returns the indices that sort the elements along an axis; equal ones keep their order.

    >>> argsort([3, 1, 2])
    Array([1, 2, 0], dtype=int32)
    """
    x = numbers("argsort", values)
    descending = _is_descending(direction)
    [along] = axes_of("argsort", integer("argsort", "axis", axis), x.ndim)
    return jnp.argsort(x, along, stable=True, descending=descending).astype(np.int32)


class TopK(NamedTuple):
    """What ``tf.math.top_k`` returns.

    Attributes:
        values: The largest elements.
        indices: Where they are.
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
    return TopK(values, index.astype(available(index_type)))


def in_top_k(
    targets: ArrayLike, predictions: ArrayLike, k: IntegerLike, name: str | None = None
) -> jax.Array:
    """Returns whether the prediction for each target is among the ``k`` highest of its row.

    A target or a prediction for it that is not finite gives false.

    >>> in_top_k([0, 1], [[0.1, 0.9], [0.1, 0.9]], 1)
    Array([False,  True], dtype=bool)
    """
    scores, classes = tensor(predictions), tensor(targets)
    count = integer("math.in_top_k", "k", k)
    valid = (classes >= 0) & (classes < scores.shape[1])
    own = jnp.take_along_axis(scores, jnp.where(valid, classes, 0)[:, None], 1)
    higher = jnp.sum(scores > own, 1) + jnp.sum(~jnp.isfinite(scores), 1) * 0
    return valid & jnp.isfinite(own[:, 0]) & (higher < count) & jnp.all(jnp.isfinite(scores), 1)


def searchsorted(
    sorted_sequence: ArrayLike,
    values: ArrayLike,
    side: str = "left",
    out_type: DTypeLike = np.int32,
    name: str | None = None,
) -> jax.Array:
    """Returns where values would be inserted into sorted rows.

    >>> searchsorted([1, 3, 5], [3, 4])
    Array([1, 2], dtype=int32)
    """
    row, value = matched("searchsorted", sorted_sequence, values)
    dtype = available(out_type)
    if row.shape[:-1] != value.shape[:-1]:
        raise InvalidArgumentError(
            f"tf.searchsorted needs equal leading sizes, got shapes {row.shape} and {value.shape}."
        )

    def find(a: Tensor, v: Tensor) -> Tensor:
        return jnp.searchsorted(a, v, side=side).astype(dtype)

    for _ in range(row.ndim - 1):
        find = jax.vmap(find)
    return find(row, value)


def unravel_index(indices: ArrayLike, dims: ShapeLike, name: str | None = None) -> jax.Array:
    """Returns the coordinates of flat indices into an array of these dimensions, a row for each dimension.

    >>> unravel_index([3, 4], [2, 3])
    Array([[1, 1],
           [0, 1]], dtype=int32)
    """
    index = _indices("unravel_index", indices)
    return jnp.stack(jnp.unravel_index(index, shape_of("unravel_index", dims)))


def invert_permutation(x: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the permutation that undoes one.

    >>> invert_permutation([2, 0, 1])
    Array([1, 2, 0], dtype=int32)
    """
    return jnp.argsort(_indices("math.invert_permutation", x)).astype(tensor(x).dtype)


def histogram_fixed_width_bins(
    values: ArrayLike,
    value_range: ArrayLike,
    nbins: int = 100,
    dtype: DTypeLike = np.int32,
    name: str | None = None,
) -> jax.Array:
    """Returns the number of the bin of each value; those outside of the range are in the first or last one.

    >>> histogram_fixed_width_bins([-1.0, 0.5, 5.0], [0.0, 2.0], nbins=2)
    Array([0, 0, 1], dtype=int32)
    """
    x = tensor(values)
    low, high = tensor(value_range, x.dtype)
    bins = integer("histogram_fixed_width_bins", "nbins", nbins)
    scaled = (x - low).astype(np.float32) / (high - low).astype(np.float32)
    return jnp.clip(jnp.floor(bins * scaled), 0, bins - 1).astype(available(dtype))


def histogram_fixed_width(
    values: ArrayLike,
    value_range: ArrayLike,
    nbins: int = 100,
    dtype: DTypeLike = np.int32,
    name: str | None = None,
) -> jax.Array:
    """Returns how many values are in each of ``nbins`` bins of equal width.

    >>> histogram_fixed_width([-1.0, 0.5, 5.0], [0.0, 2.0], nbins=2)
    Array([2, 1], dtype=int32)
    """
    index = histogram_fixed_width_bins(values, value_range, nbins).ravel()
    return jnp.zeros(nbins, available(dtype)).at[index].add(1)


as_array = tensor


def _take(along: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, index: jnp.take(x, index, along, mode="fill", fill_value=0)


def _indices(op: str, value: ArrayLike) -> Tensor:
    array = tensor(value)
    if array.size == 0 and not isinstance(value, (jax.Array, np.ndarray)):
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"indices of tf.{op} must be integers, got {array.dtype.name}.")
    return array


def _check_range(op: str, index: ArrayLike, size: int) -> None:
    values = known(index)
    if values is not None and values.size and (values.min() < 0 or values.max() >= size):
        raise InvalidArgumentError(
            f"indices of tf.{op} must be in [0, {size}), got {values.min()} to {values.max()}."
        )


def _check_rows(op: str, index: Tensor, given: ArrayLike, sizes: ShapeLike) -> None:
    if index.ndim == 0 or index.shape[-1] != len(sizes):
        raise InvalidArgumentError(
            f"indices of tf.{op} have one index for each leading dimension in their last axis, got shape "
            f"{index.shape} for sizes {tuple(sizes)}."
        )
    values = known(given)
    if values is not None:
        for column, size in enumerate(sizes):
            _check_range(op, values[..., column], size)


def _unwrapped(array: Tensor, columns: tuple[Tensor, ...]) -> Any:
    # JAX counts negative indices from the end, also in its other modes: a size has none of them in range.
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
        raise InvalidArgumentError(f"indices of tf.{op} have {depth} columns for shape {x.shape}.")
    _check_rows(op, index, indices, x.shape[:depth])
    wanted = (*index.shape[:-1], *x.shape[depth:])
    if values.shape != wanted and not (values.ndim == 0 and op != "scatter_nd"):
        raise InvalidArgumentError(
            f"updates of tf.{op} must have shape {wanted}, got {values.shape}."
        )
    place = _unwrapped(x, tuple(jnp.moveaxis(index, -1, 0)))
    return getattr(place, how)(values, mode="drop")


def _needed(op: str, argument: str, value: ArrayLike, instead: str) -> Any:
    array = known(value)
    if array is None:
        raise TracedValueError(
            f"The shape of what tf.{op} returns depends on the values of {argument} which are traced: XLA "
            f"compiles for fixed shapes. Call it outside of compiled code, or use {instead}."
        )
    return array


def _is_descending(direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction must be 'ASCENDING' or 'DESCENDING', got {direction!r}.")
    return direction == "DESCENDING"
