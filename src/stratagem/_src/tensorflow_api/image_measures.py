"""``tf.image``: similarity measures, gradients and edges of images."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, ScalarLike, Tensor
from stratagem._src.tensorflow_api.conversion import as_tensor
from stratagem._src.tensorflow_api.image_arrays import as_image
from stratagem._src.tensorflow_api.image_color import convert_image_dtype

__all__ = ["image_gradients", "psnr", "sobel_edges", "ssim", "ssim_multiscale", "total_variation"]


def total_variation(images: ArrayLike, name: str | None = None) -> jax.Array:
    """Returns the total variation of each image: the sum of differences between neighboring pixels.

    >>> total_variation([[[1.0], [3.0]]])
    Array(2., dtype=float32)
    """
    array = as_tensor(as_image("total_variation", images, ranks=(3, 4))[1])
    rows, columns = jnp.diff(array, axis=-3), jnp.diff(array, axis=-2)
    axes = (-3, -2, -1)
    return jnp.abs(rows).sum(axes, dtype=array.dtype) + jnp.abs(columns).sum(
        axes, dtype=array.dtype
    )


def image_gradients(image: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Returns the differences to the pixel below and to the pixel on the right; 0 at the edge.

    >>> image_gradients([[[[1.0], [3.0]]]])[1][0, 0, :, 0]
    Array([2., 0.], dtype=float32)
    """
    array = as_tensor(as_image("image_gradients", image, ranks=(4,))[1])
    down = jnp.pad(jnp.diff(array, axis=1), [(0, 0), (0, 1), (0, 0), (0, 0)])
    right = jnp.pad(jnp.diff(array, axis=2), [(0, 0), (0, 0), (0, 1), (0, 0)])
    return down, right


