"""Shapes of arrays: asking, changing, joining, splitting, padding, slicing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

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
    IntegerLike,
    ScalarLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_dtype,
    available,
    axes_of,
    integer,
    integers,
    known,
    matched,
    shape_of,
    tensor,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor, is_size

__all__ = [
    "batch_to_space",
    "bitcast",
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "broadcast_to",
    "concat",
    "ensure_shape",
    "expand_dims",
    "pad",
    "parallel_stack",
    "rank",
    "repeat",
    "reshape",
    "reverse",
    "reverse_sequence",
    "roll",
    "shape",
    "shape_n",
    "size",
    "slice",
    "space_to_batch",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "tile",
    "transpose",
    "unstack",
]


def shape(input: ArrayLike, out_type: DTypeLike = None, name: str | None = None) -> HostTensor:
    """Returns the shape of an array, as whole numbers that are known while a function is traced.

    Differs from TensorFlow: the result is on the host, for XLA compiles for fixed shapes.

    >>> shape([[1, 2, 3]])
    HostTensor([1, 3], dtype=int32)
    """
    return HostTensor.of(np.array(_sizes(input), _integer_type(out_type)))


def shape_n(
    input: Sequence[ArrayLike], out_type: DTypeLike = None, name: str | None = None
) -> list[HostTensor]:
    """Returns the shape of each array.

    >>> shape_n([[1], [1, 2]])
    [HostTensor([1], dtype=int32), HostTensor([2], dtype=int32)]
    """
    return [shape(one, out_type) for one in input]


def size(input: ArrayLike, out_type: DTypeLike = None, name: str | None = None) -> HostTensor:
    """Returns the number of elements of an array, which is known while a function is traced.

    >>> size([[1, 2, 3]])
    HostTensor(3, dtype=int32)
    """
    return HostTensor.of(np.array(np.prod(_sizes(input), dtype=np.int64), _integer_type(out_type)))


def rank(input: ArrayLike, name: str | None = None) -> HostTensor:
    """Returns the number of dimensions of an array.

    >>> rank([[1, 2, 3]])
    HostTensor(2, dtype=int32)
    """
    return HostTensor.of(np.array(len(_sizes(input)), np.int32))


def reshape(tensor: ArrayLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Returns the same elements in another shape; -1 stands for what is left.

    >>> reshape([1, 2, 3, 4], [2, -1])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    x = _array(tensor)
    sizes = shape_of("reshape", shape)
    try:
        return x.reshape(sizes)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"tf.reshape keeps the number of elements, got an array of {x.size} and shape {list(sizes)}."
        ) from None


def transpose(
    a: ArrayLike, perm: AxisLike = None, conjugate: bool = False, name: str | None = None
) -> jax.Array:
    """Returns the array with its axes in another order, in the opposite one by default.

    >>> transpose([[1, 2], [3, 4]])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = _array(a)
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
    x = _array(input)
    place = integer("expand_dims", "axis", axis)
    if not -x.ndim - 1 <= place <= x.ndim:
        raise InvalidArgumentError(
            f"axis of tf.expand_dims must be in [{-x.ndim - 1}, {x.ndim}], got {place}."
        )
    return np.expand_dims(x, place) if _on_host(x) else jnp.expand_dims(x, place)


def squeeze(input: ArrayLike, axis: AxisLike = None, name: str | None = None) -> Tensor:
    """Returns the array without axes of size 1, all of them or those named.

    >>> squeeze([[1, 2]])
    Array([1, 2], dtype=int32)
    """
    x = _array(input)
    if axis is None:
        return x.squeeze()
    axes = axes_of("squeeze", axis, x.ndim)
    wrong = [one for one in axes if x.shape[one] != 1]
    if wrong:
        raise InvalidArgumentError(
            f"tf.squeeze drops axes of size 1, got axes {wrong} of shape {x.shape}."
        )
    return x.squeeze(axes or None) if axes or axis is None else x.squeeze()


