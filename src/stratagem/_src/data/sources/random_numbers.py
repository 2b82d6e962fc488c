"""``random``: an infinite sequence of pseudorandom integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.data.checks import as_integer
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.node import Epoch
from stratagem._src.data.plan.rows import concat_rows
from stratagem._src.data.plan.run import Key, Run, Seed, Seeded
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["RandomBlocks", "RandomNumbers"]

_BLOCK = 4096


class RandomNumbers(Seeded):
    """Uniform integers from 0 to 2**32 - 1.

    Args:
        seed: Makes the numbers reproducible.
        rerandomize_each_iteration: Whether each iteration and each epoch yields different numbers.
    """

    def __init__(self, seed: int | None, rerandomize_each_iteration: bool | None) -> None:
        number = None if seed is None else as_integer("seed", seed)
        self.seed = Seed(number, bool(rerandomize_each_iteration))
        self._spec = TensorSpec((), np.int64)

    def cardinality(self) -> int:
        """Returns ``INFINITE_CARDINALITY``."""
        return INFINITE_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _RandomStream(RandomBlocks(run.key(self.seed, epoch)))


class RandomBlocks:
    """Counter-based random numbers: each can be computed directly from its index.

    Args:
        key: Integers that seed them.
    """

    def __init__(self, key: Key) -> None:
        self._key = [number % 2**64 for number in key]
        self._number = -1
        self._block = np.empty(0, np.int64)

    def at(self, place: int, count: int = 1) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns up to ``count`` numbers from index ``place`` on, at least one."""
        number, start = divmod(place, _BLOCK)
        if number != self._number:
            generator = np.random.default_rng([*self._key, number])
            self._block = generator.integers(2**32, size=_BLOCK)
            self._number = number
        return self._block[start : start + count]


class _RandomStream(Stream):
    def __init__(self, blocks: RandomBlocks) -> None:
        self._blocks = blocks
        self._next = 0

    @property
    def uniform(self) -> bool:
        return True

    def __next__(self) -> Any:
        self._next += 1
        return self._blocks.at(self._next - 1)[0]

    def next_rows(self, count: int) -> Any:
        parts = []
        while count:
            part = self._blocks.at(self._next, count)
            parts.append(part)
            self._next += len(part)
            count -= len(part)
        return concat_rows(parts)

    def skip(self, count: int) -> int:
        self._next += count
        return count

    def get_state(self) -> State:
        return self._next

    def set_state(self, state: State) -> None:
        self._next = state
