"""``counter``: an infinite arithmetic sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.tensor_spec import TensorSpec, as_dtype

__all__ = ["Counter"]

_BLOCK = 1 << 16


class Counter(Node):
    """``start``, ``start + step``, ``start + step + step``, ... in the arithmetic of ``dtype``."""

    def __init__(self, start: ArrayLike, step: ArrayLike, dtype: DTypeLike) -> None:
        self._dtype = as_dtype(dtype)
        if self._dtype.kind in "OMmbc":
            raise InvalidArgumentError(f"counter counts integers or floats, got dtype={dtype!r}.")
        self._start = self._number("start", start)
        self._step = self._number("step", step)
        self._spec = TensorSpec((), self._dtype)

    def _number(self, name: str, value: ArrayLike) -> Any:
        number = np.asarray(value)
        converted = number.astype(self._dtype)
        is_exact = self._dtype.kind not in "iu" or np.array_equal(converted, number)
        if number.shape != () or not is_exact:
            raise InvalidArgumentError(f"{name} must be one {self._dtype}, got {value!r}.")
        return converted[()]

    def cardinality(self) -> int:
        """Returns infinite."""
        return INFINITE_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _CounterStream(self._start, self._step)


class _CounterStream(Stream):
    def __init__(self, start: ArrayLike, step: ArrayLike) -> None:
        self._next = start
        self._step = step

    @property
    def uniform(self) -> bool:
        return True

    def __next__(self) -> Any:
        return self.next_rows(1)[0]

    def next_rows(self, count: int) -> Any:
        # Adds one by one: with floats, start + i * step would round differently.
        terms = np.full(count + 1, self._step)
        terms[0] = self._next
        numbers = np.add.accumulate(terms, dtype=terms.dtype)
        self._next = numbers[-1]
        return numbers[:-1]

    def skip(self, count: int) -> int:
        for start in range(0, count, _BLOCK):
            self.next_rows(min(_BLOCK, count - start))
        return count

    def get_state(self) -> State:
        return self._next.item()

    def set_state(self, state: State) -> None:
        self._next = type(self._step)(state)
