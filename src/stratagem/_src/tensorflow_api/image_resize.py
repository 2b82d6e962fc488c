"""``tf.image.resize`` and its methods, and resizing with padding or cropping."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, IntegerLike, ShapeLike, Tensor
from stratagem._src.tensorflow_api.conversion import integer, integers
from stratagem._src.tensorflow_api.image_arrays import as_image_batch, as_result
from stratagem._src.tensorflow_api.image_geometry import crop_to_bounding_box, pad_to_bounding_box

__all__ = ["ResizeMethod", "resize", "resize_with_crop_or_pad", "resize_with_pad"]

_Weights = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


class ResizeMethod:
    """The interpolation methods of ``tf.image.resize``.

    >>> ResizeMethod.BICUBIC
    'bicubic'
    """

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


def resize(
    images: ArrayLike,
    size: ShapeLike,
    method: str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Tensor:
    """Resizes images. The result is ``float32``; ``"nearest"`` keeps the dtype.

    JAX equivalent: ``jax.image.resize``, whose methods have other kernels.

    >>> resize([[[1.0], [2.0]]], [1, 4])
    Array([[[1.  ],
            [1.25],
            [1.75],
            [2.  ]]], dtype=float32)

    Args:
        images: An image, or a batch of them.
        size: Height and width, which must be static.
        method: One of ``tf.image.ResizeMethod``.
        preserve_aspect_ratio: Whether to keep the aspect ratio, at the largest size within ``size``.
        antialias: Whether downsampling uses all pixels; ignored by ``"nearest"`` and ``"area"``.
        name: Ignored.
    """
    xp, batch, is_batch = as_image_batch("resize", images)
    wanted = integers("image.resize", "size", size)
    if len(wanted) != 2:
        raise InvalidArgumentError(
            f"size of tf.image.resize must be height and width, got {size!r}."
        )
    if preserve_aspect_ratio:
        wanted = _within(batch.shape[1:3], wanted)
    if min(wanted) <= 0:
        raise InvalidArgumentError(f"size of tf.image.resize must be positive, got {wanted}.")
    if method == ResizeMethod.NEAREST_NEIGHBOR:
        rows, columns = (_nearest(*sizes) for sizes in zip(batch.shape[1:3], wanted, strict=True))
        return as_result(batch[:, rows][:, :, columns], is_batch=is_batch)
    if batch.dtype == np.bool_ or xp.issubdtype(batch.dtype, np.complexfloating):
        raise InvalidArgumentError(f"tf.image.resize needs real numbers, got {batch.dtype.name}.")
    result = batch.astype(np.float32)
    for axis, new in zip((1, 2), wanted, strict=True):
        result = _along(result, axis, _weights(method, bool(antialias), result.shape[axis], new))
    return as_result(result, is_batch=is_batch)


def resize_with_pad(
    image: ArrayLike,
    target_height: IntegerLike,
    target_width: IntegerLike,
    method: str = ResizeMethod.BILINEAR,
    antialias: bool = False,
) -> Tensor:
    """Resizes images with their aspect ratio, and pads them with zeros to a size.

    >>> resize_with_pad([[[1.0], [1.0]]], 2, 2).shape
    (2, 2, 1)
    """
    _, batch, is_batch = as_image_batch("resize_with_pad", image)
    target = _targets("resize_with_pad", target_height, target_width)
    new, padding = [], []
    f32 = np.float32
    ratio = max(f32(old) / f32(size) for old, size in zip(batch.shape[1:3], target, strict=True))
    for old, size in zip(batch.shape[1:3], target, strict=True):
        exact = f32(old) / ratio
        new.append(int(np.floor(exact)))
        padding.append(max(0, int(np.floor((f32(size) - exact) / f32(2)))))
    resized = resize(as_result(batch), new, method, antialias=antialias)
    return as_result(
        pad_to_bounding_box(resized, padding[0], padding[1], *target), is_batch=is_batch
    )


def resize_with_crop_or_pad(
    image: ArrayLike, target_height: IntegerLike, target_width: IntegerLike
) -> Tensor:
    """Crops or pads images at the center to a size.

    >>> resize_with_crop_or_pad([[[1.0], [2.0]]], 1, 4)[0, :, 0]
    Array([0., 1., 2., 0.], dtype=float32)
    """
    _, batch, is_batch = as_image_batch("resize_with_crop_or_pad", image)
    target = _targets("resize_with_crop_or_pad", target_height, target_width)
    sizes = list(zip(batch.shape[1:3], target, strict=True))
    cropped = crop_to_bounding_box(
        as_result(batch),
        *(max(-(new - old) // 2, 0) for old, new in sizes),
        *(min(old, new) for old, new in sizes),
    )
    offsets = [max((new - old) // 2, 0) for old, new in sizes]
    padded = pad_to_bounding_box(cropped, offsets[0], offsets[1], *target)
    return as_result(padded, is_batch=is_batch)


def _targets(op: str, height: IntegerLike, width: IntegerLike) -> tuple[int, int]:
    target = (
        integer(f"image.{op}", "target_height", height),
        integer(f"image.{op}", "target_width", width),
    )
    if min(target) <= 0:
        raise InvalidArgumentError(
            f"The target size of tf.image.{op} must be positive, got {target}."
        )
    return target


def _within(old: ShapeLike, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the largest size within ``wanted`` that has the aspect ratio of ``old``."""
    f32 = np.float32  # as in TensorFlow: rounding depends on it
    scale = min(f32(new) / f32(size) for new, size in zip(wanted, old, strict=True))
    return tuple(int(np.round(scale * f32(size))) for size in old)


