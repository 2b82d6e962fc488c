"""``tf.image``: flips, rotations, crops, padding and patches of images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, IntegerLike, ScalarLike, ShapeLike, Tensor
from stratagem._src.tensorflow_api.conversion import as_tensor, concrete, integer, integers
from stratagem._src.tensorflow_api.image_arrays import as_image, as_image_batch, as_result

__all__ = [
    "central_crop",
    "crop_and_resize",
    "crop_to_bounding_box",
    "extract_patches",
    "flip_left_right",
    "flip_up_down",
    "pad_to_bounding_box",
    "rot90",
    "transpose",
]


def flip_left_right(image: ArrayLike) -> Tensor:
    """Flips images horizontally.

    JAX equivalent: ``jax.numpy.flip(image, -2)``.

    >>> flip_left_right([[[1], [2]]]).tolist()
    [[[2], [1]]]
    """
    xp, array = as_image("flip_left_right", image, ranks=(3, 4))
    return as_result(xp.flip(array, -2))


def flip_up_down(image: ArrayLike) -> Tensor:
    """Flips images vertically.

    JAX equivalent: ``jax.numpy.flip(image, -3)``.

    >>> flip_up_down([[[1]], [[2]]]).tolist()
    [[[2]], [[1]]]
    """
    xp, array = as_image("flip_up_down", image, ranks=(3, 4))
    return as_result(xp.flip(array, -3))


def transpose(image: ArrayLike, name: str | None = None) -> Tensor:
    """Transposes rows and columns of images.

    >>> transpose([[[1], [2]]]).shape
    (2, 1, 1)
    """
    xp, array = as_image("transpose", image, ranks=(3, 4))
    return as_result(xp.swapaxes(array, -3, -2))


def rot90(image: ArrayLike, k: IntegerLike = 1, name: str | None = None) -> Tensor:
    """Rotates images counter-clockwise by 90 degrees, ``k`` times.

    A traced ``k`` needs square images, because shapes must be static.

    JAX equivalent: ``jax.numpy.rot90``.

    >>> rot90([[[1], [2]]]).tolist()
    [[[2]], [[1]]]
    """
    xp, array = as_image("rot90", image, ranks=(3, 4))
    if concrete(k) is None:
        if array.shape[-3] != array.shape[-2]:
            raise InvalidArgumentError(
                "tf.image.rot90 needs a k that is not traced, or a square image, got a traced k and shape "
                f"{array.shape}. Pass k as a Python number."
            )
        turns = [lambda x, n=n: jnp.rot90(x, n, axes=(-3, -2)) for n in range(4)]
        return jax.lax.switch(jnp.mod(as_tensor(k), 4), turns, as_tensor(array))
    return as_result(xp.rot90(array, integer("image.rot90", "k", k), axes=(-3, -2)))


def central_crop(image: ArrayLike, central_fraction: float) -> Tensor:
    """Crops the center of images: a fraction of the height and of the width.

    >>> central_crop([[[1.0], [2.0], [3.0], [4.0]]], 0.5)[0, :, 0]
    Array([2., 3.], dtype=float32)
    """
    _, array = as_image("central_crop", image)
    value = concrete(central_fraction)
    if value is None or not 0 < value <= 1:
        raise InvalidArgumentError(
            "central_fraction of tf.image.central_crop must be a number in (0, 1] and not traced, got "
            f"{central_fraction!r}."
        )
    if value == 1:
        return as_result(array)
    as_image("central_crop", image, ranks=(3, 4))
    top, left = (int((float(size) - float(size) * float(value)) / 2) for size in array.shape[-3:-1])
    height, width = array.shape[-3:-1]
    return as_result(array[..., top : height - top, left : width - left, :])


def crop_to_bounding_box(
    image: ArrayLike,
    offset_height: ScalarLike,
    offset_width: ScalarLike,
    target_height: IntegerLike,
    target_width: IntegerLike,
) -> Tensor:
    """Crops images to a box.

    Offsets may be traced, sizes must be static. A traced offset out of range is clamped to the image, where
    TensorFlow raises: compiled code cannot.

    >>> crop_to_bounding_box([[[1.0], [2.0], [3.0]]], 0, 1, 1, 2)[0, :, 0]
    Array([2., 3.], dtype=float32)
    """
    _, batch, is_batch = as_image_batch("crop_to_bounding_box", image)
    sizes = (
        integer("image.crop_to_bounding_box", "target_height", target_height),
        integer("image.crop_to_bounding_box", "target_width", target_width),
    )
    offsets = [concrete(offset) for offset in (offset_height, offset_width)]
    for size, offset, total in zip(sizes, offsets, batch.shape[1:3], strict=True):
        place = 0 if offset is None else int(offset)
        if size <= 0 or place < 0 or place + size > total:
            raise InvalidArgumentError(
                "tf.image.crop_to_bounding_box needs a box within the image, got offset "
                f"{place} and size {size} in {total} pixels."
            )
    if any(offset is None for offset in offsets):
        begin = [jnp.asarray(b, jnp.int32) for b in (0, offset_height, offset_width, 0)]
        shape = (batch.shape[0], *sizes, batch.shape[3])
        return as_result(jax.lax.dynamic_slice(as_tensor(batch), begin, shape), is_batch=is_batch)
    top, left = (int(offset) for offset in offsets if offset is not None)
    cropped = batch[:, top : top + sizes[0], left : left + sizes[1]]
    return as_result(cropped, is_batch=is_batch)


def pad_to_bounding_box(
    image: ArrayLike,
    offset_height: ScalarLike,
    offset_width: ScalarLike,
    target_height: IntegerLike,
    target_width: IntegerLike,
) -> Tensor:
    """Pads images with zeros to a larger size.

    >>> pad_to_bounding_box([[[1.0]]], 0, 1, 1, 3)[0, :, 0]
    Array([0., 1., 0.], dtype=float32)
    """
    op = "image.pad_to_bounding_box"
    xp, batch, is_batch = as_image_batch("pad_to_bounding_box", image)
    paddings = [(0, 0)]
    for size, offset, target in zip(
        batch.shape[1:3],
        (integer(op, "offset_height", offset_height), integer(op, "offset_width", offset_width)),
        (integer(op, "target_height", target_height), integer(op, "target_width", target_width)),
        strict=True,
    ):
        if offset < 0 or offset + size > target:
            raise InvalidArgumentError(
                f"tf.{op} needs a target that contains the image, got offset {offset} and target "
                f"{target} for {size} pixels."
            )
        paddings.append((offset, target - offset - size))
    return as_result(xp.pad(batch, [*paddings, (0, 0)]), is_batch=is_batch)


def extract_patches(
    images: ArrayLike,
    sizes: ShapeLike,
    strides: ShapeLike,
    rates: ShapeLike,
    padding: str,
    name: str | None = None,
) -> Tensor:
    """Extracts patches of images, each flattened to a vector.

    JAX equivalent: ``jax.lax.conv_general_dilated_patches``, which orders the vector by channel.

    >>> extract_patches([[[[1.0], [2.0]]]], [1, 1, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID")
    Array([[[[1., 2.]]]], dtype=float32)

    Args:
        images: A batch of images.
        sizes: The patch size ``[1, height, width, 1]``.
        strides: The step between patches ``[1, rows, columns, 1]``.
        rates: The dilation of a patch ``[1, rows, columns, 1]``.
        padding: ``"VALID"`` or ``"SAME"``.
        name: Ignored.
    """
    op = "image.extract_patches"
    _, array = as_image("extract_patches", images, ranks=(4,))
    numbers = [
        integers(op, label, value)
        for label, value in (("sizes", sizes), ("strides", strides), ("rates", rates))
    ]
    for given in numbers:
        if len(given) != 4 or given[0] != 1 or given[3] != 1:
            raise InvalidArgumentError(
                f"sizes, strides and rates of tf.{op} must be [1, rows, columns, 1], got {given}."
            )
    window, step, rate = (given[1:3] for given in numbers)
    array = as_tensor(array)
    if padding == "SAME":
        around = [(0, 0)]
        for size, patch, stride, spread in zip(array.shape[1:3], window, step, rate, strict=True):
            covered = (patch - 1) * spread + 1
            missing = max((-(-size // stride) - 1) * stride + covered - size, 0)
            around.append((missing // 2, missing - missing // 2))
        array = jnp.pad(array, [*around, (0, 0)])
    elif padding != "VALID":
        raise InvalidArgumentError(
            f"padding of tf.{op} must be 'SAME' or 'VALID', got {padding!r}."
        )
    counts = [
        max((size - (patch - 1) * spread - 1) // stride + 1, 0)
        for size, patch, stride, spread in zip(array.shape[1:3], window, step, rate, strict=True)
    ]
    rows, columns = (
        np.arange(count)[:, None] * stride + np.arange(patch) * spread
        for count, patch, stride, spread in zip(counts, window, step, rate, strict=True)
    )
    taken = array[:, rows[:, None, :, None], columns[None, :, None, :]]
    return taken.reshape(array.shape[0], *counts, -1)


def crop_and_resize(
    image: ArrayLike,
    boxes: ArrayLike,
    box_indices: ArrayLike,
    crop_size: ShapeLike,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    name: str | None = None,
) -> jax.Array:
    """Crops boxes out of images and resizes each crop to the same size.

    >>> crop_and_resize([[[[1.0], [3.0]]]], [[0.0, 0.0, 1.0, 1.0]], [0], [1, 3])[0, 0, :, 0]
    Array([1., 2., 3.], dtype=float32)

    Args:
        image: A batch of images.
        boxes: ``[y1, x1, y2, x2]`` of each crop, as fractions of height and width.
        box_indices: The index of the image of each crop.
        crop_size: Height and width of the crops, which must be static.
        method: ``"bilinear"`` or ``"nearest"``.
        extrapolation_value: The value outside the image.
        name: Ignored.
    """
    images = as_tensor(as_image("crop_and_resize", image, ranks=(4,))[1]).astype(jnp.float32)
    boxes, numbers = as_tensor(boxes), as_tensor(box_indices)
    size = integers("image.crop_and_resize", "crop_size", crop_size)
    if method not in ("bilinear", "nearest"):
        raise InvalidArgumentError(
            f"method of tf.image.crop_and_resize must be 'bilinear' or 'nearest', got {method!r}."
        )
    if len(size) != 2 or min(size) <= 0:
        raise InvalidArgumentError(
            f"crop_size of tf.image.crop_and_resize must be height and width, got {crop_size!r}."
        )
    indices = concrete(box_indices)
    if (
        indices is not None
        and indices.size
        and not 0 <= indices.min() <= indices.max() < len(images)
    ):
        raise InvalidArgumentError(
            f"box_indices of tf.image.crop_and_resize must be in [0, {len(images)}), got {indices}."
        )
    places = []
    for axis, count in enumerate(size):
        low, high, last = boxes[:, axis], boxes[:, axis + 2], images.shape[axis + 1] - 1
        steps = jnp.arange(count, dtype=jnp.float32)[None]
        if count > 1:
            found = low[:, None] * last + steps * ((high - low) * last / (count - 1))[:, None]
        else:
            found = 0.5 * (low + high)[:, None] * last
        places.append(found)
    y, x = places
    inside = ((y >= 0) & (y <= images.shape[1] - 1))[:, :, None] & (
        (x >= 0) & (x <= images.shape[2] - 1)
    )[:, None, :]

    def taken(rows: Tensor, columns: Tensor) -> Tensor:
        rows = jnp.clip(rows, 0, images.shape[1] - 1).astype(jnp.int32)
        columns = jnp.clip(columns, 0, images.shape[2] - 1).astype(jnp.int32)
        return images[numbers[:, None, None], rows[:, :, None], columns[:, None, :]]

    if method == "nearest":
        # Round half away from zero, as roundf in C.
        result = taken(jnp.floor(y + 0.5), jnp.floor(x + 0.5))
    else:
        top, left = jnp.floor(y), jnp.floor(x)
        down, right = (y - top)[:, :, None, None], (x - left)[:, None, :, None]
        upper = taken(top, left) * (1 - right) + taken(top, jnp.ceil(x)) * right
        lower = taken(jnp.ceil(y), left) * (1 - right) + taken(jnp.ceil(y), jnp.ceil(x)) * right
        result = upper * (1 - down) + lower * down
    return jnp.where(inside[..., None], result, jnp.float32(extrapolation_value))
