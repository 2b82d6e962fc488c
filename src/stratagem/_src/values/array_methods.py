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

    all: Callable[..., Any] = _forwarded("all")
    any: Callable[..., Any] = _forwarded("any")
    argmax: Callable[..., Any] = _forwarded("argmax")
    argmin: Callable[..., Any] = _forwarded("argmin")
    astype: Callable[..., Any] = _forwarded("astype")
    clip: Callable[..., Any] = _forwarded("clip")
    dot: Callable[..., Any] = _forwarded("dot")
    flatten: Callable[..., Any] = _forwarded("flatten")
    item: Callable[..., Any] = _forwarded("item")
    max: Callable[..., Any] = _forwarded("max")
    mean: Callable[..., Any] = _forwarded("mean")
    min: Callable[..., Any] = _forwarded("min")
    prod: Callable[..., Any] = _forwarded("prod")
    ravel: Callable[..., Any] = _forwarded("ravel")
    reshape: Callable[..., Any] = _forwarded("reshape")
    round: Callable[..., Any] = _forwarded("round")
    squeeze: Callable[..., Any] = _forwarded("squeeze")
    std: Callable[..., Any] = _forwarded("std")
    sum: Callable[..., Any] = _forwarded("sum")
    tolist: Callable[..., Any] = _forwarded("tolist")
    transpose: Callable[..., Any] = _forwarded("transpose")
    var: Callable[..., Any] = _forwarded("var")

    @property
    def T(self) -> Any:  # noqa: N802
        """The transposed value."""
        return self._value().T
