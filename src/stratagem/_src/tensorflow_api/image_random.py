"""``tf.image``: random flips, crops and colors, and their stateless forms.

Random numbers come from ``tf.random`` and follow the same ``seed`` and ``tf.random.set_seed``. They have
the same distributions as TensorFlow's, but other values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, Seed, ShapeLike, Tensor
from stratagem._src.tensorflow_api import image_codecs, image_color
from stratagem._src.tensorflow_api.conversion import as_tensor, concrete, integers
from stratagem._src.tensorflow_api.host_tensor import HostTensor
from stratagem._src.tensorflow_api.image_arrays import as_image, as_result
from stratagem._src.tensorflow_api.random_stateful import uniform
from stratagem._src.tensorflow_api.random_stateless import stateless_uniform

__all__ = [
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_jpeg_quality",
    "random_saturation",
    "sample_distorted_bounding_box",
    "stateless_random_brightness",
    "stateless_random_contrast",
    "stateless_random_crop",
    "stateless_random_flip_left_right",
    "stateless_random_flip_up_down",
    "stateless_random_hue",
    "stateless_random_jpeg_quality",
    "stateless_random_saturation",
    "stateless_sample_distorted_bounding_box",
]

_Uniform = Callable[..., Any]
"""A function of a shape and of ``minval``, ``maxval`` and ``dtype``."""


def _stateful(seed: int | None) -> _Uniform:
    return functools.partial(uniform, seed=seed)


def _stateless(seed: Seed) -> _Uniform:
    return functools.partial(stateless_uniform, seed=seed)


def random_flip_left_right(image: ArrayLike, seed: int | None = None) -> Tensor:
    """Flips each image horizontally with probability 1/2.

    >>> random_flip_left_right(np.zeros((2, 3, 1), np.float32)).shape
    (2, 3, 1)
    """
    return _flipped("random_flip_left_right", image, -2, _stateful(seed))


def random_flip_up_down(image: ArrayLike, seed: int | None = None) -> Tensor:
    """Flips each image vertically with probability 1/2.

    >>> random_flip_up_down(np.zeros((2, 3, 1), np.float32)).shape
    (2, 3, 1)
    """
    return _flipped("random_flip_up_down", image, -3, _stateful(seed))


def stateless_random_flip_left_right(image: ArrayLike, seed: Seed) -> Tensor:
    """Flips each image horizontally with probability 1/2, determined by ``seed``, two integers.

    >>> stateless_random_flip_left_right(np.zeros((2, 3, 1), np.float32), (1, 2)).shape
    (2, 3, 1)
    """
    return _flipped("stateless_random_flip_left_right", image, -2, _stateless(seed))


def stateless_random_flip_up_down(image: ArrayLike, seed: Seed) -> Tensor:
    """Flips each image vertically with probability 1/2, determined by ``seed``, two integers.

    >>> stateless_random_flip_up_down(np.zeros((2, 3, 1), np.float32), (1, 2)).shape
    (2, 3, 1)
    """
    return _flipped("stateless_random_flip_up_down", image, -3, _stateless(seed))


def _flipped(op: str, image: ArrayLike, axis: int, uniform: _Uniform) -> Tensor:
    xp, array = as_image(op, image, ranks=(3, 4))
    shape = [] if array.ndim == 3 else [array.shape[0], 1, 1, 1]
    chance = uniform(shape, minval=0.0, maxval=1.0)
    drawn = concrete(chance)
    flips = (chance if drawn is None else drawn) < 0.5
    if drawn is None:
        return jnp.where(flips, jnp.flip(as_tensor(array), axis), array)
    return as_result(xp.where(flips, xp.flip(array, axis), array))


def random_brightness(image: ArrayLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Adds a random number from ``[-max_delta, max_delta)`` to an image.

    >>> random_brightness(np.zeros((2, 3, 1), np.float32), 0.1).shape
    (2, 3, 1)
    """
    return image_color.adjust_brightness(image, _delta("brightness", max_delta, _stateful(seed)))


def stateless_random_brightness(image: ArrayLike, max_delta: float, seed: Seed) -> Tensor:
    """Adds a random number to an image, determined by ``seed``.

    >>> stateless_random_brightness(np.zeros((2, 3, 1), np.float32), 0.1, (1, 2)).shape
    (2, 3, 1)
    """
    return image_color.adjust_brightness(image, _delta("brightness", max_delta, _stateless(seed)))


