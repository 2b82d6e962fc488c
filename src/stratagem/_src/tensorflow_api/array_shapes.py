"""Shapes of arrays: queries, reshape, transpose, broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    DTypeLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_dtype,
    as_tensor,
    axes_of,
    canonical_dtype,
    integer,
    integers,
    shape_of,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor, is_symbolic

__all__ = [
    "bitcast",
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "broadcast_to",
    "ensure_shape",
    "expand_dims",
    "rank",
    "reshape",
    "shape",
    "shape_n",
    "size",
    "squeeze",
    "transpose",
]


def shape(input: ArrayLike, out_type: DTypeLike = None, name: str | None = None) -> HostTensor:
    """Returns the shape of an array, which is static while a function is traced.

    Differs from TensorFlow: the result is on the host, because XLA compiles for fixed shapes.

    >>> shape([[1, 2, 3]])
    HostTensor([1, 3], dtype=int32)
    """
    return HostTensor.of_sizes(_sizes(input), _integer_type(out_type))


def shape_n(
    input: Sequence[ArrayLike], out_type: DTypeLike = None, name: str | None = None
) -> list[HostTensor]:
    """Returns the shape of each array.

    >>> shape_n([[1], [1, 2]])
    [HostTensor([1], dtype=int32), HostTensor([2], dtype=int32)]
    """
    return [shape(one, out_type) for one in input]


def size(input: ArrayLike, out_type: DTypeLike = None, name: str | None = None) -> HostTensor:
    """Returns the number of elements of an array, which is static while a function is traced.

    >>> size([[1, 2, 3]])
    HostTensor(3, dtype=int32)
    """
    count = math.prod(_sizes(input))
    if is_symbolic(count):
        return count
    return HostTensor.of(np.array(count, _integer_type(out_type)))


def rank(input: ArrayLike, name: str | None = None) -> HostTensor:
    """Returns the number of dimensions of an array.

    >>> rank([[1, 2, 3]])
    HostTensor(2, dtype=int32)
    """
    return HostTensor.of(np.array(len(_sizes(input)), np.int32))


def reshape(tensor: ArrayLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Returns the elements in another shape; -1 stands for the remaining size.

    >>> reshape([1, 2, 3, 4], [2, -1])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    x = as_tensor(tensor)
    sizes = shape_of("reshape", shape)
    try:
        return x.reshape(sizes)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"tf.reshape must keep the number of elements, got {x.size} elements and shape {list(sizes)}."
        ) from None


def transpose(
    a: ArrayLike, perm: AxisLike = None, conjugate: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the array with its axes permuted, reversed by default.

    >>> transpose([[1, 2], [3, 4]])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = as_tensor(a)
    order = None if perm is None else integers("transpose", "perm", perm)
    if order is not None and sorted(one % max(x.ndim, 1) for one in order) != list(range(x.ndim)):
        raise InvalidArgumentError(
            f"perm of tf.transpose must name each of {x.ndim} axes once, got {list(order)}."
        )
    moved = x.transpose(order)
    return jnp.conj(moved) if conjugate else moved


def expand_dims(input: ArrayLike, axis: AxisLike, name: str | None = None) -> Tensor:
    """Returns the array with a new axis of size 1.

    >>> expand_dims([1, 2], 0)
    Array([[1, 2]], dtype=int32)
    """
    x = as_tensor(input)
    place = integer("expand_dims", "axis", axis)
    if not -x.ndim - 1 <= place <= x.ndim:
        raise InvalidArgumentError(
            f"axis of tf.expand_dims must be in [{-x.ndim - 1}, {x.ndim}], got {place}."
        )
    return np.expand_dims(x, place) if is_host_only(x.dtype) else jnp.expand_dims(x, place)


def squeeze(input: ArrayLike, axis: AxisLike = None, name: str | None = None) -> Tensor:
    """Returns the array without axes of size 1: all of them, or those in ``axis``.

    >>> squeeze([[1, 2]])
    Array([1, 2], dtype=int32)
    """
    x = as_tensor(input)
    if axis is None:
        return x.squeeze()
    axes = axes_of("squeeze", axis, x.ndim)
    wrong = [one for one in axes if x.shape[one] != 1]
    if wrong:
        raise InvalidArgumentError(
            f"tf.squeeze removes axes of size 1, got axes {wrong} of shape {x.shape}."
        )
    return x.squeeze(axes or None) if axes or axis is None else x.squeeze()


def broadcast_to(input: ArrayLike, shape: ShapeLike, name: str | None = None) -> jax.Array:
    """Returns the array, broadcast to a shape.

    >>> broadcast_to([1, 2], [2, 2])
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    return jnp.broadcast_to(as_tensor(input), shape_of("broadcast_to", shape))


def broadcast_dynamic_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> HostTensor:
    """Returns the shape that two shapes broadcast to.

    >>> broadcast_dynamic_shape([1, 3], [2, 1])
    HostTensor([2, 3], dtype=int32)
    """
    shapes = [shape_of("broadcast_dynamic_shape", one) for one in (shape_x, shape_y)]
    return HostTensor.of_sizes(jnp.broadcast_shapes(*shapes))


def broadcast_static_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> TensorShape:
    """Returns the shape that two shapes broadcast to.

    >>> broadcast_static_shape([1, 3], [2, 1])
    TensorShape([2, 3])
    """
    return TensorShape(np.broadcast_shapes(tuple(shape_x), tuple(shape_y)))


def ensure_shape(x: ArrayLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Returns ``x``, and raises unless its shape is ``shape``; ``None`` stands for any size.

    >>> ensure_shape([[1, 2]], [None, 2])
    Array([[1, 2]], dtype=int32)
    """
    array = as_tensor(x)
    known = [None if is_symbolic(one) else one for one in array.shape]
    if not TensorShape(shape).is_compatible_with(known):
        raise InvalidArgumentError(f"tf.ensure_shape expects shape {shape}, got {array.shape}.")
    return array


def bitcast(input: ArrayLike, type: DTypeLike, name: str | None = None) -> jax.Array:
    """Reinterprets the bits as another dtype; a wider dtype consumes the last axis, a narrower adds one.

    >>> bitcast(1.0, "int32")
    Array(1065353216, dtype=int32)
    """
    return jax.lax.bitcast_convert_type(as_tensor(input), as_dtype(type))


def _sizes(value: ArrayLike) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else tuple(as_tensor(value).shape)


def _integer_type(dtype: DTypeLike) -> DTypeLike:
    return np.dtype(np.int32) if dtype is None else canonical_dtype(dtype)