def _along(images: Tensor, axis: int, weights: _Weights) -> Tensor:
    """Returns weighted sums of pixels along an axis."""
    indices, factors = weights
    if isinstance(images, np.ndarray):
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        total = np.zeros((), np.float32)
        for place in range(indices.shape[1]):
            taken = np.take(images, indices[:, place], axis)
            total = total + taken * factors[:, place].reshape(shape)
        return total
    # A dense matrix: XLA multiplies faster than it gathers, and the gradient is a product again.
    matrix = np.zeros((indices.shape[0], images.shape[axis]), np.float32)
    np.add.at(matrix, (np.arange(indices.shape[0])[:, None], indices), factors)
    letters = "oh,bhwc->bowc" if axis == 1 else "ow,bhwc->bhoc"
    return jnp.einsum(letters, matrix, images, precision=jax.lax.Precision.HIGHEST)


@functools.lru_cache(512)
def _nearest(old: int, new: int) -> np.ndarray[Any, Any]:
    found = np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5)) * _scale(old, new))
    return np.clip(found.astype(np.int32), 0, old - 1)


def _scale(old: int, new: int) -> np.float32:
    return np.float32(old) / np.float32(new)


@functools.lru_cache(512)
def _weights(method: str, antialias: bool, old: int, new: int) -> _Weights:
    """Returns the indices of the old pixels, and their weights, for each new pixel."""
    if method == ResizeMethod.AREA:
        return _area(old, new)
    if method == ResizeMethod.BILINEAR and not antialias:
        return _linear(old, new)
    if method == ResizeMethod.BICUBIC and not antialias:
        return _cubic(old, new)
    if method not in _KERNELS:
        raise InvalidArgumentError(
            f"method of tf.image.resize must be one of tf.image.ResizeMethod, got {method!r}."
        )
    return _kernel(*_KERNELS[method], antialias, old, new)


def _centers(old: int, new: int) -> np.ndarray[Any, Any]:
    half = np.float32(0.5)
    return (np.arange(new, dtype=np.float32) + half) * _scale(old, new) - half


def _linear(old: int, new: int) -> _Weights:
    centers = _centers(old, new)
    low = np.floor(centers)
    part = centers - low
    indices = np.stack([np.maximum(low, 0), np.minimum(np.ceil(centers), old - 1)], 1)
    return indices.astype(np.int32), np.stack([1 - part, part], 1)


