"""A traced array whose iteration somebody else decides on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.jax_compat.recording_trace import another_object

__all__ = ["iterated_by"]

try:
    from jax._src.interpreters.partial_eval import DynamicJaxprTracer

    _Tracer: Any = DynamicJaxprTracer
except (ImportError, AttributeError):  # pragma: no cover  (another version of JAX)
    _Tracer = None


def iterated_by(iterate: Callable[[Iterator[Any]], Iterator[Any]], array: Any) -> Any:
    """Returns ``array`` as another object, over whose elements ``for`` goes as ``iterate`` says.

    JAX unrolls a loop over a traced array without a word. Where this version of JAX has no such tracers,
    or has the array in another form, it does so still.

    Args:
        iterate: From an iterator over the elements to the one that a loop gets.
        array: What is traced.
    """
    if _Tracer is None or type(array) is not _Tracer:
        return array
    made = another_object(array, _iterated_type())
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