def broadcast_to(input: ArrayLike, shape: ShapeLike, name: str | None = None) -> jax.Array:
    """Returns the array, repeated to fill a shape.

    >>> broadcast_to([1, 2], [2, 2])
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    return jnp.broadcast_to(_array(input), shape_of("broadcast_to", shape))


def broadcast_dynamic_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> HostTensor:
    """Returns the shape that two shapes broadcast to.

    >>> broadcast_dynamic_shape([1, 3], [2, 1])
    HostTensor([2, 3], dtype=int32)
    """
    shapes = [shape_of("broadcast_dynamic_shape", one) for one in (shape_x, shape_y)]
    return HostTensor.of(np.array(np.broadcast_shapes(*shapes), np.int32))


def broadcast_static_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> TensorShape:
    """Returns the shape that two shapes broadcast to.

    >>> broadcast_static_shape([1, 3], [2, 1])
    TensorShape([2, 3])
    """
    return TensorShape(np.broadcast_shapes(tuple(shape_x), tuple(shape_y)))


def ensure_shape(x: ArrayLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Returns ``x``, whose shape must be ``shape``; ``None`` stands for any size.

    >>> ensure_shape([[1, 2]], [None, 2])
    Array([[1, 2]], dtype=int32)
    """
    array = _array(x)
    if not TensorShape(shape).is_compatible_with(array.shape):
        raise InvalidArgumentError(f"ensure_shape needs shape {shape}, got {array.shape}.")
    return array