def _cubic(old: int, new: int) -> _Weights:
    """Returns weights of the Keys kernel, quantized to 1,024 positions as in TensorFlow."""
    centers = _centers(old, new)
    low = np.floor(centers)
    part = np.rint((centers - low) * np.float32(1024)) / np.float32(1024)
    indices = low[:, None].astype(np.int32) + np.arange(-1, 3, dtype=np.int32)
    distances = np.stack([1 + part, part, 1 - part, 2 - part], 1)
    factors = np.where((indices >= 0) & (indices < old), _keys_cubic(distances), 0)
    return np.clip(indices, 0, old - 1), _normalized(factors)


def _area(old: int, new: int) -> _Weights:
    scale = _scale(old, new)
    begin = np.arange(new, dtype=np.float32) * scale
    end = np.arange(1, new + 1, dtype=np.float32) * scale
    first = np.floor(begin).astype(np.int32)
    count = int((np.ceil(end).astype(np.int32) - first).max())
    indices = first[:, None] + np.arange(count, dtype=np.int32)
    covered = np.minimum(indices + 1, end[:, None]) - np.maximum(indices, begin[:, None])
    factors = np.clip(covered, 0, 1).astype(np.float32) / scale
    return np.clip(indices, 0, old - 1), factors


def _kernel(
    kernel: Callable[[Any], Any], radius: float, antialias: bool, old: int, new: int
) -> _Weights:
    inverse = np.float32(1) / (np.float32(new) / np.float32(old))
    width = max(inverse, np.float32(1)) if antialias else np.float32(1)
    centers = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * inverse
    first = np.ceil(centers - width * np.float32(radius) - np.float32(0.5)).astype(np.int32)
    last = np.floor(centers + width * np.float32(radius) - np.float32(0.5)).astype(np.int32)
    first, last = np.clip(first, 0, old - 1), np.clip(last, 0, old - 1)
    indices = first[:, None] + np.arange(int((last - first).max()) + 1, dtype=np.int32)
    distances = np.abs(indices + np.float32(0.5) - centers[:, None]) * (np.float32(1) / width)
    factors = np.where(indices <= last[:, None], kernel(distances), 0)
    return np.clip(indices, 0, old - 1), _normalized(factors)


def _normalized(factors: Tensor) -> np.ndarray[Any, Any]:
    total = factors.sum(1, keepdims=True)
    return (factors / np.where(np.abs(total) < 1e-35, 1, total)).astype(np.float32)


def _triangle(x: Tensor) -> Tensor:
    return np.maximum(1 - x, 0)


def _keys_cubic(x: Tensor) -> Tensor:
    near = ((1.5 * x - 2.5) * x) * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


def _mitchell_cubic(x: Tensor) -> Tensor:
    near = ((7 / 6 * x - 2) * x) * x + 8 / 9
    far = ((-7 / 18 * x + 2) * x - 10 / 3) * x + 16 / 9
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


def _gaussian(x: Tensor) -> Tensor:
    return np.where(
        x >= 1.5, 0, np.exp(-2 * x * x)
    )  # the standard deviation is a third of the radius


def _lanczos(x: Tensor, radius: float) -> Tensor:
    angle = math.pi * np.where(x <= 1e-3, 1, x)
    value = radius * np.sin(angle) * np.sin(angle / radius) / (angle * angle)
    return np.where(x >= radius, 0, np.where(x <= 1e-3, 1, value))


_KERNELS: dict[str, tuple[Callable[[Any], Any], float]] = {
    ResizeMethod.BILINEAR: (_triangle, 1.0),
    ResizeMethod.BICUBIC: (_keys_cubic, 2.0),
    ResizeMethod.MITCHELLCUBIC: (_mitchell_cubic, 2.0),
    ResizeMethod.GAUSSIAN: (_gaussian, 1.5),
    ResizeMethod.LANCZOS3: (functools.partial(_lanczos, radius=3.0), 3.0),
    ResizeMethod.LANCZOS5: (functools.partial(_lanczos, radius=5.0), 5.0),
}
