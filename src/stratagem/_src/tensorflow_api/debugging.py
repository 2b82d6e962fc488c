"""``tf.debugging``: assertions about values, shapes and dtypes.

Concrete values are checked immediately. Traced values are checked on the host when the program runs: the
call that waits for the program's results raises, with the message in its error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, IntegerLike, Leaf, ScalarLike, Tensor
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.tensorflow_api.conversion import (
    as_dtype,
    as_tensor,
    canonical_dtype,
    floats,
    is_float,
    matched,
)

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


def _check(
    holds: Tensor, rule: str, message: str | None, shown: list[Any], summarize: int | None
) -> None:
    """Raises if ``holds`` is false: now, or when the compiled program runs."""

    def raise_unless(holds: Tensor, *shown: Tensor) -> None:
        if not np.all(holds):
            limit = 3 if summarize is None else summarize
            texts = []
            for value in shown:
                items = [str(item) for item in np.asarray(value).ravel().tolist()]
                cut = len(items) if limit < 0 else limit
                texts.append(" ".join(items[:cut]) + (" ..." if len(items) > cut else ""))
            raise InvalidArgumentError(
                f"{message + ' ' if message else ''}Expected {rule}, got "
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
    """Raises ``InvalidArgumentError`` with ``data`` in the message if ``condition`` is false.

    >>> Assert(True, ["fine"])
    """
    shown = [as_tensor(item) for item in (data if isinstance(data, (list, tuple)) else [data])]
    texts = [x for x in shown if is_host_only(x.dtype)]
    message = " ".join(
        item.decode(errors="replace")
        for text in texts
        for item in np.asarray(text).ravel().tolist()
    )
    _check(
        as_tensor(condition),
        "a true condition",
        message,
        [x for x in shown if not is_host_only(x.dtype)] or [as_tensor(condition)],
        summarize,
    )


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(
    op: str, sign: str, x: ArrayLike, y: ArrayLike, message: str | None, summarize: int | None
) -> None:
    compare = _OPERATORS[sign]
    first, second = matched(f"debugging.{op}", x, y)
    if is_host_only(first.dtype):
        holds = compare(np.asarray(first), np.asarray(second))
    else:
        try:
            holds = compare(first, second)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"tf.debugging.{op}: {error}") from None
    _check(holds, f"x {sign} y", message, [first, second], summarize)


def _compare_with_zero(sign: str, x: ArrayLike, message: str | None, summarize: int | None) -> None:
    array = as_tensor(x)
    _check(_OPERATORS[sign](array, 0), f"x {sign} 0", message, [array], summarize)


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
    _compare("assert_equal", "==", x, y, message, summarize)


def assert_none_equal(
    x: ArrayLike,
    y: ArrayLike,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` if any elements are equal.

    >>> assert_none_equal([1, 2], [2, 1])
    """
    _compare("assert_none_equal", "!=", x, y, message, summarize)


