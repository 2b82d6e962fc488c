"""``shuffle``: a random order, drawn from a buffer of bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import DataLossError
from stratagem._src.data.checks import as_integer, at_least
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.random_access import Indices
from stratagem._src.data.plan.resume_points import ResumePoints, shrunk_input_message
from stratagem._src.data.plan.run import Run, Seed, Seeded
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.transforms.shuffle_order import BLOCK, ShuffleOrder, emit

__all__ = ["Shuffle"]


class Shuffle(Seeded):
    """The elements in the order of a shuffle buffer."""

    batch_levels = 0

    def __init__(
        self, source: Node, buffer_size: int, seed: int | None, reshuffle_each_iteration: bool
    ) -> None:
        self.inputs = (source,)
        self._buffer_size = at_least(1, "buffer_size", buffer_size)
        number = None if seed is None else as_integer("seed", seed)
        self.seed = Seed(number, reshuffle_each_iteration)
        self._on_row_numbers = False

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def on_row_numbers(self, order: Node, depth: int) -> Node:
        """Returns the shuffle over row numbers, which reads them in blocks."""
        node = self.with_inputs((order,))
        node._on_row_numbers = depth == 0
        return node

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        order = ShuffleOrder(run.key(self.seed, epoch), self._buffer_size)
        kind = _RowNumberShuffleStream if self._on_row_numbers else _ShuffleStream
        return kind(self.inputs[0].open(run, epoch), order, self._buffer_size)


class _RowNumberShuffleStream(UnaryStream):
    """Yields the same order as ``_ShuffleStream``, one block of row numbers at a time."""

    def __init__(self, source: Stream, order: ShuffleOrder, buffer_size: int) -> None:
        super().__init__(source)
        self._order = order
        self._buffer_size = buffer_size
        self._slots: Indices | None = None
        self._block = 0
        self._ready = np.empty(0, np.int64)
        self._position = 0
        self._given = 0
        self._ended = False

    def _refill(self) -> bool:
        while self._position >= len(self._ready):
            if self._ended:
                return False
            if self._slots is None:
                self._slots = self._read(self._buffer_size).copy()
                self._ready = np.empty(0, np.int64)
                self._ended = len(self._slots) < self._buffer_size
            else:
                incoming = self._read(BLOCK)
                picks = self._order.picks(self._block)[: len(incoming)]
                self._block += 1
                self._ready = emit(self._slots, picks, incoming)
                self._ended = len(incoming) < BLOCK
            self._position = 0
            if self._ended:
                last = self._slots[self._order.drain(len(self._slots))]
                self._ready = np.concatenate([self._ready, last])
        return True

    def _read(self, count: int) -> Indices:
        rows = self._source.next_rows(count)
        return np.empty(0, np.int64) if rows is None else rows

    def __next__(self) -> Any:
        if not self._refill():
            raise StopIteration
        self._position += 1
        self._given += 1
        return self._ready[self._position - 1]

    def next_rows(self, count: int) -> Indices | None:
        parts = []
        while count and self._refill():
            part = self._ready[self._position : self._position + count]
            parts.append(part)
            self._position += len(part)
            self._given += len(part)
            count -= len(part)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and self._refill():
            step = min(count - skipped, len(self._ready) - self._position)
            self._position += step
            skipped += step
        self._given += skipped
        return skipped

    def get_state(self) -> State:
        return self._given

    def set_state(self, state: State) -> None:
        self.skip(state)


class _ShuffleStream(UnaryStream):
    """Shuffles with a buffer of elements.

    The state does not contain the buffer. The indices of its elements follow from the number of elements
    returned so far, and the elements are read again from the input.
    """

    def __init__(self, source: Stream, order: ShuffleOrder, buffer_size: int) -> None:
        super().__init__(source)
        self._order = order
        self._buffer_size = buffer_size
        self._resume_points = ResumePoints(source, buffer_size)
        self._numbers: list[int] = []
        self._elements: list[Any] = []
        self._given = 0
        self._draining = False
        self._picks: list[int] = []

    def _read(self) -> Any:
        if self._resume_points.read % self._buffer_size == 0 and self._numbers:
            self._resume_points.discard_before(min(self._numbers))
        self._resume_points.before_read()
        try:
            return next(self._source)
        except StopIteration:
            self._resume_points.read -= 1
            raise

    def _next_pick(self) -> int:
        block, position = divmod(self._given, BLOCK)
        if position == 0 or not self._picks:
            self._picks = self._order.picks(block).tolist()
        return self._picks[position]

    def _start_draining(self) -> None:
        self._draining = True
        order = self._order.drain(len(self._elements))[::-1]
        self._elements = [self._elements[slot] for slot in order]
        self._numbers = [self._numbers[slot] for slot in order]

    def __next__(self) -> Any:
        while not self._draining:
            try:
                incoming = self._read()
            except StopIteration:
                self._start_draining()
                break
            number = self._resume_points.read - 1
            if len(self._elements) < self._buffer_size:
                self._elements.append(incoming)
                self._numbers.append(number)
                continue
            slot = self._next_pick()
            element, self._elements[slot] = self._elements[slot], incoming
            self._numbers[slot] = number
            self._given += 1
            return element
        if not self._elements:
            raise StopIteration
        self._given += 1
        self._numbers.pop()
        return self._elements.pop()

    def get_state(self) -> State:
        oldest = min(self._numbers, default=self._resume_points.read)
        return {
            "given": self._given,
            "read": self._resume_points.read,
            "draining": self._draining,
            "input": self._resume_points.get_state(oldest),
        }

    def set_state(self, state: State) -> None:
        read = state["read"]
        self._given, self._draining = state["given"], state["draining"]
        if read <= self._buffer_size:
            numbers = np.arange(read)
        else:
            numbers = self._order.slots_after(read - self._buffer_size)
        if self._draining:
            drained = self._given - max(0, read - self._buffer_size)
            numbers = numbers[self._order.drain(len(numbers))][drained:][::-1]
        self._numbers = numbers.tolist()
        self._resume_points.resume(state["input"], min(self._numbers, default=read))
        wanted = set(self._numbers)
        found = {}
        while self._resume_points.read < read:
            try:
                element = self._read()
            except StopIteration:
                raise DataLossError(shrunk_input_message(read)) from None
            if self._resume_points.read - 1 in wanted:
                found[self._resume_points.read - 1] = element
        self._elements = [found[number] for number in self._numbers]
