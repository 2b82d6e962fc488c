"""``.numpy()`` for the elements of a dataset, which are NumPy's arrays and scalars and bytes already.

Programs written for TensorFlow call it on every element. NumPy's own classes take no methods, so elements
are handed out as views of classes that have it; what is computed from them is of NumPy's own classes again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stratagem._src.data.iterator import DatasetIterator
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.structure import map_structure

__all__ = ["ElementIterator", "as_element"]


class ElementIterator(DatasetIterator):
    """An iteration whose elements have ``.numpy()``; ``DatasetIterator`` itself gives them without."""

    def _elements_of(self, stream: Stream) -> Iterator[Any]:
        return map(as_element, stream.elements())


def as_element(value: Any) -> Any:
    """Returns an element with ``.numpy()`` on all that is in it.

    >>> import numpy as np
    >>> pair = as_element((np.zeros(2), np.int64(3)))
    >>> pair[0].numpy(), pair[1].numpy()
    (array([0., 0.]), np.int64(3))
    """
    make = _makers.get(type(value))
    return _as_other_element(value) if make is None else make(value)


def _as_other_element(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _as_scalar(value)
    return value if value is None else _as_element_of_container(value)


def _as_element_of_container(value: Any) -> Any:
    def with_method(leaf: Any) -> Any:
        has_class = isinstance(leaf, (np.ndarray, np.generic, bytes))
        return as_element(leaf) if has_class and not hasattr(leaf, "numpy") else leaf

    return map_structure(with_method, value)


class ElementArray(np.ndarray[Any, Any]):
    """A NumPy array with ``.numpy()``."""

    def numpy(self) -> Any:
        """Returns a copy, as one of NumPy's own arrays, or as a scalar if there are no dimensions."""
        return np.array(self)[()]

    def __array_wrap__(
        self, array: np.ndarray[Any, Any], context: Any = None, return_scalar: bool = False
    ) -> Any:
        """Returns the result of an operation as NumPy returns its own."""
        return array[()] if return_scalar else array.view(np.ndarray)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


class ElementBytes(np.bytes_):  # type: ignore[misc]  # final to NumPy's stubs only
    """A string of bytes with ``.numpy()``.

    Derived from NumPy's own bytes, for an array of instances of another class derived from ``bytes`` has
    the numbers that they spell.
    """

    __slots__ = ()

    def numpy(self) -> bytes:
        """Returns the bytes."""
        return bytes(self)

    def __reduce__(self) -> Any:
        return bytes, (bytes(self),)

    def __repr__(self) -> str:
        return bytes.__repr__(self)


# Scalars whose class does not say all of their type.
_WITH_UNITS = (np.datetime64, np.timedelta64, np.void)

# By class, for this is done with every element: one question, and most answers are functions in C.
_makers: dict[type, Callable[[Any], Any]] = {
    bytes: ElementBytes,
    np.bytes_: ElementBytes,
    np.ndarray: operator.methodcaller("view", ElementArray),
    tuple: lambda parts: tuple([as_element(part) for part in parts]),
    dict: lambda parts: {key: as_element(part) for key, part in parts.items()},
}


def _as_scalar(value: Any) -> Any:
    """Returns a scalar of a class that has no counterpart yet with ``.numpy()``."""
    cls = type(value)

    def numpy(self: Any) -> Any:
        """Returns the scalar, of NumPy's own class."""
        return cls(self)

    methods = {"__slots__": (), "numpy": numpy, "__repr__": lambda self: repr(cls(self))}
    try:
        derived = type(f"Element{cls.__name__}", (cls,), methods)
        made = derived(value)
    except (TypeError, ValueError):
        made = value
    if not hasattr(made, "numpy") or made.dtype != value.dtype or cls in _WITH_UNITS:
        return np.asarray(value).view(ElementArray)  # there are only two booleans, for example
    _makers[cls] = derived
    return made
