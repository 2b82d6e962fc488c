"""Chooses NumPy or JAX for an image: NumPy arrays stay on the host, other arrays are JAX's.

Images of an input pipeline have many sizes, and JAX compiles each operation for each size. So a NumPy
array, which ``Dataset.map`` and the decoders produce, stays one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.tensorflow_api.conversion import as_tensor
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = ["as_image", "as_image_batch", "as_result"]


def as_image(
    op: str, image: ArrayLike, *, ranks: tuple[int, ...] = ()
) -> tuple[ModuleType, Tensor]:
    """Returns ``numpy`` or ``jax.numpy``, and the image as an array of it.

    Args:
        op: The function's name, for messages.
        image: An array, or nested lists.
        ranks: The allowed numbers of dimensions; default: any.
    """
    if isinstance(image, np.ndarray) and not is_host_only(image.dtype):
        xp: Any = np
        array: Any = image.view(np.ndarray)
    else:
        xp, array = jnp, as_tensor(image)
    if is_host_only(array.dtype):
        raise InvalidArgumentError(
            f"tf.image.{op} needs an image of numbers, got strings. Decode them with tf.io.decode_image."
        )
    if ranks and array.ndim not in ranks:
        raise InvalidArgumentError(
            f"tf.image.{op} needs an array of {' or '.join(map(str, ranks))} dimensions (height, width, "
            f"channels, and a batch before them), got shape {array.shape}."
        )
    return xp, array


def as_image_batch(op: str, image: ArrayLike) -> tuple[ModuleType, Tensor, bool]:
    """Returns the module, the images as a batch, and whether the argument was a batch."""
    xp, array = as_image(op, image, ranks=(3, 4))
    if 0 in array.shape[-3:]:
        raise InvalidArgumentError(
            f"tf.image.{op} needs at least one pixel and channel, got shape {array.shape}."
        )
    return xp, array if array.ndim == 4 else array[None], array.ndim == 4


def as_result(array: Tensor, *, is_batch: bool = True) -> Tensor:
    """Returns the result of an image function, as a ``HostTensor`` if it is a NumPy array.

    Args:
        array: A batch of images.
        is_batch: Whether the function's argument was a batch; else the result is the only image.
    """
    array = array if is_batch else array[0]
    return HostTensor.of(array) if isinstance(array, (np.ndarray, np.generic)) else array