def sobel_edges(image: ArrayLike) -> jax.Array:
    """Returns the Sobel edge maps of each channel: vertical and horizontal in the last dimension.

    >>> sobel_edges([[[[0.0], [1.0]], [[0.0], [1.0]]]]).shape
    (1, 2, 2, 1, 2)
    """
    array = as_tensor(as_image("sobel_edges", image, ranks=(4,))[1])
    padded = jnp.pad(array, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    height, width = array.shape[1:3]
    part = {
        (row, column): padded[:, row : row + height, column : column + width]
        for row in range(3)
        for column in range(3)
    }
    vertical = sum(part[2, c] * w - part[0, c] * w for c, w in enumerate((1, 2, 1)))
    horizontal = sum(part[r, 2] * w - part[r, 0] * w for r, w in enumerate((1, 2, 1)))
    return jnp.stack([jnp.asarray(vertical), jnp.asarray(horizontal)], -1)


def _floats(
    op: str, first: ArrayLike, second: ArrayLike, max_val: ScalarLike
) -> tuple[jax.Array, jax.Array, Tensor]:
    one, other = as_tensor(as_image(op, first)[1]), as_tensor(as_image(op, second)[1])
    if one.ndim < 3 or other.ndim < 3 or one.shape[-3:] != other.shape[-3:]:
        raise InvalidArgumentError(
            f"tf.image.{op} needs images of equal height, width and number of channels, got shapes "
            f"{one.shape} and {other.shape}."
        )
    largest = convert_image_dtype(as_tensor(max_val).astype(one.dtype), np.float32)
    return convert_image_dtype(one, np.float32), convert_image_dtype(other, np.float32), largest


def psnr(a: ArrayLike, b: ArrayLike, max_val: ScalarLike, name: str | None = None) -> jax.Array:
    """Returns the peak signal-to-noise ratio of each pair of images, in decibels.

    >>> psnr([[[0.0]]], [[[0.1]]], 1.0).round(2)
    Array(20., dtype=float32)
    """
    one, other, largest = _floats("psnr", a, b, max_val)
    error = jnp.mean(jnp.square(one - other), (-3, -2, -1))
    return 20 * jnp.log(largest) / jnp.log(10.0) - np.float32(10 / np.log(10)) * jnp.log(error)


def ssim(
    img1: ArrayLike,
    img2: ArrayLike,
    max_val: ScalarLike,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    return_index_map: bool = False,
) -> jax.Array:
    """Returns the structural similarity (SSIM) of each pair of images; 1 for equal images.

    >>> image = as_tensor(np.ones((12, 12, 1), np.float32))
    >>> ssim(image, image, 1.0)
    Array(1., dtype=float32)

    Args:
        img1: Images.
        img2: Images of the same height, width and channels.
        max_val: The dynamic range of the values.
        filter_size: Height and width of the Gaussian window.
        filter_sigma: The standard deviation of the window.
        k1: The stabilizing constant of the luminance.
        k2: The stabilizing constant of the contrast.
        return_index_map: Whether to return the value of each window instead of the mean.
    """
    one, other, largest = _floats("ssim", img1, img2, max_val)
    _check_size("ssim", one, filter_size)
    similarity, _ = _similarity(one, other, largest, filter_size, filter_sigma, k1, k2)
    if not return_index_map:
        similarity = jnp.mean(similarity, (-3, -2))
    return jnp.mean(similarity, -1)


def ssim_multiscale(
    img1: ArrayLike,
    img2: ArrayLike,
    max_val: ScalarLike,
    power_factors: Sequence[float] = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333),
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> jax.Array:
    """Returns the multi-scale structural similarity (MS-SSIM) of each pair of images; 1 for equal images.

    >>> image = as_tensor(np.ones((24, 24, 1), np.float32))
    >>> ssim_multiscale(image, image, 1.0, power_factors=[0.5, 0.5])
    Array(1., dtype=float32)

    Args:
        img1: Images.
        img2: Images of the same height, width and channels.
        max_val: The dynamic range of the values.
        power_factors: The weight of each scale. A scale has half the height and width of the one before.
        filter_size: Height and width of the Gaussian window.
        filter_sigma: The standard deviation of the window.
        k1: The stabilizing constant of the luminance.
        k2: The stabilizing constant of the contrast.
    """
    one, other, largest = _floats("ssim_multiscale", img1, img2, max_val)
    one, other = jnp.broadcast_arrays(one, other)
    product = None
    for scale, power in enumerate(power_factors):
        if scale:
            one, other = _half(one), _half(other)
        _check_size("ssim_multiscale", one, filter_size)
        similarity, contrast = _similarity(one, other, largest, filter_size, filter_sigma, k1, k2)
        # The luminance counts at the smallest scale only.
        is_last = scale == len(power_factors) - 1
        of_channels = jnp.mean(similarity if is_last else contrast, (-3, -2))
        # Roots of negative numbers would not be real.
        factor = jax.nn.relu(of_channels) ** power
        product = factor if product is None else product * factor
    if product is None:
        raise InvalidArgumentError("tf.image.ssim_multiscale needs power_factors, got none.")
    return jnp.mean(product, -1)


def _check_size(op: str, image: jax.Array, filter_size: int) -> None:
    if min(image.shape[-3:-1]) < filter_size:
        raise InvalidArgumentError(
            f"tf.image.{op} needs images of at least {filter_size} pixels, its filter_size, at every "
            f"scale, got shape {image.shape}."
        )


def _half(image: jax.Array) -> jax.Array:
    """Returns the means of squares of 2 by 2 pixels. The last row or column counts twice if it is odd."""
    height, width = image.shape[-3:-1]
    edges = [(0, 0)] * (image.ndim - 3) + [(0, height % 2), (0, width % 2), (0, 0)]
    even = jnp.pad(image, edges, mode="symmetric")
    rows = (even[..., 0::2, :, :] + even[..., 1::2, :, :]) / 2
    return (rows[..., 0::2, :] + rows[..., 1::2, :]) / 2


def _similarity(
    one: jax.Array,
    other: jax.Array,
    largest: Tensor,
    filter_size: int,
    filter_sigma: float,
    k1: float,
    k2: float,
) -> tuple[jax.Array, jax.Array]:
    """Returns the similarity of each window and channel, and its factor of contrast and structure."""
    steps = np.arange(filter_size, dtype=np.float32) - np.float32((filter_size - 1) / 2)
    window = np.exp(steps**2 * np.float32(-0.5 / filter_sigma**2))
    window = (window / window.sum()).astype(np.float32)

    def smooth(x: jax.Array) -> jax.Array:
        for axis in (-3, -2):
            places = range(x.shape[axis] - filter_size + 1)
            x = sum(
                jax.lax.slice_in_dim(x, k, k + len(places), axis=axis % x.ndim) * window[k]
                for k in range(filter_size)
            )
        return x

    c1, c2 = (k1 * largest) ** 2, (k2 * largest) ** 2
    mean_one, mean_other = smooth(one), smooth(other)
    both = mean_one * mean_other * 2
    squares = jnp.square(mean_one) + jnp.square(mean_other)
    luminance = (both + c1) / (squares + c1)
    products = smooth(one * other) * 2
    powers = smooth(jnp.square(one) + jnp.square(other))
    contrast = (products - both + c2) / (powers - squares + c2)
    return luminance * contrast, contrast
