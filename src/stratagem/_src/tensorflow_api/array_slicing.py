"""Concatenates, stacks, splits and slices arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    IntegerLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    integer,
    integers,
    known,
    matched,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor, is_size, is_symbolic

__all__ = [
    "concat",
    "parallel_stack",
    "slice",
    "split",
    "stack",
    "strided_slice",
    "unstack",
]


def concat(values: ArrayLike, axis: AxisLike, name: str | None = None) -> Tensor:
    """Concatenates arrays along an axis.

    >>> concat([[1, 2], [3]], 0)
    Array([1, 2, 3], dtype=int32)
    """
    listed = _listed("concat", values)
    arrays = _sizes_on_host(listed) or matched("concat", *listed)
    [along] = axes_of("concat", integer("concat", "axis", axis), arrays[0].ndim)
    _check_alike("concat", arrays, along)
    if isinstance(arrays[0], HostTensor):
        return HostTensor.of(np.concatenate(arrays, along))
    return jnp.concatenate(arrays, along)


def stack(values: ArrayLike, axis: AxisLike = 0, name: str | None = None) -> Tensor:
    """Stacks arrays of the same shape along a new axis.

    >>> stack([[1, 2], [3, 4]], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    listed = _listed("stack", values)
    arrays = _sizes_on_host(listed) or _matched_or_promoted("stack", listed)
    _check_alike("stack", arrays, None)
    place = integer("stack", "axis", axis)
    if not -arrays[0].ndim - 1 <= place <= arrays[0].ndim:
        raise ValueError(
            f"axis of tf.stack must be in [{-arrays[0].ndim - 1}, {arrays[0].ndim}], got {place}."
        )
    if isinstance(arrays[0], HostTensor):
        return HostTensor.of(np.stack(arrays, place))
    return jnp.stack(arrays, place)


def parallel_stack(values: ArrayLike, name: str | None = None) -> Tensor:
    """Stacks arrays of the same shape along a new first axis.

    >>> parallel_stack([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return stack(values)


def unstack(
    value: ArrayLike, num: IntegerLike = None, axis: AxisLike = 0, name: str | None = None
) -> list[Tensor]:
    """Splits an array along an axis into a list of arrays without that axis.

    >>> unstack([[1, 2], [3, 4]])
    [Array([1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    """
    x = as_tensor(value)
    [along] = axes_of("unstack", integer("unstack", "axis", axis), x.ndim)
    if num is not None and num != x.shape[along]:
        raise ValueError(
            f"num of tf.unstack must be the size of the axis, {x.shape[along]}, got {num}."
        )
    if is_host_only(x.dtype):
        return list(np.moveaxis(x, along, 0))
    return list(jnp.unstack(x, axis=along))


def split(
    value: ArrayLike,
    num_or_size_splits: ShapeLike,
    axis: AxisLike = 0,
    num: object = None,
    name: str | None = None,
) -> list[Tensor]:
    """Splits an array along an axis into a number of equal parts, or into parts of given sizes.

    >>> split([1, 2, 3, 4], 2)
    [Array([1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    >>> split([1, 2, 3, 4], [1, -1])
    [Array([1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    x = as_tensor(value)
    [along] = axes_of("split", integer("split", "axis", axis), x.ndim)
    total = x.shape[along]
    given = known(num_or_size_splits)
    if given is None or given.ndim == 0:
        count = integer("split", "num_or_size_splits", num_or_size_splits)
        if count <= 0 or total % count:
            raise InvalidArgumentError(
                f"tf.split needs a number of parts that divides the axis, got {count} parts for size "
                f"{total}."
            )
        sizes = [total // count] * count
    else:
        sizes = list(integers("split", "num_or_size_splits", num_or_size_splits))
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = total - sum(one for one in sizes if one != -1)
        if sum(sizes) != total or min(sizes, default=0) < 0:
            raise InvalidArgumentError(f"tf.split needs sizes that add up to {total}, got {sizes}.")
    ends = np.cumsum([0, *sizes]).tolist()
    index = [_python_slice(None)] * x.ndim
    parts = []
    for begin, end in itertools.pairwise(ends):
        index[along] = _python_slice(begin, end)
        parts.append(x[tuple(index)])
    return parts


def slice(input_: ArrayLike, begin: ArrayLike, size: ShapeLike, name: str | None = None) -> Tensor:
    """Returns the slice at ``begin`` with ``size`` elements along each axis; -1 means all that remain.

    >>> slice([1, 2, 3, 4], [1], [2])
    Array([2, 3], dtype=int32)
    """
    x = as_tensor(input_)
    sizes = integers("slice", "size", size)
    starts = (
        known(begin)
        if not isinstance(begin, (list, tuple)) or all(known(b) is not None for b in begin)
        else None
    )
    if starts is None:
        if -1 in sizes:
            raise InvalidArgumentError("size of tf.slice must not be -1 if begin is traced.")
        return jax.lax.dynamic_slice(x, [jnp.asarray(one) for one in begin], sizes)
    first = [int(one) for one in np.ravel(starts)]
    if len(first) != x.ndim or len(sizes) != x.ndim:
        raise InvalidArgumentError(f"tf.slice needs begin and size for each of {x.ndim} axes.")
    ends = [total if n == -1 else b + n for b, n, total in zip(first, sizes, x.shape, strict=True)]
    if any(not 0 <= b <= e <= total for b, e, total in zip(first, ends, x.shape, strict=True)):
        raise InvalidArgumentError(
            f"tf.slice must stay within shape {x.shape}, got begin {first} and size {list(sizes)}."
        )
    return x[tuple(_python_slice(b, e) for b, e in zip(first, ends, strict=True))]


def strided_slice(
    input_: ArrayLike,
    begin: ArrayLike,
    end: ArrayLike,
    strides: ShapeLike = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: object = None,
    name: str | None = None,
) -> Tensor:
    """Returns ``input_[begin:end:strides]``, with a Python slice along each axis.

    Args:
        input_: An array.
        begin: The start index along each of the leading axes.
        end: The end index, exclusive.
        strides: The steps; default: 1.
        begin_mask: A bit for each axis where ``begin`` is ignored.
        end_mask: A bit for each axis where ``end`` is ignored.
        ellipsis_mask: The bit of the position that stands for all remaining axes.
        new_axis_mask: A bit for each position where an axis is added.
        shrink_axis_mask: A bit for each axis where ``begin`` is a single index.
        var: Must be ``None``.
        name: Ignored.

    >>> strided_slice([1, 2, 3, 4], [0], [4], [2])
    Array([1, 3], dtype=int32)
    """
    if var is not None:
        raise NotImplementedError(
            "tf.strided_slice does not support var. Assign to the variable with assign."
        )
    x = as_tensor(input_)
    first, last = integers("strided_slice", "begin", begin), integers("strided_slice", "end", end)
    steps = (1,) * len(first) if strides is None else integers("strided_slice", "strides", strides)
    index: list[Any] = []
    for place, (b, e, s) in enumerate(zip(first, last, steps, strict=True)):
        bit = 1 << place
        if ellipsis_mask & bit:
            index.append(Ellipsis)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(b)
        else:
            index.append(
                _python_slice(None if begin_mask & bit else b, None if end_mask & bit else e, s)
            )
    return x[tuple(index)]


# ``tf.slice`` hides the builtin of that name.
_python_slice = type(np.s_[:])


def _listed(op: str, values: ArrayLike) -> Sequence[ArrayLike]:
    if isinstance(values, (list, tuple)):
        if not values:
            raise ValueError(f"tf.{op} needs at least one array, got an empty list.")
        return values
    array = as_tensor(values)
    return [array] if array.ndim == 0 or op == "concat" else list(array)


def _sizes_on_host(values: Sequence[Any]) -> list[HostTensor] | None:
    """Returns sizes on the host if one comes from ``tf.shape`` and the others are static, else ``None``.

    ``tf.concat([[n], tf.shape(x)], 0)`` is again a shape, and must not become a traced array.
    """
    leaves = jax.tree.leaves(list(values))
    sizes = [leaf for leaf in leaves if is_size(leaf) or is_symbolic(leaf)]
    if not sizes or len(sizes) + sum(type(leaf) is int for leaf in leaves) < len(leaves):
        return None
    dtypes = [size.dtype for size in sizes if is_size(size) and size.dtype != object]
    dtype = np.result_type(*dtypes) if dtypes else np.int32
    return [HostTensor.of_sizes(value, dtype) for value in values]


def _matched_or_promoted(op: str, values: Sequence[Any]) -> list[Tensor]:
    """Returns arrays of one dtype. Python numbers are promoted like the elements of one list."""
    if all(isinstance(value, (bool, int, float)) for value in values):
        return list(as_tensor(list(values)))
    return matched(op, *values)


def _check_alike(op: str, arrays: Sequence[Any], along: int | None) -> None:
    shapes = [list(array.shape) for array in arrays]
    for shape in shapes:
        if along is not None and along < len(shape):
            shape[along] = 0
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidArgumentError(
            f"tf.{op} needs arrays of the same "
            f"shape{' except along the axis' if op == 'concat' else ''}, got "
            f"{[array.shape for array in arrays]}."
        )