def assert_less(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless ``x < y`` for all elements.

    >>> assert_less([1, 2], 3)
    """
    _compare("assert_less", "<", x, y, message, summarize)


def assert_less_equal(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless ``x <= y`` for all elements.

    >>> assert_less_equal([1, 2], 2)
    """
    _compare("assert_less_equal", "<=", x, y, message, summarize)


def assert_greater(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless ``x > y`` for all elements.

    >>> assert_greater([1, 2], 0)
    """
    _compare("assert_greater", ">", x, y, message, summarize)


def assert_greater_equal(
    x: ArrayLike,
    y: ArrayLike,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises ``InvalidArgumentError`` unless ``x >= y`` for all elements.

    >>> assert_greater_equal([1, 2], 1)
    """
    _compare("assert_greater_equal", ">=", x, y, message, summarize)


def assert_positive(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` unless all elements are greater than 0.

    >>> assert_positive([1, 2])
    """
    _compare_with_zero(">", x, message, summarize)


def assert_negative(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` unless all elements are less than 0.

    >>> assert_negative([-1, -2])
    """
    _compare_with_zero("<", x, message, summarize)


def assert_non_negative(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` if any element is negative.

    >>> assert_non_negative([0, 2])
    """
    _compare_with_zero(">=", x, message, summarize)


def assert_non_positive(
    x: ArrayLike, message: str | None = None, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises ``InvalidArgumentError`` if any element is positive.

    >>> assert_non_positive([0, -2])
    """
    _compare_with_zero("<=", x, message, summarize)


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

    The default tolerances are ten times the machine epsilon of the dtype.

    >>> assert_near([1.0], [1.0 + 1e-7])
    """
    first, second = matched("debugging.assert_near", x, y)
    step = 10 * float(jnp.finfo(first.dtype).eps)
    relative = as_tensor(step if rtol is None else rtol).astype(first.dtype)
    absolute = as_tensor(step if atol is None else atol).astype(first.dtype)
    holds = jnp.abs(first - second) < absolute + relative * jnp.abs(second)
    _check(holds, "|x - y| < atol + rtol * |y|", message, [first, second], summarize)


def assert_all_finite(x: ArrayLike, message: str, name: str | None = None) -> Tensor:
    """Returns ``x``, and raises ``InvalidArgumentError`` if it has infinite or NaN elements.

    >>> assert_all_finite([1.0], "loss")
    Array([1.], dtype=float32)
    """
    return check_numerics(x, message)


def check_numerics(tensor: ArrayLike, message: str, name: str | None = None) -> Tensor:
    """Returns ``tensor``, and raises ``InvalidArgumentError`` if it has infinite or NaN elements.

    >>> check_numerics([1.0], "loss")
    Array([1.], dtype=float32)
    """
    array = floats("debugging.check_numerics", tensor, real=True)
    _check(jnp.isfinite(array), "finite numbers", message, [array], None)
    return array


def _dtype(value: ArrayLike) -> DTypeLike:
    return value.dtype if hasattr(value, "dtype") else as_tensor(value).dtype


def assert_integer(x: ArrayLike, message: str | None = None, name: str | None = None) -> None:
    """Raises ``TypeError`` unless ``x`` has an integer dtype.

    >>> assert_integer([1, 2])
    """
    if _dtype(x).kind not in "iu":
        raise TypeError(f"{message or ''} Expected integers, got {_dtype(x).name}.".strip())


def assert_type(
    tensor: ArrayLike, tf_type: DTypeLike, message: str | None = None, name: str | None = None
) -> None:
    """Raises ``TypeError`` unless ``tensor`` has the dtype ``tf_type``.

    >>> assert_type([1.0], "float32")
    """
    wanted = as_dtype(tf_type)
    if _dtype(tensor) not in (wanted, canonical_dtype(wanted)):
        found = _dtype(tensor).name
        raise TypeError(f"{message or ''} Expected {wanted.name}, got {found}.".strip())


def assert_same_float_dtype(
    tensors: Iterable[ArrayLike] | None = None, dtype: DTypeLike = None
) -> np.dtype[Any]:
    """Returns the common floating-point dtype of arrays; raises ``ValueError`` if they differ.

    >>> assert_same_float_dtype([[1.0], [2.0]])
    dtype('float32')
    """
    found = [_dtype(one) for one in tensors or []]
    wanted = as_dtype(dtype) if dtype is not None else (found[0] if found else np.dtype(np.float32))
    for one in found:
        if one not in (wanted, canonical_dtype(wanted)):
            raise ValueError(f"Arrays must have dtype {wanted.name}, got {one.name}.")
    if not is_float(wanted):
        raise ValueError(f"Expected a floating-point dtype, got {wanted.name}.")
    return wanted


def assert_rank(
    x: ArrayLike, rank: IntegerLike, message: str | None = None, name: str | None = None
) -> None:
    """Raises ``ValueError`` unless ``x`` has ``rank`` dimensions.

    >>> assert_rank([[1]], 2)
    """
    _check_rank(x, lambda ndim: ndim == int(rank), f"{int(rank)}", message)


def assert_rank_at_least(
    x: ArrayLike, rank: IntegerLike, message: str | None = None, name: str | None = None
) -> None:
    """Raises ``ValueError`` if ``x`` has fewer than ``rank`` dimensions.

    >>> assert_rank_at_least([[1]], 1)
    """
    _check_rank(x, lambda ndim: ndim >= int(rank), f"at least {int(rank)}", message)


def assert_rank_in(
    x: ArrayLike, ranks: Iterable[int], message: str | None = None, name: str | None = None
) -> None:
    """Raises ``ValueError`` unless the number of dimensions of ``x`` is one of ``ranks``.

    >>> assert_rank_in([[1]], (1, 2))
    """
    allowed = [int(rank) for rank in ranks]
    _check_rank(x, lambda ndim: ndim in allowed, f"one of {allowed}", message)


def assert_scalar(tensor: ArrayLike, message: str | None = None, name: str | None = None) -> Tensor:
    """Returns ``tensor`` as an array, and raises ``ValueError`` if it has dimensions.

    >>> assert_scalar(1.0)
    Array(1., dtype=float32)
    """
    _check_rank(tensor, lambda ndim: ndim == 0, "0", message)
    return as_tensor(tensor)


def _check_rank(
    x: ArrayLike, holds: Callable[[int], bool], wanted: str, message: str | None
) -> None:
    shape = tuple(x.shape) if hasattr(x, "shape") else as_tensor(x).shape
    if not holds(len(shape)):
        raise InvalidArgumentError(
            f"{message or ''} The number of dimensions must be {wanted}, got shape {shape}.".strip()
        )


def assert_shapes(
    shapes: Any,
    data: object = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    """Raises ``ValueError`` unless arrays have these shapes; equal symbols stand for equal sizes.

    >>> x, y = jnp.array([[1, 2]]), jnp.array([1, 2])
    >>> assert_shapes([(x, ("N", "Q")), (y, ("Q",))])

    Args:
        shapes: A dictionary, or pairs, of arrays and shapes. A size is a number, a symbol (a string or
            other object), or ``None`` or ``"."`` for any size. A leading or trailing ``...`` or ``"*"``
            stands for any number of dimensions.
        data: Ignored.
        summarize: Ignored.
        message: The start of the error message.
        name: Ignored.
    """
    pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
    sizes: dict[Any, int] = {}
    for array, symbols in pairs:
        found = tuple(array.shape) if hasattr(array, "shape") else as_tensor(array).shape
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
                f"{message or ''} The shape must be {symbols} with {sizes}, got {found}.".strip()
            )


def _is_number(symbol: Leaf) -> bool:
    return isinstance(symbol, int) or (isinstance(symbol, str) and symbol.isdigit())


def assert_proper_iterable(values: object) -> None:
    """Raises ``TypeError`` unless ``values`` is a list or another iterable, not a string or an array.

    >>> assert_proper_iterable([1, 2])
    """
    if isinstance(values, (str, bytes, np.ndarray, jax.Array)) or not isinstance(values, Iterable):
        raise TypeError(
            f"Expected a list, tuple or other iterable of arrays, got {type(values).__name__}."
        )


def is_numeric_tensor(tensor: ArrayLike) -> bool:
    """Returns whether ``tensor`` is an array of numbers.

    >>> is_numeric_tensor(jnp.zeros(2)), is_numeric_tensor(2)
    (True, False)
    """
    return isinstance(tensor, jax.Array) and tensor.dtype != np.bool_