def random_hue(image: ArrayLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Rotates the hue of an RGB image by a random part of a full turn.

    >>> random_hue(np.zeros((2, 3, 3), np.float32), 0.1).shape
    (2, 3, 3)
    """
    return image_color.adjust_hue(image, _delta("hue", max_delta, _stateful(seed), 0.5))


def stateless_random_hue(image: ArrayLike, max_delta: float, seed: Seed) -> Tensor:
    """Rotates the hue of an RGB image by a random amount, determined by ``seed``.

    >>> stateless_random_hue(np.zeros((2, 3, 3), np.float32), 0.1, (1, 2)).shape
    (2, 3, 3)
    """
    return image_color.adjust_hue(image, _delta("hue", max_delta, _stateless(seed), 0.5))


def _delta(op: str, largest: float, uniform: _Uniform, limit: float = float("inf")) -> Tensor:
    if not 0 <= largest <= limit:
        raise InvalidArgumentError(
            f"max_delta of tf.image.random_{op} must be in [0, {limit}], got {largest}."
        )
    return uniform([], minval=-float(largest), maxval=float(largest))


def random_contrast(
    image: ArrayLike, lower: float, upper: float, seed: int | None = None
) -> Tensor:
    """Scales the contrast of an image by a random number from ``[lower, upper)``.

    >>> random_contrast(np.zeros((2, 3, 1), np.float32), 0.5, 1.5).shape
    (2, 3, 1)
    """
    return image_color.adjust_contrast(image, _factor("contrast", lower, upper, _stateful(seed)))


def stateless_random_contrast(image: ArrayLike, lower: float, upper: float, seed: Seed) -> Tensor:
    """Scales the contrast of an image by a random number, determined by ``seed``.

    >>> stateless_random_contrast(np.zeros((2, 3, 1), np.float32), 0.5, 1.5, (1, 2)).shape
    (2, 3, 1)
    """
    return image_color.adjust_contrast(image, _factor("contrast", lower, upper, _stateless(seed)))


def random_saturation(
    image: ArrayLike, lower: float, upper: float, seed: int | None = None
) -> Tensor:
    """Scales the saturation of an RGB image by a random number from ``[lower, upper)``.

    >>> random_saturation(np.zeros((2, 3, 3), np.float32), 0.5, 1.5).shape
    (2, 3, 3)
    """
    factor = _factor("saturation", lower, upper, _stateful(seed))
    return image_color.adjust_saturation(image, factor)


def stateless_random_saturation(
    image: ArrayLike, lower: float, upper: float, seed: Seed = None
) -> Tensor:
    """Scales the saturation of an RGB image by a random number, determined by ``seed``.

    >>> stateless_random_saturation(np.zeros((2, 3, 3), np.float32), 0.5, 1.5, (1, 2)).shape
    (2, 3, 3)
    """
    factor = _factor("saturation", lower, upper, _stateless(seed))
    return image_color.adjust_saturation(image, factor)


def _factor(op: str, lower: float, upper: float, uniform: _Uniform) -> Tensor:
    if upper <= lower or lower < 0:
        raise InvalidArgumentError(
            f"tf.image.random_{op} needs 0 <= lower < upper, got {lower} and {upper}."
        )
    return uniform([], minval=float(lower), maxval=float(upper))


def random_jpeg_quality(
    image: ArrayLike, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Tensor:
    """Applies JPEG compression of a random quality to an image, on the host.

    >>> random_jpeg_quality(np.zeros((2, 3, 3), np.uint8), 80, 90).shape
    (2, 3, 3)
    """
    quality = _quality(min_jpeg_quality, max_jpeg_quality, _stateful(seed))
    return image_codecs.adjust_jpeg_quality(image, quality)


def stateless_random_jpeg_quality(
    image: ArrayLike, min_jpeg_quality: int, max_jpeg_quality: int, seed: Seed
) -> Tensor:
    """Applies JPEG compression of a random quality to an image, determined by ``seed``.

    >>> stateless_random_jpeg_quality(np.zeros((2, 3, 3), np.uint8), 80, 90, (1, 2)).shape
    (2, 3, 3)
    """
    quality = _quality(min_jpeg_quality, max_jpeg_quality, _stateless(seed))
    return image_codecs.adjust_jpeg_quality(image, quality)


def _quality(low: int, high: int, uniform: _Uniform) -> Tensor:
    if not 0 <= low < high <= 100:
        raise InvalidArgumentError(
            "tf.image.random_jpeg_quality needs 0 <= min_jpeg_quality < max_jpeg_quality <= 100, got "
            f"{low} and {high}."
        )
    return uniform([], minval=low, maxval=high, dtype=np.int32)


def random_crop(
    value: ArrayLike, size: ShapeLike, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Crops an array at a random position.

    >>> random_crop(np.zeros((4, 4, 3), np.float32), [2, 2, 3]).shape
    (2, 2, 3)

    Args:
        value: An array with any number of dimensions.
        size: The shape of the crop, which must be static.
        seed: Makes the crop reproducible.
        name: Ignored.
    """
    return _cropped("random_crop", value, size, _stateful(seed))


def stateless_random_crop(
    value: ArrayLike, size: ShapeLike, seed: Seed, name: str | None = None
) -> Tensor:
    """Crops an array at a random position, determined by ``seed``.

    >>> stateless_random_crop(np.zeros((4, 4, 3), np.float32), [2, 2, 3], (1, 2)).shape
    (2, 2, 3)
    """
    return _cropped("stateless_random_crop", value, size, _stateless(seed))


def _cropped(op: str, value: ArrayLike, size: ShapeLike, uniform: _Uniform) -> Tensor:
    _, array = as_image(op, value)
    wanted = integers(f"image.{op}", "size", size)
    if len(wanted) != array.ndim or any(
        new > old for new, old in zip(wanted, array.shape, strict=True)
    ):
        raise InvalidArgumentError(
            f"size of tf.image.{op} must fit into shape {array.shape}, got {wanted}."
        )
    room = np.array(array.shape, np.int32) - np.array(wanted, np.int32) + 1
    drawn = uniform([len(wanted)], minval=0, maxval=np.iinfo(np.int32).max, dtype=np.int32)
    begin = concrete(drawn)
    if begin is None:
        return jax.lax.dynamic_slice(as_tensor(array), list(jnp.mod(drawn, room)), wanted)
    places = (begin % room).tolist()
    return as_result(array[tuple(slice(b, b + n) for b, n in zip(places, wanted, strict=True))])


def sample_distorted_bounding_box(
    image_size: ShapeLike,
    bounding_boxes: ArrayLike,
    seed: int = 0,
    min_object_covered: float = 0.1,
    aspect_ratio_range: ArrayLike = None,
    area_range: ArrayLike = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> tuple[HostTensor, HostTensor, HostTensor]:
    """Returns ``begin`` and ``size`` of a random crop that covers enough of an object, and its box.

    Runs on the host, because the size of a slice must be static.

    >>> begin, size, box = sample_distorted_bounding_box(
    ...     [8, 8, 3], np.zeros((1, 0, 4), np.float32), use_image_if_no_bounding_boxes=True
    ... )
    >>> box.shape
    (1, 1, 4)

    Args:
        image_size: Height, width and channels.
        bounding_boxes: An array of shape ``[1, n, 4]``: ``[y1, x1, y2, x2]`` as fractions of the image
            size.
        seed: Makes the crop reproducible, unless it is 0.
        min_object_covered: The minimum fraction of an object that the crop covers.
        aspect_ratio_range: The range of width divided by height; default ``[0.75, 1.33]``.
        area_range: The range of the fraction of the image's area; default ``[0.05, 1]``.
        max_attempts: The number of attempts before the crop is the full image; default 100.
        use_image_if_no_bounding_boxes: Whether the full image is the object if there are no boxes.
        name: Ignored.
    """
    uniform = _stateful(seed or None)
    options = (aspect_ratio_range, area_range, max_attempts, use_image_if_no_bounding_boxes)
    return _distorted_box(uniform, image_size, bounding_boxes, min_object_covered, *options)


def stateless_sample_distorted_bounding_box(
    image_size: ShapeLike,
    bounding_boxes: ArrayLike,
    seed: Seed,
    min_object_covered: float = 0.1,
    aspect_ratio_range: ArrayLike = None,
    area_range: ArrayLike = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> tuple[HostTensor, HostTensor, HostTensor]:
    """Returns a random crop that covers enough of an object, determined by ``seed``.

    >>> begin, size, box = stateless_sample_distorted_bounding_box(
    ...     [8, 8, 3], np.zeros((1, 0, 4), np.float32), (1, 2), use_image_if_no_bounding_boxes=True
    ... )
    >>> size[2].numpy()
    np.int32(-1)
    """
    options = (aspect_ratio_range, area_range, max_attempts, use_image_if_no_bounding_boxes)
    uniform = _stateless(seed)
    return _distorted_box(uniform, image_size, bounding_boxes, min_object_covered, *options)


def _distorted_box(
    uniform: _Uniform,
    image_size: ShapeLike,
    bounding_boxes: ArrayLike,
    min_object_covered: float,
    aspect_ratio_range: ArrayLike,
    area_range: ArrayLike,
    max_attempts: int | None,
    use_image: bool | None,
) -> tuple[HostTensor, HostTensor, HostTensor]:
    op = "image.sample_distorted_bounding_box"
    height, width = integers(op, "image_size", image_size)[:2]
    boxes, start = (
        concrete(bounding_boxes),
        concrete(uniform([2], minval=0, maxval=2**31 - 1, dtype=np.int32)),
    )
    if boxes is None or start is None:
        raise InvalidArgumentError(
            f"tf.{op} runs on the host, because the size of a crop must be static, and cannot be traced. "
            "Call it in Dataset.map."
        )
    if boxes.ndim != 3 or boxes.shape[-1] != 4:
        raise InvalidArgumentError(
            f"bounding_boxes of tf.{op} must have shape [1, n, 4], got {boxes.shape}."
        )
    objects = boxes.reshape(-1, 4) * np.array([height, width, height, width])
    if not len(objects):
        if not use_image:
            raise InvalidArgumentError(
                f"tf.{op} needs a bounding box, got none. Or pass use_image_if_no_bounding_boxes=True."
            )
        objects = np.array([[0, 0, height, width]])
    generator = np.random.default_rng(start.astype(np.uint32).tolist())
    shapes, areas = aspect_ratio_range or (0.75, 1.33), area_range or (0.05, 1.0)
    for _ in range(100 if max_attempts is None else max_attempts):
        crop = _random_box(generator, height, width, shapes, areas)
        if crop is not None and _covers(crop, objects, min_object_covered):
            break
    else:
        crop = (0, 0, height, width)
    top, left, bottom, right = crop
    box = np.array([[crop]], np.float32) / np.array([height, width, height, width], np.float32)
    return (
        HostTensor.of(np.array([top, left, 0], np.int32)),
        HostTensor.of(np.array([bottom - top, right - left, -1], np.int32)),
        HostTensor.of(box),
    )


def _random_box(
    generator: np.random.Generator, height: int, width: int, shapes: ArrayLike, areas: ArrayLike
) -> tuple[int, int, int, int] | None:
    """Returns top, left, bottom and right of a box of random shape, area and position, if it fits."""
    shape = generator.uniform(*shapes)
    min_area, max_area = (area * height * width for area in areas)
    shortest, tallest = (round((area / shape) ** 0.5) for area in (min_area, max_area))
    tallest = min(tallest, int((width + 0.5 - 1e-7) / shape), height)
    rows = int(generator.integers(min(shortest, tallest), tallest + 1))
    columns = round(rows * shape)
    if rows * columns < min_area:
        rows += 1
    elif rows * columns > max_area:
        rows -= 1
    columns = round(rows * shape)
    if not (min_area <= rows * columns <= max_area and 0 < rows <= height and 0 < columns <= width):
        return None
    top = int(generator.integers(height - rows + 1))
    left = int(generator.integers(width - columns + 1))
    return top, left, top + rows, left + columns


def _covers(crop: tuple[int, int, int, int], objects: Tensor, min_covered: float) -> bool:
    low, high = np.maximum(objects[:, :2], crop[:2]), np.minimum(objects[:, 2:], crop[2:])
    common = np.prod(np.maximum(high - low, 0), 1)
    areas = np.prod(objects[:, 2:] - objects[:, :2], 1)
    return bool(np.any(common[areas >= 1] >= min_covered * areas[areas >= 1]))
