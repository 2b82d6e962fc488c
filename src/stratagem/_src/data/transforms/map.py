"""``map``: applies a function to every element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.checks import parallelism
from stratagem._src.data.dataset_spec import any_size, spec_of
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.peek import first_element
from stratagem._src.data.plan.random_access import Indices, RandomAccess
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream, UnaryStream
from stratagem._src.data.structure import map_structure
from stratagem._src.data.transforms.element_function import ElementFunction
from stratagem._src.data.transforms.parallel_map import ParallelMapStream

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
            return ParallelMapStream(source, self._function, self._num_parallel_calls, run)
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
