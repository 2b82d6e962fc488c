"""``tf.sparse``: what a ``VarLenFeature`` gives, as a dense array."""

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
    """Returns the values of a ``VarLenFeature`` as one array, filled up with ``default_value``.

    Differs from TensorFlow: ``parse_single_example`` gives a dense vector for a ``VarLenFeature``, which is
    returned as it is. There are no other sparse arrays.

    >>> import numpy as np
    >>> from stratagem.io import SparseValues
    >>> to_dense(SparseValues(np.array([[0, 1]]), np.array([7]), np.array([1, 2]))).tolist()
    [[0, 7]]

    Args:
        sp_input: What ``parse_example`` or ``parse_single_example`` gave.
        default_value: What stands where there is no value; 0 or the empty string if it is ``None``.
        validate_indices: Ignored; the indices are those of a parsed example.
        name: Ignored.
    """
    if isinstance(sp_input, SparseValues):
        if isinstance(default_value, str):
            default_value = default_value.encode()
        return HostTensor.of(sp_input.to_dense(default_value))
    if isinstance(sp_input, np.ndarray) and sp_input.ndim == 1:
        return HostTensor.of(sp_input)
    raise InvalidArgumentError(
        "tf.sparse.to_dense takes what parse_example gives for a VarLenFeature, got "
        f"{type(sp_input).__name__}. Other sparse arrays are those of jax.experimental.sparse."
    )
