"""Converts arguments to arrays and static values, by TensorFlow's rules for dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError, TracedValueError
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.types import (
    ArrayLike,
    AxisLike,
    DTypeLike,
    IntegerLike,
    Leaf,
    ScalarLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.jax_compat.folded_value import folded_value
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.tensorflow_api.host_tensor import HostTensor, is_symbolic
from stratagem._src.values.array_operators import ArrayOperators, operand_of

__all__ = [
    "as_dtype",
    "as_tensor",
    "axes_of",
    "canonical_dtype",
    "concrete",
    "concrete_or_raise",
    "floats",
    "integer",
    "integers",
    "is_complex",
    "is_float",
    "matched",
    "numbers",
    "shape_of",
    "strings",
]

_NUMBER_TYPES = (bool, int, float, complex)
_OTHER_NAMES = {"half": "float16", "double": "float64", "string": "object", "bool_": "bool"}


def as_dtype(type_value: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype for a name, a NumPy type or a Python type.

    >>> as_dtype("float32"), as_dtype(bool), as_dtype("string")
    (dtype('float32'), dtype('bool'), dtype('O'))
    """
    if type_value is float:
        return np.dtype(np.float32)
    if type_value is str or type_value is bytes:
        return np.dtype(np.object_)
    if isinstance(type_value, str):
        type_value = _OTHER_NAMES.get(type_value, type_value)
    try:
        return jnp.dtype(type_value)
    except TypeError:
        raise TypeError(
            f"A dtype must be like tf.float32 or 'float32', got {type_value!r}."
        ) from None


