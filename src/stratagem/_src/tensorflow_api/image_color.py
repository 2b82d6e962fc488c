"""``tf.image``: dtype conversion, brightness, contrast, hue, saturation and color spaces."""

from __future__ import annotations

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, ScalarLike, Tensor
from stratagem._src.tensorflow_api import dtypes
from stratagem._src.tensorflow_api.conversion import as_tensor, canonical_dtype, concrete, is_float
from stratagem._src.tensorflow_api.image_arrays import as_image, as_result

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "convert_image_dtype",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "per_image_standardization",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "yiq_to_rgb",
    "yuv_to_rgb",
]


def convert_image_dtype(
    image: ArrayLike, dtype: DTypeLike, saturate: bool = False, name: str | None = None
) -> Tensor:
    """Converts an image to another dtype and scales it: floats to [0, 1], integers to their full range.

    >>> import numpy as np
    >>> convert_image_dtype(np.array([0, 255], np.uint8), "float32").tolist()
    [0.0, 1.0]

    Args:
        image: An array of any shape.
        dtype: The new dtype.
        saturate: Whether to clip values to the range of the dtype.
        name: Ignored.
    """
    xp, array = as_image("convert_image_dtype", image)
    wanted = dtypes.as_dtype(dtype) if xp is np else canonical_dtype(dtype)
    for one in (array.dtype, wanted):
        if not is_float(one) and one.kind not in "iu":
            raise InvalidArgumentError(
                f"tf.image.convert_image_dtype needs floats or integers, got {one.name}."
            )
    if wanted == array.dtype:
        return as_result(array)
    if is_float(array.dtype) and is_float(wanted):
        return as_result(array.astype(wanted))
    if is_float(wanted):
        return as_result(array.astype(wanted) * wanted.type(1.0 / np.iinfo(array.dtype).max))
    if is_float(array.dtype):
        scaled = array * array.dtype.type(np.iinfo(wanted).max + 0.5)
        return as_result(_cast(xp, scaled, wanted, saturate))
    largest, new_largest = int(np.iinfo(array.dtype).max), int(np.iinfo(wanted).max)
    if largest > new_largest:
        scaled = array // array.dtype.type((largest + 1) // (new_largest + 1))
        return as_result(_cast(xp, scaled, wanted, saturate))
    factor = wanted.type((new_largest + 1) // (largest + 1))
    return as_result(_cast(xp, array, wanted, saturate) * factor)


def _cast(xp: ModuleType, array: Tensor, wanted: DTypeLike, saturate: bool) -> Tensor:
    if xp is jnp:
        return dtypes.saturate_cast(array, wanted) if saturate else dtypes.cast(array, wanted)
    if saturate:
        limits = np.iinfo(wanted)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.clip(array.astype(np.float64), limits.min, limits.max)).astype(
                wanted
            )
    with np.errstate(invalid="ignore"):
        return array.astype(wanted)


def _as_floats(op: str, image: ArrayLike) -> tuple[ModuleType, Tensor, DTypeLike]:
    """Returns the module, the image as floats, and the dtype of the result."""
    xp, array = as_image(op, image)
    if array.dtype in (np.float16, np.float32):
        return xp, array, array.dtype
    floats = convert_image_dtype(array, np.float32)
    return xp, (floats.view(np.ndarray) if xp is np else floats), array.dtype


def _floats(
    op: str, image: ArrayLike, *, channels: int | None = None
) -> tuple[ModuleType, Tensor, DTypeLike]:
    """Returns the result of ``_as_floats``, and checks dimensions and channels."""
    xp, floats, dtype = _as_floats(op, image)
    if floats.ndim < 3:
        raise InvalidArgumentError(
            f"tf.image.{op} needs height, width and channels, got shape {floats.shape}."
        )
    if channels is not None and floats.shape[-1] != channels:
        raise InvalidArgumentError(
            f"tf.image.{op} needs {channels} channels, got shape {floats.shape}."
        )
    return xp, floats, dtype


