"""Where an image is computed: NumPy's arrays on the host, others by JAX.

Images of an input pipeline have many sizes, and JAX compiles each operation again for each of them. So an
image that is a NumPy array, as ``Dataset.map`` and the decoders give it, stays one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, Tensor
from stratagem._src.tensorflow_api.conversion import tensor
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = ["closed", "opened", "opened_batch"]


def opened(op: str, image: ArrayLike, *, ranks: tuple[int, ...] = ()) -> tuple[ModuleType, Tensor]:
    """Returns ``numpy`` or ``jax.numpy``, and the image as an array of it.

    Args:
        op: The function's name, for messages.
        image: An array, or nested lists.
        ranks: How many dimensions it may have; default: any number.
    """
    if isinstance(image, np.ndarray) and not is_host_only(image.dtype):
        xp: Any = np
        array: Any = image.view(np.ndarray)
    else:
        xp, array = jnp, tensor(image)
    if is_host_only(array.dtype):
        raise InvalidArgumentError(
            f"tf.image.{op} needs an image of numbers, got strings. Decode them: tf.io.decode_image."
        )
    if ranks and array.ndim not in ranks:
        raise InvalidArgumentError(
            f"tf.image.{op} needs an array of {' or '.join(map(str, ranks))} dimensions (height, width, "
            f"channels, and a batch before them), got the shape {array.shape}."
        )
    return xp, array


def opened_batch(op: str, image: ArrayLike) -> tuple[ModuleType, Tensor, bool]:
    """Returns the module, the images as a batch, and whether they were one."""
    xp, array = opened(op, image, ranks=(3, 4))
    if 0 in array.shape[-3:]:
        raise InvalidArgumentError(
            f"tf.image.{op} needs at least one pixel and channel, got the shape {array.shape}."
        )
    return xp, array if array.ndim == 4 else array[None], array.ndim == 4


def closed(array: Tensor, *, is_batch: bool = True) -> Tensor:
    """Returns what a function made, with ``numpy()`` if it is NumPy's; one image if it was one."""
    array = array if is_batch else array[0]
    return HostTensor.of(array) if isinstance(array, (np.ndarray, np.generic)) else array
