"""``batch``: elements stacked into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.checks import at_least
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream, rows_or_zero
from stratagem._src.data.structure import map_structure

__all__ = ["Batch", "num_batches"]


def num_batches(num_elements: int, sizes: tuple[int, ...], drop_remainder: bool) -> int:
    """Returns the number of batches for batch sizes that cycle through ``sizes``."""
    cycles, left = divmod(num_elements, sum(sizes))
    count = cycles * len(sizes)
    for size in sizes:
        if left <= 0 or (drop_remainder and left < size):
            break
        left -= size
        count += 1
    return count


class Batch(Node):
    """Elements stacked into batches, with sizes that cycle through the given ones."""

    batch_levels: int | None = 1

    _min_size = 1

    def __init__(self, source: Node, sizes: int | Sequence[int], drop_remainder: bool) -> None:
        self.inputs = (source,)
        if isinstance(sizes, Sequence) and not sizes:
            raise InvalidArgumentError("batch_size must not be an empty sequence.")
        listed = sizes if isinstance(sizes, Sequence) else (sizes,)
        self.sizes = tuple(at_least(self._min_size, "batch_size", size) for size in listed)
        self.drop_remainder = bool(drop_remainder)

    def cardinality(self) -> int:
        """Returns the number of batches."""
        size = self.inputs[0].cardinality()
        return num_batches(size, self.sizes, self.drop_remainder) if known(size) else size

    def num_rows(self) -> int:
        """Returns the total number of rows in all batches."""
        rows = self.inputs[0].cardinality()
        if not known(rows) or not self.drop_remainder:
            return rows
        cycles, last = divmod(self.cardinality(), len(self.sizes))
        return cycles * sum(self.sizes) + sum(self.sizes[:last])

    def _compute_spec(self) -> Any:
        fixed = len(set(self.sizes)) == 1 and (self.drop_remainder or self._has_only_full_batches())
        size = self.sizes[0] if fixed else None
        return map_structure(lambda spec: spec.batched(size), self.inputs[0].element_spec)

    def _has_only_full_batches(self) -> bool:
        """Returns whether the input is known to leave no remainder."""
        return False

    def _empty_batch(self) -> Any:
        """Returns an empty batch, for a size of 0."""
        raise NotImplementedError

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        source = self.inputs[0].open(run, epoch)
        return _BatchStream(source, self.sizes, self.drop_remainder, self._empty_batch)


class _BatchStream(UnaryStream):
    def __init__(
        self,
        source: Stream,
        sizes: tuple[int, ...],
        drop_remainder: bool,
        empty_batch: Callable[[], Any],
    ) -> None:
        super().__init__(source)
        self._sizes = sizes
        self._empty_batch = empty_batch
        self._drop_remainder = drop_remainder
        self._turn = 0
        self._was_short = False

    @property
    def uniform(self) -> bool:
        return False

    def _next_size(self) -> int:
        size = self._sizes[self._turn]
        self._turn = (self._turn + 1) % len(self._sizes)
        return size

    def __next__(self) -> Any:
        size = self._next_size()
        if size == 0 and not self._was_short:
            return self._empty_batch()
        rows = self._source.next_rows(size) if size else None
        if 0 in self._sizes and rows_or_zero(rows) < size:
            self._was_short = True
        if rows is None or (self._drop_remainder and rows_or_zero(rows) < size):
            raise StopIteration
        return rows

    def skip(self, count: int) -> int:
        for skipped in range(count):
            size = self._next_size()
            found = self._source.skip(size)
            if (found == 0 and (size > 0 or self._was_short)) or (
                self._drop_remainder and found < size
            ):
                return skipped
            self._was_short = found < size
        return count

    def get_state(self) -> State:
        return {"turn": self._turn, "was_short": self._was_short, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._turn = state["turn"]
        self._was_short = state["was_short"]
        self._source.set_state(state["input"])