def canonical_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype that JAX uses for ``dtype``.

    Without JAX's 64-bit mode, that is the 32-bit dtype for a 64-bit one.
    """
    dtype = as_dtype(dtype)
    return dtype if is_host_only(dtype) else jax.dtypes.canonicalize_dtype(dtype)


def as_tensor(value: ArrayLike, dtype: DTypeLike = None) -> Tensor:
    """Returns ``value`` as an array. Python numbers have 32 bits; strings stay on the host.

    Args:
        value: An array, a variable, a number, a string, or nested lists of these.
        dtype: The dtype of the result. Arrays and variables must have it already.

    Raises:
        ValueError: If an array has another dtype.
        TypeError: If ``dtype`` cannot hold the numbers.
    """
    if isinstance(value, ArrayOperators):
        value = operand_of(value)
    if isinstance(value, jax.Array):
        return _strong(value, dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_numpy(np.asarray(value), dtype)
    if isinstance(value, (list, tuple)) and any(_holds_tensor(item) for item in value):
        wanted = dtype
        if wanted is None:
            wanted = next(operand_of(leaf).dtype for leaf in _leaves(value) if _is_tensor(leaf))
        converted = [as_tensor(item, None if _holds_tensor(item) else wanted) for item in value]
        if len({item.dtype for item in converted}) > 1:
            raise InvalidArgumentError(
                "Arrays in a list must have the same dtype, got "
                f"{[item.dtype.name for item in converted]}. Convert them with tf.cast."
            )
        return as_tensor(jnp.stack(converted), dtype)
    if hasattr(value, "__jax_array__"):
        return _strong(value.__jax_array__(), dtype)
    if hasattr(value, "__array__"):
        return _of_numpy(np.asarray(value), dtype)
    return _of_python(value, dtype)


def _strong(array: Tensor, dtype: DTypeLike) -> Tensor:
    """Returns a JAX array without weak type, so that it keeps its dtype when it is combined."""
    wanted = array.dtype if dtype is None else canonical_dtype(dtype)
    if array.dtype != wanted and not (_is_weak(array) and _fits_kind(array.dtype, wanted)):
        raise InvalidArgumentError(
            f"Expected an array of {wanted.name}, got {array.dtype.name}. Convert it: "
            f"tf.cast(x, tf.{wanted.name})."
        )
    return jax.lax.convert_element_type(array, wanted) if _is_weak(array) else array


def _of_numpy(array: np.ndarray[Any, Any], dtype: DTypeLike) -> Tensor:
    if is_host_only(array.dtype):
        if any(is_symbolic(item) for item in array.flat):
            return as_tensor(jnp.asarray(array.tolist(), jnp.int32), dtype)
        return _of_strings(array, dtype)
    if dtype is not None:
        wanted = as_dtype(dtype)
        if wanted != array.dtype:
            if not _fits_kind(array.dtype, wanted):
                raise InvalidArgumentError(
                    f"Expected an array of {wanted.name}, got a NumPy array of {array.dtype.name}. Convert "
                    f"it: tf.cast(x, tf.{wanted.name})."
                )
            array = array.astype(wanted)
    return jnp.asarray(operand_of(np.asarray(array)), canonical_dtype(array.dtype))


def _of_python(value: ArrayLike, dtype: DTypeLike) -> Tensor:
    if value is None:
        raise ValueError("None is not an array. Pass an array, a number, or a list of numbers.")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "S":
            # NumPy's own byte strings drop trailing zeros.
            array = np.asarray(value, np.object_)
    except ValueError as error:
        raise ValueError(
            f"Nested lists must have equal lengths to become an array, got {value!r}: {error}."
        ) from None
    if is_host_only(array.dtype):
        return _of_strings(array, dtype)
    if dtype is None:
        leaves = list(_leaves(value)) if array.size < 10_000 else []
        if any(isinstance(leaf, bool) for leaf in leaves) and array.dtype != np.bool_:
            raise ValueError(f"An array cannot mix booleans and numbers, got {value!r}.")
        if array.dtype == np.float64 and not any(isinstance(leaf, np.float64) for leaf in leaves):
            array = array.astype(np.float32)
        elif array.dtype == np.int64 and not any(isinstance(leaf, np.int64) for leaf in leaves):
            array = _as_int32_if_it_fits(array)
        elif array.dtype == np.complex128 and not jax.config.read("jax_enable_x64"):
            array = array.astype(np.complex64)
    elif (wanted := as_dtype(dtype)) != array.dtype:
        if array.size and not _fits_kind(array.dtype, wanted):
            raise TypeError(f"Cannot convert {value!r} to an array of {wanted.name}.")
        if array.size and wanted.kind in "iu" and array.dtype.kind in "iu":
            limits = np.iinfo(wanted)
            if array.min() < limits.min or array.max() > limits.max:
                raise TypeError(f"Cannot convert {value!r} to {wanted.name}: it does not fit.")
        array = array.astype(wanted)
    return jnp.asarray(guard_int64(array), canonical_dtype(array.dtype))


def _as_int32_if_it_fits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    limits = np.iinfo(np.int32)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        return array
    return array.astype(np.int32)


def _of_strings(array: np.ndarray[Any, Any], dtype: DTypeLike) -> HostTensor:
    if dtype is not None and not is_host_only(as_dtype(dtype)):
        raise TypeError(
            f"Strings cannot become {as_dtype(dtype).name}. Parse numbers with tf.strings.to_number."
        )
    made = np.empty(array.shape, np.object_)
    for index in np.ndindex(array.shape):
        made[index] = _as_bytes(array[index])
    return HostTensor.of(made)


def _as_bytes(value: Leaf) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return bytes(value)
    raise ValueError(
        f"An array holds numbers, booleans or strings, got {value!r} of {type(value).__name__}."
    )


def _is_tensor(value: ArrayLike) -> bool:
    return isinstance(value, (jax.Array, ArrayOperators))


def _holds_tensor(value: ArrayLike) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor(item) for item in value)
    return _is_tensor(value)


def _leaves(value: ArrayLike) -> Iterator[Leaf]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_weak(array: Tensor) -> bool:
    return bool(getattr(array, "weak_type", False))


def is_float(dtype: DTypeLike) -> bool:
    """Returns whether ``dtype`` is a real floating-point dtype."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_complex(dtype: DTypeLike) -> bool:
    """Returns whether ``dtype`` is complex."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def _fits_kind(dtype: DTypeLike, wanted: DTypeLike) -> bool:
    """Returns whether ``wanted`` can hold the kind of numbers that ``dtype`` has."""
    return _kind(dtype) <= _kind(wanted) and (_kind(wanted) > 0 or _kind(dtype) == 0)


def _kind(dtype: DTypeLike) -> int:
    if jnp.issubdtype(dtype, jnp.bool_):
        return 0
    if jnp.issubdtype(dtype, jnp.integer):
        return 1
    return 2 if is_float(dtype) else 3


def matched(op: str, *values: ArrayLike) -> list[Tensor]:
    """Returns values as arrays of one dtype. The arrays among them must agree on it.

    Python numbers take the dtype of the arrays. A float never becomes an integer.

    Args:
        op: The function's name, for messages.
        *values: The operands.

    Raises:
        InvalidArgumentError: If arrays have different dtypes, or strings are mixed with numbers.
    """
    arrays = [
        as_tensor(value) if _holds_tensor(value) or _is_of_numpy(value) else None
        for value in values
    ]
    leading = [
        (array, _is_tensor(value) and not _is_weak(operand_of(value)))
        for array, value in zip(arrays, values, strict=True)
        if array is not None
    ]
    # A NumPy array takes the dtype of a JAX array among the values, unless its own kind is wider.
    dtype: Any = next((a.dtype for a, is_device_array in leading if is_device_array), None)
    if dtype is None and leading:
        dtype = max((a.dtype for a, _ in leading), key=_kind)
    found = []
    for array, value in zip(arrays, values, strict=True):
        if array is None:
            try:
                array = as_tensor(value, dtype)
            except TypeError as error:
                raise TypeError(f"tf.{op}: {error}") from None
            if dtype is None:
                dtype = array.dtype
        elif array.dtype != dtype:
            flexible = not _is_tensor(value) or _is_weak(operand_of(value))
            if not flexible or is_host_only(dtype) or not _fits_kind(array.dtype, dtype):
                raise _mixed(op, dtype, array.dtype)
            array = jax.lax.convert_element_type(array, dtype)
        found.append(array)
    return found


def _is_of_numpy(value: ArrayLike) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or (
        hasattr(value, "__array__") and not isinstance(value, (list, tuple, *_NUMBER_TYPES))
    )


def _mixed(op: str, first: DTypeLike, second: DTypeLike) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"tf.{op} needs operands of the same dtype, got {first.name} and {second.name}. Convert one of "
        f"them: tf.cast(x, tf.{first.name})."
    )


def floats(op: str, value: ArrayLike, *, real: bool = False) -> Tensor:
    """Returns ``value`` as an array, which must be of floating-point numbers.

    Args:
        op: The function's name, for messages.
        value: The operand.
        real: Whether to reject complex numbers.
    """
    array = as_tensor(value)
    if is_float(array.dtype) or (not real and is_complex(array.dtype)):
        return array
    raise InvalidArgumentError(
        f"tf.{op} needs floating-point numbers, got {array.dtype.name}. Convert them: "
        "tf.cast(x, tf.float32)."
    )


def numbers(op: str, value: ArrayLike) -> Tensor:
    """Returns ``value`` as an array, which must not be of booleans or strings."""
    array = as_tensor(value)
    if is_host_only(array.dtype) or array.dtype == np.bool_:
        name = "strings" if is_host_only(array.dtype) else "booleans"
        raise InvalidArgumentError(
            f"tf.{op} needs numbers, got {name}. Convert them: tf.cast(x, tf.int32)."
        )
    return array


def strings(op: str, value: ArrayLike) -> HostTensor:
    """Returns ``value`` as an array of byte strings on the host."""
    array = as_tensor(value, np.object_) if not _is_tensor(value) else as_tensor(value)
    if not isinstance(array, HostTensor) or not is_host_only(array.dtype):
        raise InvalidArgumentError(
            f"tf.{op} needs strings, got {array.dtype.name}. Strings stay on the host: call it in "
            "Dataset.map or outside compiled code."
        )
    return array


def concrete(value: ArrayLike) -> np.ndarray[Any, Any] | None:
    """Returns the value as a NumPy array, or ``None`` if it is traced.

    Pass the caller's argument: in compiled code, what ``as_tensor`` returns is traced, even for a list.
    """
    if isinstance(value, (list, tuple)):
        if any(is_tracer(operand_of(leaf)) for leaf in _leaves(value) if _is_tensor(leaf)):
            return None
        return np.asarray([concrete(item) for item in value]) if value else np.asarray(value)
    value = operand_of(value)
    return None if is_tracer(value) else np.asarray(value)


def known(value: ArrayLike) -> np.ndarray[Any, Any] | None:
    """Returns the value as a NumPy array, also of what compiled code computes from constants alone.

    ``tf.repeat(3, 2)`` is traced, but a size like any other. Otherwise like ``concrete``, which is faster.
    """
    array = concrete(value)
    if array is not None:
        return array
    if isinstance(value, (list, tuple)):
        items = [known(item) for item in value]
        return None if any(item is None for item in items) else np.asarray(items)
    return folded_value(operand_of(value))


def concrete_or_raise(op: str, argument: str, value: ArrayLike, instead: str) -> Any:
    """Returns values that decide the shape of a result, as a NumPy array.

    Args:
        op: The function's name, for messages.
        argument: The argument's name, for messages.
        value: The argument.
        instead: What to call in compiled code.

    Raises:
        TracedValueError: If ``value`` is traced.
    """
    array = known(value)
    if array is None:
        raise TracedValueError(
            f"The shape of the result of tf.{op} depends on the values of {argument} which are traced: XLA "
            f"compiles for fixed shapes. Call it outside compiled code, or use {instead}."
        )
    return array


def integers(op: str, argument: str, value: ShapeLike) -> tuple[int, ...]:
    """Returns integers that must be static while a function is traced, such as a shape.

    Args:
        op: The function's name, for messages.
        argument: The argument's name, for messages.
        value: One number, or a list or array of them.
    """
    if isinstance(value, (list, tuple)):
        return tuple(integer(op, argument, item) for item in value)
    if is_symbolic(value):
        return (value,)
    array = known(value)
    if array is None:
        raise _traced(op, argument)
    return tuple(_as_int(op, argument, item) for item in array.ravel().tolist())


def integer(op: str, argument: str, value: IntegerLike) -> int:
    """Returns an integer that must be static while a function is traced."""
    if is_symbolic(value):
        return value
    array = known(value)
    if array is None:
        raise _traced(op, argument)
    if array.size != 1:
        raise InvalidArgumentError(f"{argument} of tf.{op} must be one number, got {value!r}.")
    return _as_int(op, argument, array.item())


def _as_int(op: str, argument: str, value: ScalarLike) -> int:
    if is_symbolic(value):
        return value
    if isinstance(value, bool) or value != int(value):
        raise InvalidArgumentError(f"{argument} of tf.{op} must be integers, got {value!r}.")
    return int(value)


def _traced(op: str, argument: str) -> TracedValueError:
    return TracedValueError(
        f"{argument} of tf.{op} must be known while a function is traced, got a traced array: XLA compiles "
        "for fixed shapes. Sizes from tf.shape(x) and x.shape are known; pass others as Python numbers."
    )


def shape_of(op: str, shape: ShapeLike) -> tuple[int, ...]:
    """Returns a shape from a list, an array, or one number."""
    return integers(op, "shape", shape)


def axes_of(op: str, axis: AxisLike, ndim: int) -> tuple[int, ...]:
    """Returns non-negative axes, all of them for ``None``."""
    if axis is None:
        return tuple(range(ndim))
    axes = integers(op, "axis", axis)
    for one in axes:
        if not -ndim <= one < ndim:
            raise InvalidArgumentError(f"axis of tf.{op} must be in [{-ndim}, {ndim}), got {one}.")
    return tuple(one % ndim for one in axes)
