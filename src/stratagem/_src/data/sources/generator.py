"""``from_generator``: elements from a Python generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, Element, ElementSpec, PyTree
from stratagem._src.data.conversion import owned_array, owned_results, to_array
from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.structure import describe, flatten, map_structure, pack_like
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["FromGenerator", "signature_of"]


def signature_of(output_signature: ElementSpec, output_types: PyTree, output_shapes: PyTree) -> Any:
    """Returns the element spec that the arguments of ``from_generator`` describe.

    Raises:
        InvalidArgumentError: Unless exactly one of the two forms is given.
    """
    if (output_signature is None) == (output_types is None):
        raise InvalidArgumentError(
            "from_generator needs either output_signature or output_types. "
            "Use output_signature=TensorSpec(shape=(), dtype='int32'), or a nest of them."
        )
    if output_types is not None:
        if output_shapes is None:
            return map_structure(lambda dtype: TensorSpec(None, dtype), output_types)
        shapes = _shapes_along(output_types, output_shapes)
        types = flatten(output_types)
        specs = [TensorSpec(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
        return pack_like(output_types, specs)
    for spec in flatten(output_signature):
        if not isinstance(spec, TensorSpec):
            raise InvalidArgumentError(
                f"output_signature must be a nest of TensorSpec, got {spec!r}."
            )
    return output_signature


def _shapes_along(types: PyTree, shapes: PyTree) -> list[Any]:
    if isinstance(types, tuple) and isinstance(shapes, tuple) and len(types) == len(shapes):
        pairs = zip(types, shapes, strict=True)
        return [leaf for kind, shape in pairs for leaf in _shapes_along(kind, shape)]
    if isinstance(types, dict) and isinstance(shapes, dict) and types.keys() == shapes.keys():
        return [leaf for key in sorted(types) for leaf in _shapes_along(types[key], shapes[key])]
    if isinstance(types, tuple | dict):
        raise InvalidArgumentError(
            f"output_shapes must have the structure of output_types, got {shapes!r} and {types!r}."
        )
    return [TensorShape(shapes)]


class FromGenerator(Node):
    """The elements of ``generator(*args)``, which is called for each pass."""

    def __init__(
        self, generator: Callable[..., Any], signature: ElementSpec, args: tuple[Any, ...]
    ) -> None:
        if not callable(generator):
            raise InvalidArgumentError(
                f"generator must be a function that returns an iterable, got {generator!r}."
            )
        self._generator = generator
        self._args = map_structure(_kept_argument, args)
        self._spec = signature

    def cardinality(self) -> int:
        """Returns unknown."""
        return UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Calls the generator."""
        return _GeneratorStream(lambda: iter(self._generator(*self._args)), self._spec)


class _GeneratorStream(Stream):
    def __init__(self, start: Callable[[], Iterator[Any]], signature: ElementSpec) -> None:
        self._start = start
        self._signature = signature
        self._elements: Iterator[Any] | None = None
        self._given = 0

    @property
    def uniform(self) -> bool:
        return all(spec.shape.is_fully_defined() for spec in flatten(self._signature))

    def _next_raw(self) -> Any:
        if self._elements is None:
            self._elements = self._start()
        element = next(self._elements)
        self._given += 1
        return element

    def __next__(self) -> Any:
        # A generator may reuse one buffer for all elements.
        return self._checked(owned_results.take(self._next_raw))

    def _checked(self, element: Element) -> Any:
        number = self._given - 1
        if isinstance(self._signature, tuple) and isinstance(element, list):
            element = tuple(element)
        try:
            return map_structure(
                lambda spec, value: _convert(spec, value, number), self._signature, element
            )
        except InvalidArgumentError as error:
            if describe(element) == describe(self._signature):
                raise
            raise InvalidArgumentError(
                f"Element {number} of the generator must have the structure "
                f"{describe(self._signature)}, got {describe(element)}."
            ) from error

    def skip(self, count: int) -> int:
        for skipped in range(count):
            try:
                self._next_raw()
            except StopIteration:
                return skipped
        return count

    def get_state(self) -> State:
        return self._given

    def set_state(self, state: State) -> None:
        self.skip(state)

    def close(self) -> None:
        close = getattr(self._elements, "close", None)
        # A generator that still runs in an abandoned thread is closed by that thread.
        if close is not None and not getattr(self._elements, "gi_running", False):
            close()


def _kept_argument(value: ArrayLike) -> Any:
    return owned_array(value) if isinstance(value, np.ndarray) else value


def _convert(spec: TensorSpec, value: ArrayLike, number: int) -> Any:
    array = to_array(value)
    if array.dtype != spec.dtype:
        array = _cast(array, spec, number)
    if not spec.is_compatible_with(array):
        raise InvalidArgumentError(
            f"Element {number} of the generator must match {spec}, got {TensorSpec.of(array)}."
        )
    return array[()] if array.ndim == 0 else array


def _cast(array: np.ndarray[Any, Any], spec: TensorSpec, number: int) -> np.ndarray[Any, Any]:
    """Casts the array to the declared dtype.

    Raises:
        InvalidArgumentError: If the cast would change a value; only rounding to a smaller float is
            allowed.
    """
    kinds = array.dtype.kind, spec.dtype.kind
    if "O" in kinds or (kinds[0] == "c" and kinds[1] != "c"):
        return array  # the caller reports the mismatch
    with np.errstate(all="ignore"):
        converted = array.astype(spec.dtype)
    if spec.dtype.kind == "b" and array.dtype.kind in "iu":
        same = True  # any nonzero number is True
    elif spec.dtype.kind in "biu":
        same = np.array_equal(converted, array)
    else:
        same = np.array_equal(np.isfinite(converted), np.isfinite(array))
    if not same:
        raise InvalidArgumentError(
            f"Element {number} of the generator does not fit {spec}: a cast would change its "
            f"{array.dtype.name} values. Yield values of that type, or declare another type."
        )
    return converted