def _number(xp: ModuleType, value: ScalarLike, dtype: DTypeLike) -> Tensor:
    return np.asarray(value, dtype)[()] if xp is np else as_tensor(value).astype(dtype)


def _module(xp: ModuleType, value: ScalarLike) -> ModuleType:
    """Returns ``jax.numpy`` if a factor is traced, such as a random one in compiled code."""
    return jnp if isinstance(value, jax.Array) and concrete(value) is None else xp


def adjust_brightness(image: ArrayLike, delta: ScalarLike) -> Tensor:
    """Adds ``delta`` to an image, on the float scale.

    >>> adjust_brightness([[[0.25]]], 0.5)
    Array([[[0.75]]], dtype=float32)
    """
    xp, floats, dtype = _as_floats("adjust_brightness", image)
    adjusted = floats + _number(_module(xp, delta), delta, floats.dtype)
    return convert_image_dtype(as_result(adjusted), dtype, saturate=True)


def adjust_contrast(images: ArrayLike, contrast_factor: ScalarLike) -> Tensor:
    """Scales the distance from the mean of each channel by ``contrast_factor``.

    >>> adjust_contrast([[[0.0], [1.0]]], 0.5)[0, :, 0]
    Array([0.25, 0.75], dtype=float32)
    """
    xp, floats, dtype = _floats("adjust_contrast", images)
    factor = _number(_module(xp, contrast_factor), contrast_factor, np.float32)
    exact = floats.astype(np.float32)
    mean = exact.mean((-3, -2), keepdims=True)
    adjusted = ((exact - mean) * factor + mean).astype(floats.dtype)
    return convert_image_dtype(as_result(adjusted), dtype, saturate=True)


def adjust_gamma(image: ArrayLike, gamma: ScalarLike = 1, gain: ScalarLike = 1) -> Tensor:
    """Returns ``gain * image**gamma``, on the float scale.

    >>> adjust_gamma([[[0.5]]], 2)
    Array([[[0.25]]], dtype=float32)
    """
    value = concrete(gamma)
    if value is not None and value < 0:
        raise InvalidArgumentError(
            f"gamma of tf.image.adjust_gamma must not be negative, got {gamma}."
        )
    xp, floats, dtype = _as_floats("adjust_gamma", image)
    xp = _module(_module(xp, gamma), gain)
    adjusted = _number(xp, gain, floats.dtype) * floats ** _number(xp, gamma, floats.dtype)
    return convert_image_dtype(as_result(adjusted), dtype, saturate=True)


def adjust_hue(image: ArrayLike, delta: ScalarLike, name: str | None = None) -> Tensor:
    """Rotates the hue of an RGB image by ``delta`` of a full turn.

    >>> adjust_hue([[[1.0, 0.0, 0.0]]], 0.5).round(3)
    Array([[[0., 1., 1.]]], dtype=float32)
    """
    value = concrete(delta)
    if value is not None and not -1 <= value <= 1:
        raise InvalidArgumentError(f"delta of tf.image.adjust_hue must be in [-1, 1], got {delta}.")
    xp, floats, dtype = _floats("adjust_hue", image, channels=3)
    xp = _module(xp, delta)
    exact = floats.astype(np.float32)
    hue = xp.mod(_hue(xp, exact) + _number(xp, delta, np.float32), np.float32(1))
    low, high = exact.min(-1, keepdims=True), exact.max(-1, keepdims=True)
    adjusted = (low + (high - low) * _pure_color(xp, hue)).astype(floats.dtype)
    return convert_image_dtype(as_result(adjusted), dtype)


def adjust_saturation(
    image: ArrayLike, saturation_factor: ScalarLike, name: str | None = None
) -> Tensor:
    """Scales the saturation of an RGB image, clipped to 1.

    >>> adjust_saturation([[[1.0, 0.5, 0.5]]], 0.0)
    Array([[[1., 1., 1.]]], dtype=float32)
    """
    xp, floats, dtype = _floats("adjust_saturation", image, channels=3)
    xp = _module(xp, saturation_factor)
    hue, saturation, value = _hsv(xp, floats.astype(np.float32))
    factor = _number(xp, saturation_factor, np.float32)
    adjusted = _rgb(xp, hue, xp.clip(saturation * factor, 0, 1), value).astype(floats.dtype)
    return convert_image_dtype(as_result(adjusted), dtype)


