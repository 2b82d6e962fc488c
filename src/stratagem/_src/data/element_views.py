"""``.numpy()`` on the elements of a dataset, which are NumPy arrays, NumPy scalars and bytes.

Programs written for TensorFlow call it on every element. Methods cannot be added to NumPy's own classes, so
an iterator returns views of subclasses that have the method. Results computed from them are plain NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stratagem._src.core.types import Element, Leaf
from stratagem._src.data.iterator import DatasetIterator
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.structure import map_structure

__all__ = ["Cardinality", "ElementIterator", "add_numpy_method"]


class Cardinality(int):
    """A number of elements, with ``.numpy()``.

    >>> Cardinality(3), Cardinality(3).numpy()
    (3, np.int64(3))
    """

    __slots__ = ()

    def numpy(self) -> np.int64:
        """Returns the number as NumPy's."""
        return np.int64(self)


class ElementIterator(DatasetIterator):
    """A ``DatasetIterator`` whose elements have ``.numpy()``."""

    def _elements_of(self, stream: Stream) -> Iterator[Any]:
        return map(add_numpy_method, stream.elements())


def add_numpy_method(value: Element) -> Any:
    """Returns an element whose leaves have ``.numpy()``.

    >>> import numpy as np
    >>> pair = add_numpy_method((np.zeros(2), np.int64(3)))
    >>> pair[0].numpy(), pair[1].numpy()
    (array([0., 0.]), np.int64(3))
    """
    make = _makers.get(type(value))
    return _add_to_unlisted(value) if make is None else make(value)


def _add_to_unlisted(value: Element) -> Any:
    if isinstance(value, np.generic):
        return _add_to_scalar(value)
    return value if value is None else _add_to_leaves(value)


def _add_to_leaves(value: Element) -> Any:
    def with_method(leaf: Leaf) -> Any:
        has_class = isinstance(leaf, (np.ndarray, np.generic, bytes))
        return add_numpy_method(leaf) if has_class and not hasattr(leaf, "numpy") else leaf

    return map_structure(with_method, value)


class ElementArray(np.ndarray[Any, Any]):
    """A NumPy array with ``.numpy()``."""

    def numpy(self) -> Any:
        """Returns a copy as a plain NumPy array, or as a scalar for zero dimensions."""
        return np.array(self)[()]

    def __array_wrap__(
        self, array: np.ndarray[Any, Any], context: Any = None, return_scalar: bool = False
    ) -> Any:
        """Returns the result of an operation as a plain NumPy array or scalar."""
        return array[()] if return_scalar else array.view(np.ndarray)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


class ElementBytes(np.bytes_):  # type: ignore[misc]  # final to NumPy's stubs only
    """A byte string with ``.numpy()``.

    It derives from ``np.bytes_``: NumPy parses instances of other subclasses of ``bytes`` as numbers when
    it builds an array from them.
    """

    __slots__ = ()

    def numpy(self) -> bytes:
        """Returns the bytes."""
        return bytes(self)

    def __reduce__(self) -> Any:
        return bytes, (bytes(self),)

    def __repr__(self) -> str:
        return bytes.__repr__(self)


# Scalar classes that do not determine the dtype: it has a unit, or fields.
_WITH_UNITS = (np.datetime64, np.timedelta64, np.void)

# Looked up by class, because this runs for every element: a dict lookup, and most entries are C functions.
_makers: dict[type, Callable[[Any], Any]] = {
    bytes: ElementBytes,
    np.bytes_: ElementBytes,
    np.ndarray: operator.methodcaller("view", ElementArray),
    tuple: lambda parts: tuple([add_numpy_method(part) for part in parts]),
    dict: lambda parts: {key: add_numpy_method(part) for key, part in parts.items()},
}


def _add_to_scalar(value: Element) -> Any:
    """Returns a scalar with ``.numpy()``, and registers a subclass for its class."""
    cls = type(value)

    def numpy(self: Any) -> Any:
        """Returns the scalar as its plain NumPy class."""
        return cls(self)

    methods = {"__slots__": (), "numpy": numpy, "__repr__": lambda self: repr(cls(self))}
    try:
        derived = type(f"Element{cls.__name__}", (cls,), methods)
        made = derived(value)
    except (TypeError, ValueError):
        made = value
    if not hasattr(made, "numpy") or made.dtype != value.dtype or cls in _WITH_UNITS:
        return np.asarray(value).view(ElementArray)  # np.bool, for example, cannot be subclassed
    _makers[cls] = derived
    return made
