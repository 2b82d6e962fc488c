"""Creates arrays: constants, conversions, zeros, ones, ranges, one-hot rows, initializers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    DTypeLike,
    IntegerLike,
    PyTree,
    ScalarLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.execution.dataset_loops.range_loops import looped_over, traced_range
from stratagem._src.tensorflow_api.conversion import (
    as_dtype,
    as_tensor,
    canonical_dtype,
    integer,
    is_complex,
    is_float,
    known,
    matched,
    shape_of,
)
from stratagem._src.tensorflow_api.host_tensor import HostTensor
from stratagem._src.tensorflow_api.host_tensor import Tensor as TensorClass

__all__ = [
    "constant",
    "constant_initializer",
    "convert_to_tensor",
    "eye",
    "fill",
    "get_static_value",
    "identity",
    "identity_n",
    "is_tensor",
    "linspace",
    "make_ndarray",
    "meshgrid",
    "one_hot",
    "ones",
    "ones_initializer",
    "ones_like",
    "range",
    "sequence_mask",
    "zeros",
    "zeros_initializer",
    "zeros_like",
]


def constant(
    value: ArrayLike, dtype: DTypeLike = None, shape: ShapeLike = None, name: str | None = None
) -> Tensor:
    """Returns ``value`` as an array; a single element is broadcast to ``shape``.

    Python floats become ``float32`` and integers ``int32``. Strings become an array on the host.

    Raises:
        TypeError: If ``dtype`` cannot hold the numbers, or they do not fill ``shape``.

    JAX equivalent: ``jax.numpy.asarray``.

    >>> constant([[1], [2]])
    Array([[1],
           [2]], dtype=int32)
    >>> constant(0.5, shape=[2])
    Array([0.5, 0.5], dtype=float32)
    >>> constant("text").numpy()
    b'text'
    """
    array = as_tensor(value, dtype)
    if shape is None:
        return array
    sizes = shape_of("constant", shape)
    if array.size == 1:
        filled = np.broadcast_to(np.asarray(array).reshape(()), sizes) if _on_host(array) else None
        return jnp.full(sizes, array.reshape(())) if filled is None else HostTensor.of(filled)
    if array.size != int(np.prod(sizes, dtype=np.int64)):
        raise TypeError(
            f"The value of tf.constant must fill shape {sizes}, got shape {array.shape}."
        )
    return array.reshape(sizes)


def convert_to_tensor(
    value: ArrayLike, dtype: DTypeLike = None, dtype_hint: DTypeLike = None, name: str | None = None
) -> Tensor:
    """Converts numbers, nested lists, NumPy arrays or variables to an array.

    Args:
        value: The value to convert. Arrays in lists are stacked.
        dtype: The dtype. An array of another dtype raises: convert it with ``tf.cast``.
        dtype_hint: The dtype to use if the value can be converted to it.
        name: Ignored.

    JAX equivalent: ``jax.numpy.asarray``.

    >>> convert_to_tensor([1, 2.5])
    Array([1. , 2.5], dtype=float32)
    """
    if dtype is None and dtype_hint is not None:
        try:
            return as_tensor(value, dtype_hint)
        except (TypeError, ValueError):
            return as_tensor(value)
    return as_tensor(value, dtype)


def identity(input: PyTree, name: str | None = None) -> PyTree:
    """Returns a copy of an array, of the value of a variable, or of each leaf of a structure.

    >>> identity(3.0)
    Array(3., dtype=float32)
    """
    return structures.map_structure(lambda x: x if _on_host(x) else jnp.array(x), _arrays(input))


def identity_n(input: Sequence[ArrayLike], name: str | None = None) -> list[Tensor]:
    """Returns the value of each array or variable in a list.

    >>> identity_n([1.0, 2])
    [Array(1., dtype=float32), Array(2, dtype=int32)]
    """
    return [identity(one) for one in input]


def is_tensor(x: object) -> bool:
    """Returns whether ``x`` is an array or a variable.

    >>> is_tensor(constant(1)), is_tensor(1)
    (True, False)
    """
    return isinstance(x, TensorClass) or hasattr(x, "__jax_array__")


def get_static_value(tensor: ArrayLike, partial: bool = False) -> np.ndarray[Any, Any] | None:
    """Returns the value as a NumPy array, or ``None`` if it is traced.

    >>> get_static_value([1, 2])
    array([1, 2])
    """
    return None if (value := known(tensor)) is None else value


def make_ndarray(tensor: ArrayLike) -> np.ndarray[Any, Any]:
    """Returns the value as a NumPy array.

    >>> make_ndarray(constant([1, 2]))
    array([1, 2], dtype=int32)
    """
    return np.asarray(tensor)


def zeros(
    shape: ShapeLike, dtype: DTypeLike = np.float32, name: str | None = None, layout: object = None
) -> Tensor:
    """Returns an array of zeros, or of empty strings.

    >>> zeros([2], "int32")
    Array([0, 0], dtype=int32)
    """
    return _filled(shape_of("zeros", shape), as_dtype(dtype), 0)


def ones(
    shape: ShapeLike, dtype: DTypeLike = np.float32, name: str | None = None, layout: object = None
) -> Tensor:
    """Returns an array of ones.

    >>> ones([2])
    Array([1., 1.], dtype=float32)
    """
    return _filled(shape_of("ones", shape), as_dtype(dtype), 1)


def zeros_like(
    input: ArrayLike, dtype: DTypeLike = None, name: str | None = None, layout: object = None
) -> Tensor:
    """Returns zeros with the shape of ``input``, and with its dtype by default.

    >>> zeros_like([1, 2])
    Array([0, 0], dtype=int32)
    """
    array = as_tensor(input)
    return _filled(array.shape, array.dtype if dtype is None else as_dtype(dtype), 0)


def ones_like(
    input: ArrayLike, dtype: DTypeLike = None, name: str | None = None, layout: object = None
) -> Tensor:
    """Returns ones with the shape of ``input``, and with its dtype by default.

    >>> ones_like([1, 2])
    Array([1, 1], dtype=int32)
    """
    array = as_tensor(input)
    return _filled(array.shape, array.dtype if dtype is None else as_dtype(dtype), 1)


def fill(
    dims: ShapeLike, value: ArrayLike, name: str | None = None, layout: object = None
) -> Tensor:
    """Returns an array of shape ``dims`` filled with ``value``.

    >>> fill([2], 3.0)
    Array([3., 3.], dtype=float32)
    """
    return constant(value, shape=shape_of("fill", dims))


def eye(
    num_rows: IntegerLike,
    num_columns: IntegerLike = None,
    batch_shape: ShapeLike = None,
    dtype: DTypeLike = np.float32,
    name: str | None = None,
) -> jax.Array:
    """Returns the identity matrix, or one for each index of ``batch_shape``.

    >>> eye(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    rows = integer("eye", "num_rows", num_rows)
    columns = rows if num_columns is None else integer("eye", "num_columns", num_columns)
    matrix = jnp.eye(rows, columns, dtype=canonical_dtype(dtype))
    batch = () if batch_shape is None else shape_of("eye", batch_shape)
    return jnp.broadcast_to(matrix, (*batch, rows, columns))


def range(
    start: ScalarLike,
    limit: ScalarLike = None,
    delta: ScalarLike = 1,
    dtype: DTypeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns the numbers in ``[start, limit)``; ``range(n)`` returns those in ``[0, n)``.

    In a compiled function, ``for _ in tf.range(n)`` with a ``strategy.run`` or another compiled function in
    its body runs as a Python loop around compiled steps, without unrolling. There, ``n`` may be traced.

    Raises:
        TracedValueError: If an argument is traced: the size of the result must be known.

    >>> range(3)
    Array([0, 1, 2], dtype=int32)
    >>> range(1, 2, 0.5)
    Array([1. , 1.5], dtype=float32)
    """
    if limit is None:
        start, limit = 0, start
    if any(known(part) is None for part in (start, limit, delta)):
        stand_in = traced_range()
        if stand_in is not None:
            return stand_in  # type: ignore[return-value]
    if dtype is None:
        parts = [_unless_traced(part) for part in (start, limit, delta)]
        dtype = max((as_tensor(part).dtype for part in parts), key=_breadth)
    else:
        dtype = as_dtype(dtype)
    if not (is_float(dtype) or dtype.kind in "iu"):
        raise ValueError(f"tf.range needs a numeric dtype, got {dtype}.")
    first, last, step = (known(_unless_traced(part)).item() for part in (start, limit, delta))  # type: ignore[union-attr]
    if step == 0:
        raise InvalidArgumentError("delta of tf.range must not be 0.")
    if (last - first) * step < 0:
        raise InvalidArgumentError(
            "tf.range needs start <= limit for a positive delta, and start >= limit for a negative one; "
            f"got {first}, {last} and {step}."
        )
    if dtype.kind in "iu":
        return looped_over(jnp.arange(first, last, step, dtype=canonical_dtype(dtype)))
    count = int(np.ceil((last - first) / step))
    return jnp.asarray(first + step * np.arange(count), canonical_dtype(dtype))


def linspace(
    start: ScalarLike,
    stop: ScalarLike,
    num: IntegerLike,
    name: str | None = None,
    axis: AxisLike = 0,
) -> jax.Array:
    """Returns ``num`` evenly spaced numbers from ``start`` to ``stop``; integers are converted to floats.

    >>> linspace(0.0, 1.0, 3)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    first, last = matched("linspace", start, stop)
    if not (is_float(first.dtype) or is_complex(first.dtype)):
        first, last = (x.astype(canonical_dtype(np.float64)) for x in (first, last))
    return jnp.linspace(first, last, integer("linspace", "num", num), axis=axis, dtype=first.dtype)


def one_hot(
    indices: ArrayLike,
    depth: IntegerLike,
    on_value: ArrayLike = None,
    off_value: ArrayLike = None,
    axis: AxisLike = None,
    dtype: DTypeLike = None,
    name: str | None = None,
) -> jax.Array:
    """Returns an array with ``on_value`` at each index along a new axis, and ``off_value`` elsewhere.

    Args:
        indices: Integers. An index outside ``[0, depth)`` gives ``off_value`` everywhere.
        depth: The size of the new axis.
        on_value: Default: 1.
        off_value: Default: 0.
        axis: The position of the new axis; default: last.
        dtype: The dtype of the result; default: the dtype of the values, or ``float32``.
        name: Ignored.

    JAX equivalent: ``jax.nn.one_hot``.

    >>> one_hot([0, 2], 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    index = as_tensor(indices)
    if index.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"indices of tf.one_hot must be integers, got {index.dtype.name}."
        )
    if dtype is None:
        given = [as_tensor(v).dtype for v in (on_value, off_value) if v is not None]
        if len(set(given)) > 1:
            raise TypeError(f"on_value and off_value must have the same dtype, got {given}.")
        dtype = given[0] if given else np.dtype(np.float32)
    dtype = canonical_dtype(dtype)
    on = as_tensor(1 if on_value is None else on_value, dtype if on_value is not None else None)
    off = as_tensor(0 if off_value is None else off_value, dtype if off_value is not None else None)
    along = -1 if axis is None else integer("one_hot", "axis", axis)
    size = integer("one_hot", "depth", depth)
    numbers = jnp.arange(size, dtype=index.dtype)
    place = along % (index.ndim + 1)
    shape = [1] * (index.ndim + 1)
    shape[place] = size
    hit = jnp.expand_dims(index, place) == numbers.reshape(shape)
    return jnp.where(hit, on.astype(dtype), off.astype(dtype))


def meshgrid(*args: ArrayLike, indexing: str = "xy", name: str | None = None) -> list[Tensor]:
    """Returns the coordinates of the grid that vectors span, one array for each vector.

    >>> [x.shape for x in meshgrid([1, 2], [3, 4, 5])]
    [(3, 2), (3, 2)]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij', got {indexing!r}.")
    return list(jnp.meshgrid(*[as_tensor(arg).ravel() for arg in args], indexing=indexing))


def sequence_mask(
    lengths: ArrayLike,
    maxlen: IntegerLike = None,
    dtype: DTypeLike = np.bool_,
    name: str | None = None,
) -> jax.Array:
    """Returns a row for each length: true in the first ``length`` places, and false in the others.

    Compiled code needs ``maxlen``.

    >>> sequence_mask([1, 3])
    Array([[ True, False, False],
           [ True,  True,  True]], dtype=bool)
    """
    sizes = as_tensor(lengths)
    if maxlen is None:
        values = known(lengths)
        if values is None:
            raise InvalidArgumentError(
                "tf.sequence_mask of traced lengths needs maxlen: the size of the result must be known."
            )
        maxlen = max(int(values.max()), 0) if values.size else 0
    size = integer("sequence_mask", "maxlen", maxlen)
    return (jnp.arange(size, dtype=sizes.dtype) < sizes[..., None]).astype(canonical_dtype(dtype))


class _Initializer:
    """Creates initial values of a given shape and dtype."""

    def __call__(self, shape: ShapeLike, dtype: DTypeLike = None, **kwargs: Any) -> Tensor:
        """Returns an array of this shape."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Creates an initializer with these arguments."""
        return cls(**config)


class zeros_initializer(_Initializer):  # noqa: N801  (TensorFlow's name)
    """Creates arrays of zeros.

    >>> zeros_initializer()([2])
    Array([0., 0.], dtype=float32)
    """

    def __call__(self, shape: ShapeLike, dtype: DTypeLike = np.float32, **kwargs: Any) -> Tensor:
        """Returns an array of this shape."""
        return zeros(shape, dtype)


class ones_initializer(_Initializer):  # noqa: N801  (TensorFlow's name)
    """Creates arrays of ones.

    >>> ones_initializer()([2])
    Array([1., 1.], dtype=float32)
    """

    def __call__(self, shape: ShapeLike, dtype: DTypeLike = np.float32, **kwargs: Any) -> Tensor:
        """Returns an array of this shape."""
        return ones(shape, dtype)


class constant_initializer(_Initializer):  # noqa: N801  (TensorFlow's name)
    """Creates arrays with a constant value, or with given values.

    Args:
        value: A number, or one number for each element.
        support_partition: Ignored.

    >>> constant_initializer(3)([2], "float32")
    Array([3., 3.], dtype=float32)
    """

    def __init__(self, value: ArrayLike = 0, support_partition: bool = False) -> None:
        self.value = value

    def __call__(self, shape: ShapeLike, dtype: DTypeLike = None, **kwargs: Any) -> Tensor:
        """Returns an array of this shape."""
        return constant(self.value, dtype, shape)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"value": self.value}


def _on_host(array: Tensor) -> bool:
    return is_host_only(array.dtype)


def _arrays(value: PyTree) -> PyTree:
    if isinstance(value, (list, tuple)) and not any(isinstance(x, (list, dict)) for x in value):
        return as_tensor(value)
    return (
        structures.map_structure(as_tensor, value) if isinstance(value, dict) else as_tensor(value)
    )


def _filled(shape: Sequence[int], dtype: DTypeLike, value: int) -> Tensor:
    if is_host_only(dtype):
        if value:
            raise TypeError("tf.ones needs a numeric or boolean dtype, got strings.")
        return HostTensor.of(np.full(shape, b"", np.object_))
    return jnp.full(tuple(shape), value, canonical_dtype(dtype))


def _unless_traced(value: ArrayLike) -> ScalarLike:
    if known(value) is None:
        integer("range", "start, limit and delta", value)
    return value


def _breadth(dtype: DTypeLike) -> tuple[bool, int]:
    return is_float(dtype), dtype.itemsize
