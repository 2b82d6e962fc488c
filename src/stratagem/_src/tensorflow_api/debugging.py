"""``tf.debugging``: assertions about values, shapes and element types.

What is known is checked at once. Values in compiled code are checked when the program runs, on the host:
the call that waits for the program's results raises, with the message in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, IntegerLike, Leaf, ScalarLike, Tensor
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.tensorflow_api import conversion
from stratagem._src.tensorflow_api.conversion import as_dtype, available, is_float, matched

__all__ = [
    "Assert",
    "assert_all_finite",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_proper_iterable",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_same_float_dtype",
    "assert_scalar",
    "assert_shapes",
    "assert_type",
    "check_numerics",
    "is_numeric_tensor",
]

# The name of an argument is ``tensor`` in TensorFlow.
_array = conversion.tensor


def _check(
    holds: Tensor, rule: str, message: str | None, shown: list[Any], summarize: int | None
) -> None:
    """Raises if ``holds`` is false: now, or when the program runs."""

    def raise_unless(holds: Tensor, *shown: Tensor) -> None:
        if not np.all(holds):
            limit = 3 if summarize is None else summarize
            texts = []
            for value in shown:
                items = [str(item) for item in np.asarray(value).ravel().tolist()]
                cut = len(items) if limit < 0 else limit
                texts.append(" ".join(items[:cut]) + (" ..." if len(items) > cut else ""))
            raise InvalidArgumentError(
                f"{message + ' ' if message else ''}The rule {rule} does not hold, got "
                f"{' and '.join(f'[{text}]' for text in texts)}."
            )

    arrays = [holds, *shown]
    if any(is_tracer(array) for array in arrays):
        jax.debug.callback(raise_unless, *arrays)
    else:
        raise_unless(*arrays)


def Assert(  # noqa: N802 (TensorFlow's name)
    condition: ArrayLike, data: ArrayLike, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError``, with ``data`` in the message, if a condition does not hold.

    >>> Assert(True, ["fine"])
    """
    shown = [_array(item) for item in (data if isinstance(data, (list, tuple)) else [data])]
    texts = [x for x in shown if is_host_only(x.dtype)]
    message = " ".join(
        item.decode(errors="replace")
        for text in texts
        for item in np.asarray(text).ravel().tolist()
    )
    _check(
        _array(condition),
        "condition",
        message,
        [x for x in shown if not is_host_only(x.dtype)] or [_array(condition)],
        summarize,
    )


def _compare(
    op: str,
    sign: str,
    function: Callable[[Any, Any], Any],
    x: ArrayLike,
    y: ArrayLike,
    message: str | None,
    summarize: int | None,
) -> None:
    first, second = matched(f"debugging.{op}", x, y)
    if is_host_only(first.dtype):
        holds = function(np.asarray(first), np.asarray(second))
    else:
        try:
            holds = function(first, second)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"tf.debugging.{op}: {error}") from None
    _check(holds, f"x {sign} y", message, [first, second], summarize)


