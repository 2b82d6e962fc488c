"""A traced array with a custom ``__iter__``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.tape_record import alias_of

__all__ = ["iterated_by"]

try:
    from jax._src.interpreters.partial_eval import DynamicJaxprTracer

    _Tracer: Any = DynamicJaxprTracer
except (ImportError, AttributeError):  # pragma: no cover  (another version of JAX)
    _Tracer = None


def iterated_by(iterate: Callable[[Iterator[Any]], Iterator[Any]], array: Tensor) -> Any:
    """Returns an alias of ``array`` over whose elements ``for`` iterates as ``iterate`` says.

    JAX silently unrolls a loop over a traced array. It still does if this version of JAX has no such
    tracers, or if the array is another kind of tracer.

    Args:
        iterate: From an iterator over the elements to the iterator that a loop gets.
        array: The traced array.
    """
    if _Tracer is None or type(array) is not _Tracer:
        return array
    made = alias_of(array, _iterated_type())
    made.iterate = iterate
    return made


_types: list[Any] = []


def _iterated_type() -> Any:
    if not _types:

        class IteratedTracer(_Tracer):  # type: ignore[misc]
            __slots__ = ("iterate",)

            def __iter__(self) -> Iterator[Any]:
                return self.iterate(super().__iter__())

        _types.append(IteratedTracer)
    return _types[0]