def per_image_standardization(image: ArrayLike) -> Tensor:
    """Scales images to mean 0 and variance 1, as ``float32``; uniform images become zeros.

    >>> per_image_standardization([[[1.0], [3.0]]])[0, :, 0]
    Array([-1.,  1.], dtype=float32)
    """
    xp, array = as_image("per_image_standardization", image)
    if array.ndim < 3:
        raise InvalidArgumentError(
            "tf.image.per_image_standardization needs height, width and channels, got shape "
            f"{array.shape}."
        )
    floats = array.astype(np.float32)
    axes = (-3, -2, -1)
    mean = floats.mean(axes, keepdims=True)
    deviation = xp.sqrt(((floats - mean) ** 2).mean(axes, keepdims=True))
    min_deviation = np.float32(1 / np.sqrt(max(int(np.prod(array.shape[-3:])), 1)))
    return as_result((floats - mean) / xp.maximum(deviation, min_deviation))


def rgb_to_grayscale(images: ArrayLike, name: str | None = None) -> Tensor:
    """Converts RGB images to grayscale.

    >>> rgb_to_grayscale([[[1.0, 1.0, 1.0]]]).shape
    (1, 1, 1)
    """
    xp, array = as_image("rgb_to_grayscale", images)
    _check_channels("rgb_to_grayscale", array, 3)
    floats = convert_image_dtype(array, np.float32)
    weights = np.array([[0.2989], [0.5870], [0.1140]], np.float32)
    return convert_image_dtype(as_result(_product(xp, floats, weights)), array.dtype)


def grayscale_to_rgb(images: ArrayLike, name: str | None = None) -> Tensor:
    """Converts grayscale images to RGB.

    >>> grayscale_to_rgb([[[0.5]]])
    Array([[[0.5, 0.5, 0.5]]], dtype=float32)
    """
    xp, array = as_image("grayscale_to_rgb", images)
    _check_channels("grayscale_to_rgb", array, 1)
    return as_result(xp.repeat(array, 3, -1))


def rgb_to_hsv(images: ArrayLike, name: str | None = None) -> Tensor:
    """Converts RGB images to hue, saturation and value, each in [0, 1].

    >>> rgb_to_hsv([[[1.0, 0.0, 0.0]]])
    Array([[[0., 1., 1.]]], dtype=float32)
    """
    xp, array = _of_floats("rgb_to_hsv", images)
    return as_result(xp.concatenate(_hsv(xp, array), -1))


def hsv_to_rgb(images: ArrayLike, name: str | None = None) -> Tensor:
    """Converts HSV images to RGB.

    >>> hsv_to_rgb([[[0.0, 1.0, 1.0]]])
    Array([[[1., 0., 0.]]], dtype=float32)
    """
    xp, array = _of_floats("hsv_to_rgb", images)
    return as_result(_rgb(xp, array[..., 0:1], array[..., 1:2], array[..., 2:3]))


def _of_floats(op: str, images: ArrayLike) -> tuple[ModuleType, Tensor]:
    xp, array = as_image(op, images)
    _check_channels(op, array, 3)
    if not is_float(array.dtype):
        raise InvalidArgumentError(
            f"tf.image.{op} needs floating-point numbers, got {array.dtype.name}. Convert them: "
            "tf.image.convert_image_dtype(images, tf.float32)."
        )
    return xp, array


def _check_channels(op: str, array: Tensor, count: int) -> None:
    if array.ndim < 1 or array.shape[-1] != count:
        raise InvalidArgumentError(
            f"The last dimension of tf.image.{op} must be {count}, got shape {array.shape}."
        )


