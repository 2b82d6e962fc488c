"""``HostTensor``: an array on the host, for static shapes and for strings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeGuard, TypeVar

import jax
import numpy as np

from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.numpy_method import get_shape, set_shape
from stratagem._src.jax_compat.tracing import under_jit

__all__ = ["HostTensor", "Tensor", "is_size", "is_symbolic", "keeps_sizes"]


class HostTensor(np.ndarray[Any, Any]):
    """A NumPy array with TensorFlow's ``numpy()``, for shapes, sizes and strings.

    ``tf.shape(x)`` returns one, so that ``tf.reshape(y, [tf.shape(x)[0], -1])`` works in compiled code: XLA
    needs static shapes. It is an instance of ``tf.Tensor``.

    >>> shape = HostTensor.of(np.array([2, 3], np.int32))
    >>> shape[0].numpy(), range(shape[1])
    (np.int32(2), range(0, 3))
    """

    @classmethod
    def of(cls, value: ArrayLike) -> Self:
        """Converts ``value`` to a ``HostTensor``."""
        if isinstance(value, bytes):  # NumPy's own byte strings drop trailing zeros
            made = np.empty((), np.object_)
            made[()] = value
            return made.view(cls)
        return np.asarray(value).view(cls)

    @classmethod
    def of_sizes(cls, sizes: ArrayLike, dtype: DTypeLike = np.int32) -> Self:
        """Converts sizes. Some may be symbolic: ``jax.export`` and Keras's shape inference use such."""
        made = np.asarray(sizes, np.object_)
        if any(is_symbolic(item) for item in made.flat):
            return made.view(cls)
        return made.astype(dtype).view(cls)

    def numpy(self) -> Any:
        """Returns a copy as a NumPy array, or as a scalar for rank 0."""
        return np.array(self)[()]

    def get_shape(self) -> TensorShape:
        """Returns the shape with ``as_list()`` and the other methods of TensorFlow's shapes."""
        return get_shape(self)

    def set_shape(self, shape: Iterable[int | None] | None) -> None:
        """Checks a shape; that of an array is always known."""
        set_shape(self, shape)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if is_symbolic(found):
            return found
        made = found if isinstance(found, HostTensor) else HostTensor.of(found)
        return HostTensor.of_sizes(made) if made.dtype == object and self._has_sizes() else made

    def _has_sizes(self) -> bool:
        return any(is_symbolic(item) for item in self.flat)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.item()) if self.ndim == 0 else id(self)


def is_symbolic(value: Any) -> TypeGuard[Any]:
    """Returns whether ``value`` is a size of ``jax.export`` or Keras that is not known yet."""
    return not isinstance(value, (int, np.ndarray)) and jax.export.is_symbolic_dim(value)


def is_size(value: object) -> bool:
    """Returns whether ``value`` is a static size or shape: a ``HostTensor`` of sizes."""
    return isinstance(value, HostTensor) and (value.dtype.kind in "iu" or value._has_sizes())


_Operation = TypeVar("_Operation", bound=Callable[..., Any])


def keeps_sizes(operation: _Operation) -> _Operation:
    """Makes an operation of two numbers return a ``HostTensor`` for sizes and Python numbers.

    In compiled code only: there, its result could not be a size or the end of a slice otherwise.
    """

    @functools.wraps(operation)
    def kept(x: ArrayLike, y: ArrayLike, name: str | None = None) -> Any:
        if not (_is_whole(x) and _is_whole(y) and under_jit()):
            return operation(x, y, name)
        return HostTensor.of(evaluate_now(lambda: operation(x, y, name)))

    return kept  # type: ignore[return-value]


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, HostTensor) and value.dtype.kind in "iu")


class _TensorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (jax.Array, HostTensor))


class Tensor(metaclass=_TensorType):
    """The type of results: ``isinstance(x, tf.Tensor)`` is true for JAX arrays, including traced ones.

    Differs from TensorFlow: arrays are JAX arrays. ``x.shape`` is a plain tuple, ``x.dtype`` is a NumPy
    dtype, and operators promote dtypes as ``jax.numpy`` does. As in TensorFlow, variables are not tensors.

    JAX equivalent: ``jax.Array``.

    >>> import stratagem as sg
    >>> isinstance(sg.zeros([2]), sg.Tensor), isinstance(3.0, sg.Tensor)
    (True, False)
    """

    def __init__(self) -> None:
        raise TypeError(
            "tf.Tensor cannot be instantiated; it is for isinstance(x, tf.Tensor). Create arrays with "
            "tf.constant."
        )
