"""``ArrayOperators``: Python's operators and conversions for objects that wrap one array."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import numpy as np

from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.values.host_arrays import own_host_array

__all__ = ["ArrayOperators", "array_of", "operand_of"]


class ArrayOperators:
    """Mixin: every operator and conversion works on the array that ``_value()`` returns."""

    __slots__ = ()
    # NumPy defers `ndarray + self` to our __radd__ if this is higher than its own priority.
    __array_priority__ = 100

    def _value(self) -> Any:
        raise NotImplementedError

    def __jax_array__(self) -> jax.Array:
        value: jax.Array = self._value()
        return value

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = np.asarray(self._value())
        return np.array(array, dtype=dtype) if copy or dtype is not None else array

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the value as a NumPy array."""
        return np.array(self._value())

    def __bool__(self) -> bool:
        return bool(self._value())

    def __int__(self) -> int:
        return int(self._value())

    def __index__(self) -> int:
        return int(self._value().__index__())

    def __float__(self) -> float:
        return float(self._value())

    def __complex__(self) -> complex:
        return complex(self._value())

    def __len__(self) -> int:
        return len(self._value())

    def __iter__(self) -> Any:
        return iter(self._value())

    def __format__(self, spec: str) -> str:
        return format(self._value(), spec) if spec else str(self)

    def __getitem__(self, key: ArrayLike) -> Any:
        return self._value()[key]

    def __neg__(self) -> Any:
        return -self._value()

    def __pos__(self) -> Any:
        return +self._value()

    def __abs__(self) -> Any:
        return abs(self._value())

    def __invert__(self) -> Any:
        return ~self._value()

    def __round__(self, ndigits: int = 0) -> Any:
        return self._value().round(ndigits)

    def __add__(self, other: ArrayLike) -> Any:
        return self._value() + operand_of(other)

    def __radd__(self, other: ArrayLike) -> Any:
        return operand_of(other) + self._value()

    def __sub__(self, other: ArrayLike) -> Any:
        return self._value() - operand_of(other)

    def __rsub__(self, other: ArrayLike) -> Any:
        return operand_of(other) - self._value()

    def __mul__(self, other: ArrayLike) -> Any:
        return self._value() * operand_of(other)

    def __rmul__(self, other: ArrayLike) -> Any:
        return operand_of(other) * self._value()

    def __truediv__(self, other: ArrayLike) -> Any:
        return self._value() / operand_of(other)

    def __rtruediv__(self, other: ArrayLike) -> Any:
        return operand_of(other) / self._value()

    def __floordiv__(self, other: ArrayLike) -> Any:
        return self._value() // operand_of(other)

    def __rfloordiv__(self, other: ArrayLike) -> Any:
        return operand_of(other) // self._value()

    def __mod__(self, other: ArrayLike) -> Any:
        return self._value() % operand_of(other)

    def __rmod__(self, other: ArrayLike) -> Any:
        return operand_of(other) % self._value()

    def __pow__(self, other: ArrayLike) -> Any:
        return self._value() ** operand_of(other)

    def __rpow__(self, other: ArrayLike) -> Any:
        return operand_of(other) ** self._value()

    def __matmul__(self, other: ArrayLike) -> Any:
        return self._value() @ operand_of(other)

    def __rmatmul__(self, other: ArrayLike) -> Any:
        return operand_of(other) @ self._value()

    def __and__(self, other: ArrayLike) -> Any:
        return self._value() & operand_of(other)

    def __rand__(self, other: ArrayLike) -> Any:
        return operand_of(other) & self._value()

    def __or__(self, other: ArrayLike) -> Any:
        return self._value() | operand_of(other)

    def __ror__(self, other: ArrayLike) -> Any:
        return operand_of(other) | self._value()

    def __xor__(self, other: ArrayLike) -> Any:
        return self._value() ^ operand_of(other)

    def __rxor__(self, other: ArrayLike) -> Any:
        return operand_of(other) ^ self._value()

    def __lt__(self, other: ArrayLike) -> Any:
        return self._value() < operand_of(other)

    def __le__(self, other: ArrayLike) -> Any:
        return self._value() <= operand_of(other)

    def __gt__(self, other: ArrayLike) -> Any:
        return self._value() > operand_of(other)

    def __ge__(self, other: ArrayLike) -> Any:
        return self._value() >= operand_of(other)

    def __eq__(self, other: ArrayLike) -> Any:
        return self._value() == operand_of(other)

    def __ne__(self, other: ArrayLike) -> Any:
        return self._value() != operand_of(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # `==` compares element by element


def operand_of(value: ArrayLike) -> Any:
    """Returns ``value`` as an operand for JAX: the wrapped array, or a copy of a writable NumPy array.

    Raises:
        InvalidArgumentError: If it is a NumPy array with 64-bit integers that JAX would truncate.
    """
    return value._value() if isinstance(value, ArrayOperators) else own_host_array(value)


def array_of(value: ArrayLike) -> Any:
    """Returns the array that ``value`` wraps, or ``value`` itself."""
    return value._value() if isinstance(value, ArrayOperators) else value