def concat(values: ArrayLike, axis: AxisLike, name: str | None = None) -> Tensor:
    """Returns arrays joined along an axis.

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
    """Returns arrays of one shape joined along a new axis.

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
    """Returns arrays of one shape joined along a new first axis.

    >>> parallel_stack([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return stack(values)


def unstack(
    value: ArrayLike, num: IntegerLike = None, axis: AxisLike = 0, name: str | None = None
) -> list[Tensor]:
    """Returns a list of the arrays along an axis.

    >>> unstack([[1, 2], [3, 4]])
    [Array([1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    """
    x = _array(value)
    [along] = axes_of("unstack", integer("unstack", "axis", axis), x.ndim)
    if num is not None and num != x.shape[along]:
        raise ValueError(
            f"num of tf.unstack must be the size of the axis, {x.shape[along]}, got {num}."
        )
    if _on_host(x):
        return list(np.moveaxis(x, along, 0))
    return list(jnp.unstack(x, axis=along))


def split(
    value: ArrayLike,
    num_or_size_splits: ShapeLike,
    axis: AxisLike = 0,
    num: object = None,
    name: str | None = None,
) -> list[Tensor]:
    """Returns a list of parts along an axis: so many equal ones, or ones of these sizes.

    >>> split([1, 2, 3, 4], 2)
    [Array([1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    >>> split([1, 2, 3, 4], [1, -1])
    [Array([1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    x = _array(value)
    [along] = axes_of("split", integer("split", "axis", axis), x.ndim)
    total = x.shape[along]
    given = known(num_or_size_splits)
    if given is None or given.ndim == 0:
        count = integer("split", "num_or_size_splits", num_or_size_splits)
        if count <= 0 or total % count:
            raise InvalidArgumentError(
                f"tf.split needs a number of parts that divides the axis, got {count} and size {total}."
            )
        sizes = [total // count] * count
    else:
        sizes = list(integers("split", "num_or_size_splits", num_or_size_splits))
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = total - sum(one for one in sizes if one != -1)
        if sum(sizes) != total or min(sizes, default=0) < 0:
            raise InvalidArgumentError(f"tf.split needs sizes that add up to {total}, got {sizes}.")
    ends = np.cumsum([0, *sizes]).tolist()
    index = [slice_of_all] * x.ndim
    parts = []
    for begin, end in itertools.pairwise(ends):
        index[along] = _python_slice(begin, end)
        parts.append(x[tuple(index)])
    return parts


def tile(input: ArrayLike, multiples: ShapeLike, name: str | None = None) -> Tensor:
    """Returns the array, repeated along each axis.

    >>> tile([1, 2], [2])
    Array([1, 2, 1, 2], dtype=int32)
    """
    x = _array(input)
    times = integers("tile", "multiples", multiples)
    if len(times) != x.ndim:
        raise InvalidArgumentError(
            f"multiples of tf.tile must have one number for each of {x.ndim} axes, got {len(times)}."
        )
    return HostTensor.of(np.tile(x, times)) if _on_host(x) else jnp.tile(x, times)


def repeat(
    input: ArrayLike, repeats: ShapeLike, axis: AxisLike = None, name: str | None = None
) -> jax.Array:
    """Returns the array with each element repeated, along an axis or of all elements in one row.

    >>> repeat([1, 2], [1, 2])
    Array([1, 2, 2], dtype=int32)
    """
    x = _array(input)
    times = integers("repeat", "repeats", repeats)
    along = None if axis is None else integer("repeat", "axis", axis)
    return jnp.repeat(x, times[0] if len(times) == 1 else np.array(times), along)


def roll(input: ArrayLike, shift: ArrayLike, axis: AxisLike, name: str | None = None) -> jax.Array:
    """Returns the array with its elements shifted along axes, around the ends.

    >>> roll([1, 2, 3], 1, 0)
    Array([3, 1, 2], dtype=int32)
    """
    x = _array(input)
    axes = axes_of("roll", axis, x.ndim)
    moved = tensor(shift)
    if moved.ndim == 0 and len(axes) == 1:
        return jnp.roll(x, moved, axes[0])
    for one, by in zip(axes, moved.ravel(), strict=True):
        x = jnp.roll(x, by, one)
    return x


def reverse(tensor: ArrayLike, axis: AxisLike, name: str | None = None) -> jax.Array:
    """Returns the array with the order of elements reversed along axes.

    >>> reverse([1, 2, 3], [0])
    Array([3, 2, 1], dtype=int32)
    """
    x = _array(tensor)
    return jnp.flip(x, axes_of("reverse", axis, x.ndim))


def pad(
    tensor: ArrayLike,
    paddings: ArrayLike,
    mode: str = "CONSTANT",
    constant_values: ScalarLike = 0,
    name: str | None = None,
) -> jax.Array:
    """Returns the array with elements added before and after along each axis.

    Args:
        tensor: An array.
        paddings: For each axis how many before and after.
        mode: ``"CONSTANT"``, ``"REFLECT"`` (without the edge) or ``"SYMMETRIC"`` (with it).
        constant_values: What to add.
        name: Ignored.

    >>> pad([1, 2], [[1, 2]])
    Array([0, 1, 2, 0, 0], dtype=int32)
    """
    x = _array(tensor)
    widths = np.reshape(
        integers("pad", "paddings", np.reshape(_known_paddings(paddings), -1)), (-1, 2)
    )
    if len(widths) != x.ndim or (widths < 0).any():
        raise InvalidArgumentError(
            f"paddings of tf.pad must be two numbers >= 0 for each of {x.ndim} axes, got {widths.tolist()}."
        )
    modes = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}
    if mode.upper() not in modes:
        raise ValueError(f"mode of tf.pad must be one of {sorted(modes)}, got {mode!r}.")
    how = modes[mode.upper()]
    if how == "constant":
        return jnp.pad(x, widths, constant_values=matched("pad", x, constant_values)[1])
    most = np.array(x.shape) - (how == "reflect")
    if (widths.max(axis=1, initial=0) > most).any():
        raise InvalidArgumentError(
            f"tf.pad by {mode} adds at most {most.tolist()}, got {widths.tolist()}."
        )
    return jnp.pad(x, widths, mode=how)


def slice(input_: ArrayLike, begin: ArrayLike, size: ShapeLike, name: str | None = None) -> Tensor:
    """Returns a part of an array: so many elements along each axis, -1 for all that are left.

    >>> slice([1, 2, 3, 4], [1], [2])
    Array([2, 3], dtype=int32)
    """
    x = _array(input_)
    sizes = integers("slice", "size", size)
    starts = (
        known(begin)
        if not isinstance(begin, (list, tuple)) or all(known(b) is not None for b in begin)
        else None
    )
    if starts is None:
        if -1 in sizes:
            raise InvalidArgumentError("size of tf.slice must not be -1 where begin is traced.")
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
    """Returns ``input_[begin:end:strides]``, with Python's slices along each axis.

    Args:
        input_: An array.
        begin: First index along each of the leading axes.
        end: Index after the last.
        strides: Steps; default: 1.
        begin_mask: Bits of the axes where ``begin`` does not count.
        end_mask: Bits of the axes where ``end`` does not count.
        ellipsis_mask: Bit of the place that stands for all axes not named.
        new_axis_mask: Bits of the places where an axis is added.
        shrink_axis_mask: Bits of the axes where ``begin`` is an index.
        var: Must be ``None``.
        name: Ignored.

    >>> strided_slice([1, 2, 3, 4], [0], [4], [2])
    Array([1, 3], dtype=int32)
    """
    if var is not None:
        raise NotImplementedError(
            "strided_slice of a variable that is assigned to is not supported. Use assign."
        )
    x = _array(input_)
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


def bitcast(input: ArrayLike, type: DTypeLike, name: str | None = None) -> jax.Array:
    """Returns the same bits as another element type; a wider one takes the last axis, a narrower adds one.

    >>> bitcast(1.0, "int32")
    Array(1065353216, dtype=int32)
    """
    return jax.lax.bitcast_convert_type(_array(input), as_dtype(type))


def reverse_sequence(
    input: ArrayLike,
    seq_lengths: ArrayLike,
    seq_axis: AxisLike = None,
    batch_axis: AxisLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the array with the first elements of each sequence in reverse order.

    Args:
        input: An array of sequences.
        seq_lengths: How many elements of each sequence are reversed.
        seq_axis: Along which axis a sequence is.
        batch_axis: Along which axis sequences are; default: the first.
        name: Ignored.

    >>> reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1)
    Array([[2, 1, 3],
           [6, 5, 4]], dtype=int32)
    """
    x, lengths = _array(input), tensor(seq_lengths)
    [along] = axes_of("reverse_sequence", seq_axis, x.ndim)
    [batch] = axes_of("reverse_sequence", 0 if batch_axis is None else batch_axis, x.ndim)
    shape = [1] * x.ndim
    shape[along] = x.shape[along]
    place = jnp.arange(x.shape[along], dtype=lengths.dtype).reshape(shape)
    shape = [1] * x.ndim
    shape[batch] = x.shape[batch]
    count = lengths.reshape(shape)
    index = jnp.where(place < count, count - 1 - place, place)
    return jnp.take_along_axis(x, index, along)


def space_to_batch(
    input: ArrayLike, block_shape: ShapeLike, paddings: ArrayLike, name: str | None = None
) -> jax.Array:
    """Returns an array whose blocks in space have become batches.

    >>> space_to_batch([[[[1], [2]], [[3], [4]]]], [2, 2], [[0, 0], [0, 0]]).shape
    (4, 1, 1, 1)
    """
    x = _array(input)
    block = integers("space_to_batch", "block_shape", block_shape)
    widths = np.reshape(_known_paddings(paddings), (-1, 2))
    x = pad(x, [(0, 0), *widths.tolist(), *[(0, 0)] * (x.ndim - 1 - len(block))])
    batch, spatial, rest = x.shape[0], x.shape[1 : 1 + len(block)], x.shape[1 + len(block) :]
    split_up = [n for s, b in zip(spatial, block, strict=True) for n in (s // b, b)]
    x = x.reshape((batch, *split_up, *rest))
    inner = [2 + 2 * i for i in range(len(block))]
    outer = [1 + 2 * i for i in range(len(block))]
    order = [*inner, 0, *outer, *range(1 + 2 * len(block), x.ndim)]
    sizes = [s // b for s, b in zip(spatial, block, strict=True)]
    return x.transpose(order).reshape((batch * int(np.prod(block)), *sizes, *rest))


def batch_to_space(
    input: ArrayLike, block_shape: ShapeLike, crops: ArrayLike, name: str | None = None
) -> jax.Array:
    """Returns an array whose batches have become blocks in space: the opposite of ``space_to_batch``.

    >>> batch_to_space([[[[1]]], [[[2]]], [[[3]]], [[[4]]]], [2, 2], [[0, 0], [0, 0]]).shape
    (1, 2, 2, 1)
    """
    x = _array(input)
    block = integers("batch_to_space", "block_shape", block_shape)
    cut = np.reshape(_known_paddings(crops), (-1, 2)).tolist()
    n = len(block)
    batch, spatial, rest = x.shape[0] // int(np.prod(block)), x.shape[1 : 1 + n], x.shape[1 + n :]
    x = x.reshape((*block, batch, *spatial, *rest))
    order = [n, *[p for i in range(n) for p in (n + 1 + i, i)], *range(2 * n + 1, x.ndim)]
    x = x.transpose(order)
    x = x.reshape((batch, *[s * b for s, b in zip(spatial, block, strict=True)], *rest))
    index = [slice_of_all, *[_python_slice(a, x.shape[1 + i] - b) for i, (a, b) in enumerate(cut)]]
    return x[tuple(index)]


_python_slice = type(np.s_[:])
slice_of_all = np.s_[:]


def _array(value: ArrayLike) -> Tensor:
    return tensor(value)


def _sizes(value: ArrayLike) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else tuple(tensor(value).shape)


def _on_host(array: Tensor) -> bool:
    return is_host_only(array.dtype)


def _integer_type(dtype: DTypeLike) -> DTypeLike:
    return np.dtype(np.int32) if dtype is None else available(dtype)


def _known_paddings(paddings: ArrayLike) -> ArrayLike:
    if isinstance(paddings, (list, tuple)):
        return [[integer("pad", "paddings", one) for one in pair] for pair in paddings]
    return integers("pad", "paddings", paddings)


def _listed(op: str, values: ArrayLike) -> Sequence[ArrayLike]:
    if isinstance(values, (list, tuple)):
        if not values:
            raise ValueError(f"tf.{op} needs at least one array, got an empty list.")
        return values
    array = tensor(values)
    return [array] if array.ndim == 0 or op == "concat" else list(array)


def _sizes_on_host(values: Sequence[Any]) -> list[HostTensor] | None:
    """Returns sizes as they are on the host, if one is of ``tf.shape`` and the others are known, too.

    ``tf.concat([[n], tf.shape(x)], 0)`` is a shape again, and must not become a traced array.
    """
    leaves = jax.tree.leaves(list(values))
    if not any(is_size(leaf) for leaf in leaves):
        return None
    if not all(is_size(leaf) or type(leaf) is int for leaf in leaves):
        return None
    dtype = np.result_type(*(leaf.dtype for leaf in leaves if is_size(leaf)))
    return [HostTensor.of(np.asarray(value, dtype)) for value in values]


def _matched_or_promoted(op: str, values: Sequence[Any]) -> list[Tensor]:
    """Returns arrays of one dtype; Python's numbers alone are promoted as in one list of them."""
    if all(isinstance(value, (bool, int, float)) for value in values):
        return list(tensor(list(values)))
    return matched(op, *values)


def _check_alike(op: str, arrays: Sequence[Any], along: int | None) -> None:
    shapes = [list(array.shape) for array in arrays]
    for shape in shapes:
        if along is not None and along < len(shape):
            shape[along] = 0
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidArgumentError(
            f"tf.{op} needs arrays of one shape{' but for the axis' if op == 'concat' else ''}, got "
            f"{[array.shape for array in arrays]}."
        )
