"""``HostTensor``: an array whose value is known while a function is traced, or that holds strings."""

from __future__ import annotations

from typing import Any, Self

import jax
import numpy as np

from stratagem._src.core.types import ArrayLike

__all__ = ["HostTensor", "Tensor", "is_size"]


class HostTensor(np.ndarray[Any, Any]):
    """A NumPy array with TensorFlow's ``numpy()``: shapes and sizes, and arrays of strings.

    ``tf.shape(x)`` is one, so that ``tf.reshape(y, [tf.shape(x)[0], -1])`` works in compiled code: XLA
    needs shapes that are known while a function is traced. It counts as a ``tf.Tensor``.

    >>> shape = HostTensor.of(np.array([2, 3], np.int32))
    >>> shape[0].numpy(), range(shape[1])
    (np.int32(2), range(0, 3))
    """

    @classmethod
    def of(cls, value: ArrayLike) -> Self:
        """Returns ``value`` as such an array."""
        if isinstance(value, bytes):  # NumPy's own strings of bytes lose zeros at their end
            made = np.empty((), np.object_)
            made[()] = value
            return made.view(cls)
        return np.asarray(value).view(cls)

    def numpy(self) -> Any:
        """Returns a copy as an array of NumPy, or as a scalar if it has no dimensions."""
        return np.array(self)[()]

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if isinstance(found, HostTensor) else HostTensor.of(found)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.item()) if self.ndim == 0 else id(self)


def is_size(value: object) -> bool:
    """Returns whether ``value`` is a whole number, or some, that are known while a function is traced."""
    return isinstance(value, HostTensor) and value.dtype.kind in "iu"


class _TensorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (jax.Array, HostTensor))


class Tensor(metaclass=_TensorType):
    """What functions return: ``isinstance(x, tf.Tensor)`` is true for arrays of JAX, also traced ones.

    Differs from TensorFlow: arrays are JAX's. ``x.shape`` is a plain tuple, ``x.dtype`` a NumPy dtype, and
    operators promote dtypes as ``jax.numpy`` does. Variables are not tensors, as in TensorFlow.

    JAX equivalent: ``jax.Array``.

    >>> import stratagem as sg
    >>> isinstance(sg.zeros([2]), sg.Tensor), isinstance(3.0, sg.Tensor)
    (True, False)
    """

    def __init__(self) -> None:
        raise TypeError(
            "tf.Tensor is a class to ask for, as in isinstance(x, tf.Tensor). Make arrays by tf.constant."
        )
