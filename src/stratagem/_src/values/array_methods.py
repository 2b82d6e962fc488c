"""``ArrayMethods``: the methods of arrays that do not change them, for objects that wrap one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.values.array_operators import ArrayOperators, operand_of

__all__ = ["ArrayMethods"]


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: ArrayOperators, *args: Any, **kwargs: Any) -> Any:
        operands = [operand_of(arg) if isinstance(arg, ArrayOperators) else arg for arg in args]
        return getattr(self._value(), name)(*operands, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Returns ``value().{name}(...)``, as of a ``jax.Array``."
    return method


class ArrayMethods(ArrayOperators):
    """Mixin: ``v.sum()`` and the like work on the array that ``_value()`` returns."""

    __slots__ = ()

    all = _forwarded("all")
    any = _forwarded("any")
    argmax = _forwarded("argmax")
    argmin = _forwarded("argmin")
    astype = _forwarded("astype")
    clip = _forwarded("clip")
    dot = _forwarded("dot")
    flatten = _forwarded("flatten")
    item = _forwarded("item")
    max = _forwarded("max")
    mean = _forwarded("mean")
    min = _forwarded("min")
    prod = _forwarded("prod")
    ravel = _forwarded("ravel")
    reshape = _forwarded("reshape")
    round = _forwarded("round")
    squeeze = _forwarded("squeeze")
    std = _forwarded("std")
    sum = _forwarded("sum")
    tolist = _forwarded("tolist")
    transpose = _forwarded("transpose")
    var = _forwarded("var")

    @property
    def T(self) -> Any:  # noqa: N802
        """The transposed value."""
        return self._value().T
