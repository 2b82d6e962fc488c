"""``map``: applies a function to every element."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.checks import parallelism
from stratagem._src.data.dataset_spec import any_size, spec_of
from stratagem._src.data.options import AUTOTUNE
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.peek import first_element
from stratagem._src.data.plan.random_access import Indices, RandomAccess
from stratagem._src.data.plan.resume_points import ResumePoints
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.structure import map_structure
from stratagem._src.data.transforms.call_pool import CallFuture, CallPool
from stratagem._src.data.transforms.element_function import ElementFunction

__all__ = ["Map"]


class Map(Node):
    """Applies ``fn`` to every element."""

    def __init__(
        self, source: Node, fn: Callable[..., Any], num_parallel_calls: int | None
    ) -> None:
        self.inputs = (source,)
        self._function = ElementFunction(fn)
        self._num_parallel_calls = parallelism("num_parallel_calls", num_parallel_calls)

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def _compute_spec(self) -> Any:
        below = self.inputs[0].element_spec
        try:
            element = first_element(self.inputs[0], "map")
        except InvalidArgumentError:
            if not self._function.traceable(below):
                raise
            return self._function.traced_spec(below)
        specs = map_structure(spec_of, self._function(element))
        if self._function.traceable(below):
            return specs
        return map_structure(any_size, specs)

    def random_access(self) -> RandomAccess | None:
        """Returns the table of mapped rows, if the input is a table."""
        below = self.inputs[0].random_access()
        return None if below is None else self.over_table(below)

    def over_table(self, table: RandomAccess) -> RandomAccess | None:
        """Returns the table of mapped rows, if the function is pure, so that call order does not matter."""
        if len(table) == 0 or not self._function.traceable(self.inputs[0].element_spec):
            return None
        return _MapAccess(table, self._function, self._num_parallel_calls is not None)

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        source = self.inputs[0].open(run, epoch)
        if self._num_parallel_calls is not None:
            return _ParallelMapStream(source, self._function, self._num_parallel_calls, run)
        return _MapStream(source, self._function)


class _MapAccess(RandomAccess):
    def __init__(self, below: RandomAccess, function: ElementFunction, parallel: bool) -> None:
        self._below = below
        self._function = function
        self.read_ahead = parallel or below.read_ahead

    def __len__(self) -> int:
        return len(self._below)

    def gather(self, indices: Indices) -> Any:
        return self._function.rows(self._below.gather(indices))

    def element(self, index: int) -> Any:
        return self._function(self._below.element(index))


class _MapStream(UnaryStream):
    def __init__(self, source: Stream, function: ElementFunction) -> None:
        super().__init__(source)
        self._function = function

    @property
    def uniform(self) -> bool:
        return False

    def __next__(self) -> Any:
        return self._function(next(self._source))

    def next_rows(self, count: int) -> Any | None:
        if not self._source.uniform:
            return super().next_rows(count)
        rows = self._source.next_rows(count)
        return None if rows is None else self._function.rows(rows)

    def skip(self, count: int) -> int:
        return self._source.skip(count)


class _ParallelMapStream(UnaryStream):
    """Calls ``function`` on the next elements in background threads, ahead of the consumer."""

    def __init__(
        self, source: Stream, function: Callable[[Any], Any], num_parallel_calls: int, run: Run
    ) -> None:
        super().__init__(source)
        automatic = num_parallel_calls == AUTOTUNE
        self._window = max(2, os.cpu_count() or 1) if automatic else num_parallel_calls
        self._calls = CallPool(function, self._window)
        self._pending: deque[CallFuture] = deque()
        self._resume_points = ResumePoints(source, self._window)
        self._source_failed = False
        self._given = 0
        run.register(self)

    @property
    def uniform(self) -> bool:
        """Whether the results are known to be uniform: never."""
        return False

    def _fill(self) -> None:
        self._resume_points.discard_before(self._given)
        while len(self._pending) <= self._window:
            self._resume_points.before_read()
            try:
                element = next(self._source)
            except StopIteration:
                self._resume_points.read -= 1
                return
            except BaseException as error:
                # The error is raised after the results that are still pending.
                self._pending.append(CallFuture.failed(error))
                self._source_failed = True
                return
            self._pending.append(self._calls.submit(element))

    def __next__(self) -> Any:
        if not self._source_failed:
            self._fill()
        if not self._pending:
            raise StopIteration
        self._given += 1
        call = self._pending.popleft()
        if not self._pending:
            self._source_failed = False
        return call.wait()

    def skip_past_error(self) -> None:
        """Makes the input skip what it failed at, once all results before it were returned."""
        if not self._pending:
            self._source.skip_past_error()
            self._resume_points.clear()

    def get_state(self) -> State:
        """Returns the state of the input before the first result that was not returned yet."""
        return {"given": self._given, "input": self._resume_points.get_state(self._given)}

    def set_state(self, state: State) -> None:
        """Resumes at that result."""
        self._given = state["given"]
        self._resume_points.resume(state["input"], self._given)

    def pause(self) -> None:
        """Stops the threads until the next result is requested."""
        self._calls.pause()

    def close(self) -> None:
        """Stops the threads when their current calls return, and closes the input."""
        self._calls.close()
        super().close()
