"""``interleave`` and ``flat_map``: map each element to a dataset, and interleave these datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stratagem._src.core.errors import DataLossError
from stratagem._src.core.types import Element
from stratagem._src.data.checks import at_least, parallelism
from stratagem._src.data.options import AUTOTUNE, UNKNOWN_CARDINALITY
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.peek import first_element
from stratagem._src.data.plan.rows import concat_rows, num_rows
from stratagem._src.data.plan.run import Run, Seed, Seeded
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.transforms.prefetch import PrefetchStream

__all__ = ["AUTOMATIC_CYCLE_LENGTH", "Interleave"]

AUTOMATIC_CYCLE_LENGTH = 4
_READ_AHEAD = 16


class Interleave(Seeded):
    """``block_length`` elements at a time from each of ``cycle_length`` datasets.

    Args:
        source: The plan whose elements are mapped to datasets.
        make_plan: Returns the plan for an element.
        cycle_length: How many datasets are open at a time.
        block_length: How many consecutive elements each one yields per turn.
        num_parallel_calls: How many of them are read in background threads.
    """

    def __init__(
        self,
        source: Node,
        make_plan: Callable[[Any], Node],
        cycle_length: int,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
    ) -> None:
        self.inputs = (source,)
        self.seed = Seed(None)
        self.make_plan = make_plan
        automatic = cycle_length == AUTOTUNE
        self._cycle_length = (
            AUTOMATIC_CYCLE_LENGTH if automatic else at_least(1, "cycle_length", cycle_length)
        )
        self._block_length = at_least(1, "block_length", block_length)
        threads = parallelism("num_parallel_calls", num_parallel_calls)
        self._num_threads = self._cycle_length if threads == AUTOTUNE else threads or 0

    def _compute_spec(self) -> Any:
        return self.first_plan().element_spec

    def first_plan(self) -> Node:
        """Returns the plan for the first element."""
        return self.make_plan(first_element(self.inputs[0], "flat_map or interleave"))

    def cardinality(self) -> int:
        """Returns unknown, unless the input is empty."""
        return 0 if self.inputs[0].cardinality() == 0 else UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _InterleaveStream(
            lambda: self.inputs[0].open(run, epoch),
            self.make_plan,
            run,
            run.key(self.seed, epoch),
            self._cycle_length,
            self._block_length,
            self._num_threads,
        )


class _Open(NamedTuple):
    """An open dataset in the cycle, and what is needed to open it again.

    Attributes:
        before: The state of the input before the element that the dataset was created from.
        number: The index of the dataset, which seeds its random choices.
        stream: The pass over the dataset.
    """

    before: State
    number: int
    stream: Stream


class _InterleaveStream(Stream):
    def __init__(
        self,
        open_source: Callable[[], Stream],
        make_plan: Callable[[Any], Node],
        run: Run,
        key: list[int],
        cycle_length: int,
        block_length: int,
        num_threads: int,
    ) -> None:
        self._open_source = open_source
        self._source = open_source()
        self._make_plan = make_plan
        self._run = run
        self._key = key
        self._num_started = 0
        self._block_length = block_length
        self._num_threads = num_threads
        self._cycle: list[_Open | None] = [None] * cycle_length
        self._turn = 0
        self._given_in_turn = 0
        self._source_ended = False

    def _start(self, element: Element, before: State, number: int) -> _Open:
        plan = self._make_plan(element)
        run = Run.within(plan, self._run, self._key, number)
        stream = lower(plan).open(run, ())
        if self._turn < self._num_threads:
            stream = PrefetchStream(stream, max(_READ_AHEAD, self._block_length), run)
        return _Open(before, number, stream)

    def _next_turn(self) -> None:
        self._turn = (self._turn + 1) % len(self._cycle)
        self._given_in_turn = 0

    def __next__(self) -> Any:
        while not self._source_ended or any(self._cycle):
            current = self._cycle[self._turn]
            if current is None:
                self._fill_turn()
                continue
            try:
                element = next(current.stream)
            except StopIteration:
                self._end_turn(current)
                continue
            if len(self._cycle) > 1:
                self._given_in_turn += 1
                if self._given_in_turn == self._block_length:
                    self._next_turn()
            return element
        raise StopIteration

    def elements(self) -> Iterator[Any]:
        if len(self._cycle) > 1:
            return self
        given: _Open | None = None

        def next_part() -> Iterator[Any] | None:
            nonlocal given
            if given is not None and given is self._cycle[0]:
                self._end_turn(given)
            given = self._only()
            return None if given is None else given.stream.elements()

        return itertools.chain.from_iterable(iter(next_part, None))

    def next_rows(self, count: int) -> Any | None:
        if len(self._cycle) > 1:
            return super().next_rows(count)
        parts = []
        while count and (current := self._only()) is not None:
            rows = current.stream.next_rows(count)
            if rows is None:
                self._end_turn(current)
                continue
            parts.append(rows)
            count -= num_rows(rows)
        return concat_rows(parts) if parts else None

    def skip(self, count: int) -> int:
        if len(self._cycle) > 1:
            return super().skip(count)
        skipped = 0
        while skipped < count and (current := self._only()) is not None:
            now = current.stream.skip(count - skipped)
            skipped += now
            if now == 0:
                self._end_turn(current)
        return skipped

    def _only(self) -> _Open | None:
        """Returns the open dataset of a cycle of length one, ``None`` at the end."""
        while self._cycle[0] is None and not self._source_ended:
            self._fill_turn()
        return self._cycle[0]

    def _end_turn(self, current: _Open) -> None:
        current.stream.close()
        self._cycle[self._turn] = None
        self._next_turn()

    def _fill_turn(self) -> None:
        if self._source_ended:
            self._next_turn()
            return
        before = self._source.get_state()
        try:
            element = next(self._source)
        except StopIteration:
            self._source_ended = True
            return
        self._cycle[self._turn] = self._start(element, before, self._num_started)
        self._num_started += 1

    def get_state(self) -> State:
        return {
            "input": self._source.get_state(),
            "ended": self._source_ended,
            "started": self._num_started,
            "turn": self._turn,
            "given": self._given_in_turn,
            "cycle": [
                current
                and {
                    "before": current.before,
                    "number": current.number,
                    "inner": current.stream.get_state(),
                }
                for current in self._cycle
            ],
        }

    def set_state(self, state: State) -> None:
        for turn, saved in enumerate(state["cycle"]):
            if saved is None:
                continue
            self._turn = turn
            source = self._open_source()
            source.set_state(saved["before"])
            element = next(source, None)
            source.close()
            if element is None:
                raise DataLossError("The input lost elements since the iterator was saved.")
            current = self._start(element, saved["before"], saved["number"])
            current.stream.set_state(saved["inner"])
            self._cycle[turn] = current
        self._source.set_state(state["input"])
        self._source_ended = state["ended"]
        self._num_started = state["started"]
        self._turn = state["turn"]
        self._given_in_turn = state["given"]

    def skip_past_error(self) -> None:
        self._source.skip_past_error()
        for current in self._cycle:
            if current is not None:
                current.stream.skip_past_error()

    def close(self) -> None:
        self._source.close()
        for current in self._cycle:
            if current is not None:
                current.stream.close()
