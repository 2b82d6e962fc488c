"""Host-side functions: ``tf.numpy_function``, ``tf.py_function``, ``tf.device``, time, the logger."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import DeviceError, TracedValueError
from stratagem._src.core.types import ArrayLike, DTypeLike, PyTree, StringLike
from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.mesh.device_options import places_softly
from stratagem._src.mesh.devices import parse_device
from stratagem._src.tensorflow_api.conversion import as_dtype, as_tensor, concrete
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = ["device", "get_logger", "init_scope", "numpy_function", "py_function", "timestamp"]


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[ArrayLike] | None = None,
    Tout: DTypeLike = None,  # noqa: N803 (TensorFlow's name)
    stateful: bool = True,
    name: str | None = None,
) -> PyTree:
    """Calls a function of NumPy arrays on the host, as in ``Dataset.map``.

    Differs from TensorFlow: it raises in compiled code, because XLA needs the shape of the result. Use
    ``jax.pure_callback`` there, which takes it.

    >>> numpy_function(lambda x: x + 1, [np.array([1, 2], np.int32)], "int32")
    HostTensor([2, 3], dtype=int32)

    Args:
        func: The function, which returns an array or a list of arrays.
        inp: Its arguments.
        Tout: The dtype of the result, or a list of dtypes.
        stateful: Ignored.
        name: Ignored.
    """
    return _called("numpy_function", func, [_known("numpy_function", x) for x in inp or []], Tout)


def py_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[ArrayLike] | None = None,
    Tout: DTypeLike = None,  # noqa: N803 (TensorFlow's name)
    name: str | None = None,
) -> PyTree:
    """Calls a function of eager arrays on the host, as in ``Dataset.map``; see ``numpy_function``.

    >>> py_function(lambda x: x.numpy() + 1, [np.array([1, 2], np.int32)], "int32")
    HostTensor([2, 3], dtype=int32)
    """
    given = [HostTensor.of(_known("py_function", x)) for x in inp or []]
    return _called("py_function", func, given, Tout)


def _known(op: str, value: ArrayLike) -> np.ndarray[Any, Any]:
    if not hasattr(value, "dtype"):
        value = as_tensor(value)
    array = concrete(value)
    if array is None:
        raise TracedValueError(
            f"tf.{op} calls Python with concrete values, got a traced array. Call it in Dataset.map, or "
            "use jax.pure_callback(func, result_shape_dtypes, *args), which takes the shape of the result."
        )
    return array


def _called(op: str, func: Callable[..., Any] | None, given: list[Any], types: DTypeLike) -> PyTree:
    if func is None:
        raise TypeError(f"tf.{op} needs a function, got None.")
    found = func(*given)
    if types is None or (isinstance(types, (list, tuple)) and not types):
        return [] if types is not None else None
    if not isinstance(types, (list, tuple)):
        if isinstance(found, (list, tuple)) and len(found) == 1:
            found = found[0]
        return _of_type(op, found, types)
    results = found if isinstance(found, (list, tuple)) else [found]
    if len(results) != len(types):
        raise TypeError(
            f"func of tf.{op} must return the {len(types)} values of Tout, got {len(results)}."
        )
    return [_of_type(op, one, dtype) for one, dtype in zip(results, types, strict=True)]


def _of_type(op: str, value: ArrayLike, dtype: DTypeLike) -> HostTensor:
    wanted = as_dtype(dtype)
    array = np.asarray(as_tensor(value) if isinstance(value, (str, bytes)) else value)
    if is_host_only(wanted) and is_host_only(array.dtype):
        return HostTensor.of(np.asarray(as_tensor(array)))
    is_exact = op == "numpy_function" and hasattr(value, "dtype")
    if array.dtype != wanted if is_exact else not np.can_cast(array.dtype, wanted, "same_kind"):
        raise TypeError(
            f"func of tf.{op} must return {wanted.name}, the dtype in Tout, got {array.dtype.name}."
        )
    converted = array.astype(wanted)
    if array.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise TypeError(f"func of tf.{op} must return values of {wanted.name}, got {value!r}.")
    return HostTensor.of(converted)


def timestamp(name: str | None = None) -> float:
    """Returns the seconds since 1970. Raises in compiled code, where it would be the time of tracing.

    >>> timestamp() > 1e9
    True
    """
    if under_jit():
        raise TracedValueError(
            "tf.timestamp cannot be called in compiled code, where it would be the time of tracing. Call "
            "it outside, or use jax.experimental.io_callback."
        )
    return time.time()


def device(device_name: StringLike) -> contextlib.AbstractContextManager[Any]:
    """Creates arrays of a block on a local device, if it exists.

    A hint, like TensorFlow's soft placement. It has no effect in replicas and in compiled code, where the
    strategy and the compiler place arrays, nor for a missing device; for that it raises after
    ``tf.config.set_soft_device_placement(False)``.

    JAX equivalent: ``jax.default_device``.

    >>> with device("/CPU:0"):
    ...     x = as_tensor([1.0])
    """
    if callable(device_name):
        raise DeviceError("tf.device takes a name such as '/GPU:0', got a function.")
    inside = not context.has_strategy() and not under_jit()
    if device_name is None or not inside:
        return contextlib.nullcontext()
    name = str(device_name)
    if not any(kind in name.upper() for kind in ("CPU", "GPU", "TPU", "CUDA", "ROCM")):
        return contextlib.nullcontext()  # only a job and a task
    found = parse_device(name if ":" in name.rpartition("/")[2] else f"{name}:0")
    try:
        devices = jax.local_devices(backend=found.platform)
    except RuntimeError:
        devices = []
    if found.index < len(devices):
        return jax.default_device(devices[found.index])
    if not places_softly():
        raise DeviceError(
            f"There is no device {name!r} on this machine, and soft placement is off. Name a device that "
            "tf.config.list_logical_devices() returns, or call tf.config.set_soft_device_placement(True)."
        )
    return contextlib.nullcontext()


def init_scope() -> contextlib.AbstractContextManager[Any]:
    """Leaves the function that is being traced: values created in the block are concrete.

    JAX equivalent: ``jax.ensure_compile_time_eval``.

    >>> with init_scope():
    ...     x = as_tensor([1.0])
    """
    return jax.ensure_compile_time_eval()


def get_logger() -> logging.Logger:
    """Returns the library's logger.

    >>> get_logger().name
    'stratagem'
    """
    return logging.getLogger("stratagem")
