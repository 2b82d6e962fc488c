"""``tf.sparse``: converts the values of a ``VarLenFeature`` to a dense array."""

from __future__ import annotations

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, ScalarLike
from stratagem._src.data.tfrecord.parse import SparseValues
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = ["to_dense"]


def to_dense(
    sp_input: ArrayLike,
    default_value: ScalarLike = None,
    validate_indices: bool = True,
    name: str | None = None,
) -> HostTensor:
    """Converts the values of a ``VarLenFeature`` to a dense array, padded with ``default_value``.

    Differs from TensorFlow: ``parse_single_example`` returns a dense vector for a ``VarLenFeature``, which
    this function returns unchanged. Other sparse arrays are not supported.

    >>> import numpy as np
    >>> from stratagem.io import SparseValues
    >>> to_dense(SparseValues(np.array([[0, 1]]), np.array([7]), np.array([1, 2]))).tolist()
    [[0, 7]]

    Args:
        sp_input: A result of ``parse_example`` or ``parse_single_example``.
        default_value: The value of missing elements; default: 0 or the empty string.
        validate_indices: Ignored: parsed examples have valid indices.
        name: Ignored.
    """
    if isinstance(sp_input, SparseValues):
        if isinstance(default_value, str):
            default_value = default_value.encode()
        return HostTensor.of(sp_input.to_dense(default_value))
    if isinstance(sp_input, np.ndarray) and sp_input.ndim == 1:
        return HostTensor.of(sp_input)
    raise InvalidArgumentError(
        "tf.sparse.to_dense takes the result of parse_example for a VarLenFeature, got "
        f"{type(sp_input).__name__}. For other sparse arrays use jax.experimental.sparse."
    )