def assert_equal(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless all elements are equal.

    >>> assert_equal([1, 2], [1, 2])
    """
    _compare("assert_equal", "==", lambda a, b: a == b, x, y, message, summarize)


def assert_none_equal(
    x: ArrayLike,
    y: ArrayLike,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` if elements are equal.

    >>> assert_none_equal([1, 2], [2, 1])
    """
    _compare("assert_none_equal", "!=", lambda a, b: a != b, x, y, message, summarize)


def assert_less(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless each element of ``x`` is less than that of ``y``.

    >>> assert_less([1, 2], 3)
    """
    _compare("assert_less", "<", lambda a, b: a < b, x, y, message, summarize)


def assert_less_equal(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless no element of ``x`` is greater than that of ``y``.

    >>> assert_less_equal([1, 2], 2)
    """
    _compare("assert_less_equal", "<=", lambda a, b: a <= b, x, y, message, summarize)


def assert_greater(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless each element of ``x`` is greater than that of ``y``.

    >>> assert_greater([1, 2], 0)
    """
    _compare("assert_greater", ">", lambda a, b: a > b, x, y, message, summarize)


def assert_greater_equal(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless no element of ``x`` is less than that of ``y``.

    >>> assert_greater_equal([1, 2], 1)
    """
    _compare("assert_greater_equal", ">=", lambda a, b: a >= b, x, y, message, summarize)


def assert_positive(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` unless all elements are greater than 0.

    >>> assert_positive([1, 2])
    """
    array = _array(x)
    _check(array > 0, "x > 0", message, [array], summarize)


def assert_negative(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` unless all elements are less than 0.

    >>> assert_negative([-1, -2])
    """
    array = _array(x)
    _check(array < 0, "x < 0", message, [array], summarize)


def assert_non_negative(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` if an element is less than 0.

    >>> assert_non_negative([0, 2])
    """
    array = _array(x)
    _check(array >= 0, "x >= 0", message, [array], summarize)


def assert_non_positive(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` if an element is greater than 0.

    >>> assert_non_positive([0, -2])
    """
    array = _array(x)
    _check(array <= 0, "x <= 0", message, [array], summarize)


def assert_near(
    x: ArrayLike,
    y: ArrayLike,
    rtol: ScalarLike = None,
    atol: ScalarLike = None,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless ``|x - y| < atol + rtol * |y|`` for all elements.

    The default tolerances are ten times the distance from 1 to the next number of the dtype.

    >>> assert_near([1.0], [1.0 + 1e-7])
    """
    first, second = matched("debugging.assert_near", x, y)
    step = 10 * float(jnp.finfo(first.dtype).eps)
    relative = _array(step if rtol is None else rtol).astype(first.dtype)
    absolute = _array(step if atol is None else atol).astype(first.dtype)
    holds = jnp.abs(first - second) < absolute + relative * jnp.abs(second)
    _check(holds, "|x - y| < atol + rtol * |y|", message, [first, second], summarize)


def assert_all_finite(x: ArrayLike, message: str, name: str | None = None) -> Tensor:
    """Returns an array, and raises ``InvalidArgumentError`` if it has infinite numbers or NaN.

    >>> assert_all_finite([1.0], "loss")
    Array([1.], dtype=float32)
    """
    return check_numerics(x, message)


def check_numerics(tensor: ArrayLike, message: str, name: str | None = None) -> Tensor:
    """Returns an array, and raises ``InvalidArgumentError`` if it has infinite numbers or NaN.

    >>> check_numerics([1.0], "loss")
    Array([1.], dtype=float32)
    """
    array = _floats("check_numerics", tensor)
    _check(jnp.isfinite(array), "all numbers are finite", message, [array], None)
    return array


def _floats(op: str, value: ArrayLike) -> Tensor:
    array = _array(value)
    if not is_float(array.dtype):
        raise InvalidArgumentError(
            f"tf.debugging.{op} needs floating-point numbers, got {array.dtype.name}."
        )
    return array


def _dtype(value: ArrayLike) -> DTypeLike:
    return value.dtype if hasattr(value, "dtype") else _array(value).dtype


def assert_integer(x: ArrayLike, message: str | None = None, name: str | None = None) -> None:
    """Raises ``TypeError`` unless an array is of integers.

    >>> assert_integer([1, 2])
    """
    if _dtype(x).kind not in "iu":
        raise TypeError(f"{message or ''} Integers are needed, got {_dtype(x).name}.".strip())


def assert_type(
    tensor: ArrayLike, tf_type: DTypeLike, message: str | None = None, name: str | None = None
) -> None:
    """Raises ``TypeError`` unless an array is of an element type.

    >>> assert_type([1.0], "float32")
    """
    wanted = as_dtype(tf_type)
    if _dtype(tensor) not in (wanted, available(wanted)):
        found = _dtype(tensor).name
        raise TypeError(f"{message or ''} {wanted.name} is needed, got {found}.".strip())


def assert_same_float_dtype(
    tensors: Iterable[ArrayLike] | None = None, dtype: DTypeLike = None
) -> np.dtype[Any]:
    """Returns the floating-point dtype that all arrays have; raises ``ValueError`` if they differ.

    >>> assert_same_float_dtype([[1.0], [2.0]])
    dtype('float32')
    """
    found = [_dtype(one) for one in tensors or []]
    wanted = as_dtype(dtype) if dtype is not None else (found[0] if found else np.dtype(np.float32))
    for one in found:
        if one not in (wanted, available(wanted)):
            raise ValueError(f"Arrays must be of {wanted.name}, got {one.name}.")
    if not is_float(wanted):
        raise ValueError(f"A floating-point dtype is needed, got {wanted.name}.")
    return wanted


def assert_rank(
    x: ArrayLike, rank: IntegerLike, message: str | None = None, name: str | None = None
) -> None:
    """Raises ``ValueError`` unless an array has so many dimensions.

    >>> assert_rank([[1]], 2)
    """
    _check_rank(x, lambda ndim: ndim == int(rank), f"{int(rank)}", message)


def assert_rank_at_least(
    x: ArrayLike, rank: IntegerLike, message: str | None = None, name: str | None = None
) -> None:
    """Raises ``ValueError`` if an array has fewer dimensions.

    >>> assert_rank_at_least([[1]], 1)
    """
    _check_rank(x, lambda ndim: ndim >= int(rank), f"at least {int(rank)}", message)


def assert_rank_in(
    x: ArrayLike, ranks: Iterable[int], message: str | None = None, name: str | None = None
) -> None:
    """Raises ``ValueError`` unless the number of an array's dimensions is among ``ranks``.

    >>> assert_rank_in([[1]], (1, 2))
    """
    allowed = [int(rank) for rank in ranks]
    _check_rank(x, lambda ndim: ndim in allowed, f"one of {allowed}", message)


def assert_scalar(tensor: ArrayLike, message: str | None = None, name: str | None = None) -> Tensor:
    """Returns an array, and raises ``ValueError`` if it has dimensions.

    >>> assert_scalar(1.0)
    Array(1., dtype=float32)
    """
    _check_rank(tensor, lambda ndim: ndim == 0, "0", message)
    return _array(tensor)


def _check_rank(
    x: ArrayLike, holds: Callable[[int], bool], wanted: str, message: str | None
) -> None:
    shape = tuple(x.shape) if hasattr(x, "shape") else _array(x).shape
    if not holds(len(shape)):
        raise InvalidArgumentError(
            f"{message or ''} The number of dimensions must be {wanted}, got the shape {shape}.".strip()
        )


def assert_shapes(
    shapes: Any,
    data: object = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    """Raises ``ValueError`` unless arrays have shapes in which equal symbols are equal numbers.

    >>> x, y = jnp.array([[1, 2]]), jnp.array([1, 2])
    >>> assert_shapes([(x, ("N", "Q")), (y, ("Q",))])

    Args:
        shapes: A dictionary or pairs of arrays and shapes; a number is itself, a string or other object a
            symbol, ``None`` and ``"."`` anything, and ``...`` or ``"*"`` first any number of dimensions.
        data: Ignored.
        summarize: Ignored.
        message: Begins the error.
        name: Ignored.
    """
    pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
    sizes: dict[Any, int] = {}
    for array, symbols in pairs:
        found = tuple(array.shape) if hasattr(array, "shape") else _array(array).shape
        wanted = list(symbols) if isinstance(symbols, Iterable) else [symbols]
        if wanted and (wanted[0] is ... or wanted[0] == "*"):
            wanted = wanted[1:]
            compared = found[len(found) - len(wanted) :] if len(wanted) <= len(found) else None
        elif wanted and (wanted[-1] is ... or wanted[-1] == "*"):
            wanted = wanted[:-1]
            compared = found[: len(wanted)] if len(wanted) <= len(found) else None
        else:
            compared = found if len(wanted) == len(found) else None
        holds = compared is not None and all(
            symbol is None
            or symbol == "."
            or (int(symbol) if _is_number(symbol) else sizes.setdefault(symbol, size)) == size
            for symbol, size in zip(wanted, compared, strict=True)
        )
        if not holds:
            raise InvalidArgumentError(
                f"{message or ''} The shape must be {symbols}, where {sizes}, got {found}.".strip()
            )


def _is_number(symbol: Leaf) -> bool:
    return isinstance(symbol, int) or (isinstance(symbol, str) and symbol.isdigit())


def assert_proper_iterable(values: object) -> None:
    """Raises ``TypeError`` for what is no list of arrays: a string, an array, or nothing to iterate over.

    >>> assert_proper_iterable([1, 2])
    """
    if isinstance(values, (str, bytes, np.ndarray, jax.Array)) or not isinstance(values, Iterable):
        raise TypeError(f"A list, tuple or the like is needed, got {type(values).__name__}.")


def is_numeric_tensor(tensor: ArrayLike) -> bool:
    """Returns whether something is an array of numbers.

    >>> is_numeric_tensor(jnp.zeros(2)), is_numeric_tensor(2)
    (True, False)
    """
    return isinstance(tensor, jax.Array) and tensor.dtype != np.bool_