def _hue(xp: ModuleType, rgb: Tensor) -> Tensor:
    red, green, blue = rgb[..., 0:1], rgb[..., 1:2], rgb[..., 2:3]
    high = rgb.max(-1, keepdims=True)
    span = high - rgb.min(-1, keepdims=True)
    unit = xp.ones_like(span) / (6 * xp.where(span > 0, span, xp.ones_like(span)))
    hue = xp.where(
        red == high,
        unit * (green - blue),
        xp.where(
            green == high,
            unit * (blue - red) + rgb.dtype.type(2 / 6),
            unit * (red - green) + rgb.dtype.type(4 / 6),
        ),
    )
    hue = xp.where(span > 0, hue, xp.zeros_like(hue))
    return xp.where(hue < 0, hue + 1, hue)


def _hsv(xp: ModuleType, rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    high = rgb.max(-1, keepdims=True)
    span = high - rgb.min(-1, keepdims=True)
    one, zero = xp.ones_like(high), xp.zeros_like(high)
    return _hue(xp, rgb), xp.where(high > 0, span / xp.where(high > 0, high, one), zero), high


def _pure_color(xp: ModuleType, hue: Tensor) -> Tensor:
    sixths = hue * 6
    red = xp.abs(sixths - 3) - 1
    return xp.clip(xp.concatenate([red, 2 - xp.abs(sixths - 2), 2 - xp.abs(sixths - 4)], -1), 0, 1)


def _rgb(xp: ModuleType, hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    return (1 - saturation + saturation * _pure_color(xp, hue)) * value


_YIQ: list[list[float]] = [
    [0.299, 0.59590059, 0.2115],
    [0.587, -0.27455667, -0.52273617],
    [0.114, -0.32134392, 0.31119955],
]
_FROM_YIQ: list[list[float]] = [
    [1, 1, 1],
    [0.95598634, -0.27201283, -1.10674021],
    [0.6208248, -0.64720424, 1.70423049],
]
_YUV = [
    [0.299, -0.14714119, 0.61497538],
    [0.587, -0.28886916, -0.51496512],
    [0.114, 0.43601035, -0.10001026],
]
_FROM_YUV: list[list[float]] = [
    [1, 1, 1],
    [0, -0.394642334, 2.03206185],
    [1.13988303, -0.58062185, 0],
]


def rgb_to_yiq(images: ArrayLike) -> Tensor:
    """Converts RGB images to YIQ.

    >>> rgb_to_yiq([[[1.0, 1.0, 1.0]]]).shape
    (1, 1, 3)
    """
    return _in_space("rgb_to_yiq", images, _YIQ)


def yiq_to_rgb(images: ArrayLike) -> Tensor:
    """Converts YIQ images to RGB.

    >>> yiq_to_rgb([[[1.0, 0.0, 0.0]]])
    Array([[[1., 1., 1.]]], dtype=float32)
    """
    return _in_space("yiq_to_rgb", images, _FROM_YIQ)


def rgb_to_yuv(images: ArrayLike) -> Tensor:
    """Converts RGB images to YUV.

    >>> rgb_to_yuv([[[1.0, 1.0, 1.0]]]).shape
    (1, 1, 3)
    """
    return _in_space("rgb_to_yuv", images, _YUV)


def yuv_to_rgb(images: ArrayLike) -> Tensor:
    """Converts YUV images to RGB.

    >>> yuv_to_rgb([[[1.0, 0.0, 0.0]]])
    Array([[[1., 1., 1.]]], dtype=float32)
    """
    return _in_space("yuv_to_rgb", images, _FROM_YUV)


def _in_space(op: str, images: ArrayLike, matrix: list[list[float]]) -> Tensor:
    xp, array = _of_floats(op, images)
    return as_result(_product(xp, array, np.array(matrix, array.dtype)))


def _product(xp: ModuleType, array: Tensor, matrix: Tensor) -> Tensor:
    if xp is np:
        return np.asarray(array) @ matrix
    return jnp.matmul(array, matrix, precision=jax.lax.Precision.HIGHEST)
