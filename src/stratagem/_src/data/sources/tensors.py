"""``from_tensors``, ``from_tensor_slices`` and ``range``: sources in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import DTypeLike, ElementSpec, PyTree
from stratagem._src.data.checks import as_integer
from stratagem._src.data.conversion import owned_array
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.random_access import ArrayAccess, Indices, RandomAccess
from stratagem._src.data.plan.rows import num_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.structure import flatten, map_structure
from stratagem._src.data.tensor_spec import TensorSpec, as_dtype

__all__ = ["InMemory", "Range", "TensorSlices", "Tensors"]


class InMemory(Node):
    """A source with random access."""

    def __init__(self, table: RandomAccess, element_spec: ElementSpec) -> None:
        self._access = table
        self._spec = element_spec

    def describe(self) -> str:
        """Returns the name with the number of rows, which is part of the identity of the source."""
        return f"{super().describe()}[{len(self._access)}]"

    def cardinality(self) -> int:
        """Returns the number of rows."""
        return len(self._access)

    def random_access(self) -> RandomAccess:
        """Returns the table."""
        return self._access

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass over the rows in order."""
        return lower(self).open(run, epoch)


class TensorSlices(InMemory):
    """The rows of a nest of arrays."""

    def __init__(self, tensors: PyTree) -> None:
        arrays = map_structure(owned_array, tensors)
        try:
            length = num_rows(arrays)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"from_tensor_slices slices arrays along their first dimension. {error}"
            ) from None
        specs = map_structure(lambda array: TensorSpec(array.shape[1:], array.dtype), arrays)
        super().__init__(ArrayAccess(arrays, length), specs)


class Tensors(InMemory):
    """One element."""

    def __init__(self, tensors: PyTree) -> None:
        arrays = map_structure(owned_array, tensors)
        if not flatten(arrays):
            raise InvalidArgumentError("An element needs at least one component, got none.")
        table = map_structure(lambda array: array[np.newaxis], arrays)
        specs = map_structure(lambda array: TensorSpec(array.shape, array.dtype), arrays)
        super().__init__(ArrayAccess(table, 1), specs)


class Range(InMemory):
    """The integers of Python's ``range``."""

    def __init__(self, *args: int, output_type: DTypeLike = np.int64) -> None:
        numbers = range(*(as_integer("range() argument", arg) for arg in args))
        dtype = as_dtype(output_type)
        super().__init__(_RangeAccess(numbers, dtype), TensorSpec((), dtype))


class _RangeAccess(RandomAccess):
    def __init__(self, numbers: range, dtype: np.dtype[Any]) -> None:
        self._numbers = numbers
        self._dtype = dtype

    def __len__(self) -> int:
        return len(self._numbers)

    def gather(self, indices: Indices) -> Any:
        numbers = indices * self._numbers.step + self._numbers.start
        return numbers.astype(self._dtype, copy=False)

    def element(self, index: int) -> Any:
        return self._dtype.type(self._numbers[index])
