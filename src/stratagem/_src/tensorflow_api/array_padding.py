"""Pads, tiles, repeats, rolls and reverses arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    ScalarLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    axes_of,
    integer,
    integers,
    matched,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = [
    "batch_to_space",
    "pad",
    "repeat",
    "reverse",
    "reverse_sequence",
    "roll",
    "space_to_batch",
    "tile",
]


def tile(input: ArrayLike, multiples: ShapeLike, name: str | None = None) -> Tensor:
    """Returns the array, repeated along each axis.

    >>> tile([1, 2], [2])
    Array([1, 2, 1, 2], dtype=int32)
    """
    x = as_tensor(input)
    times = integers("tile", "multiples", multiples)
    if len(times) != x.ndim:
        raise InvalidArgumentError(
            f"multiples of tf.tile must have one number for each of {x.ndim} axes, got {len(times)}."
        )
    return HostTensor.of(np.tile(x, times)) if is_host_only(x.dtype) else jnp.tile(x, times)


def repeat(
    input: ArrayLike, repeats: ShapeLike, axis: AxisLike = None, name: str | None = None
) -> jax.Array:
    """Returns the array with each element repeated, along an axis or flattened.

    >>> repeat([1, 2], [1, 2])
    Array([1, 2, 2], dtype=int32)
    """
    x = as_tensor(input)
    times = integers("repeat", "repeats", repeats)
    along = None if axis is None else integer("repeat", "axis", axis)
    return jnp.repeat(x, times[0] if len(times) == 1 else np.array(times), along)


def roll(input: ArrayLike, shift: ArrayLike, axis: AxisLike, name: str | None = None) -> jax.Array:
    """Returns the array with its elements rolled along axes.

    >>> roll([1, 2, 3], 1, 0)
    Array([3, 1, 2], dtype=int32)
    """
    x = as_tensor(input)
    axes = axes_of("roll", axis, x.ndim)
    moved = as_tensor(shift)
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
    x = as_tensor(tensor)
    return jnp.flip(x, axes_of("reverse", axis, x.ndim))


def pad(
    tensor: ArrayLike,
    paddings: ArrayLike,
    mode: str = "CONSTANT",
    constant_values: ScalarLike = 0,
    name: str | None = None,
) -> jax.Array:
    """Pads an array before and after each axis.

    Args:
        tensor: An array.
        paddings: The number of elements to add before and after, for each axis.
        mode: ``"CONSTANT"``, ``"REFLECT"`` (without the edge) or ``"SYMMETRIC"`` (with it).
        constant_values: The value to pad with.
        name: Ignored.

    >>> pad([1, 2], [[1, 2]])
    Array([0, 1, 2, 0, 0], dtype=int32)
    """
    x = as_tensor(tensor)
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
    limits = np.array(x.shape) - (how == "reflect")
    if (widths.max(axis=1, initial=0) > limits).any():
        raise InvalidArgumentError(
            f"tf.pad with mode {mode} adds at most {limits.tolist()}, got {widths.tolist()}."
        )
    return jnp.pad(x, widths, mode=how)


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
        seq_lengths: The number of elements to reverse in each sequence.
        seq_axis: The axis along each sequence.
        batch_axis: The axis over sequences; default: the first.
        name: Ignored.

    >>> reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1)
    Array([[2, 1, 3],
           [6, 5, 4]], dtype=int32)
    """
    x, lengths = as_tensor(input), as_tensor(seq_lengths)
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
    """Moves spatial blocks into the batch dimension.

    >>> space_to_batch([[[[1], [2]], [[3], [4]]]], [2, 2], [[0, 0], [0, 0]]).shape
    (4, 1, 1, 1)
    """
    x = as_tensor(input)
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
    """Moves the batch dimension into spatial blocks: the inverse of ``space_to_batch``.

    >>> batch_to_space([[[[1]]], [[[2]]], [[[3]]], [[[4]]]], [2, 2], [[0, 0], [0, 0]]).shape
    (1, 2, 2, 1)
    """
    x = as_tensor(input)
    block = integers("batch_to_space", "block_shape", block_shape)
    cut = np.reshape(_known_paddings(crops), (-1, 2)).tolist()
    n = len(block)
    batch, spatial, rest = x.shape[0] // int(np.prod(block)), x.shape[1 : 1 + n], x.shape[1 + n :]
    x = x.reshape((*block, batch, *spatial, *rest))
    order = [n, *[p for i in range(n) for p in (n + 1 + i, i)], *range(2 * n + 1, x.ndim)]
    x = x.transpose(order)
    x = x.reshape((batch, *[s * b for s, b in zip(spatial, block, strict=True)], *rest))
    index = [slice(None), *[slice(a, x.shape[1 + i] - b) for i, (a, b) in enumerate(cut)]]
    return x[tuple(index)]


def _known_paddings(paddings: ArrayLike) -> ArrayLike:
    if isinstance(paddings, (list, tuple)):
        return [[integer("pad", "paddings", one) for one in pair] for pair in paddings]
    return integers("pad", "paddings", paddings)
