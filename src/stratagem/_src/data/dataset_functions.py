"""The methods of ``Dataset`` that call a user function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.data.dataset_base import DatasetBase, plan_of
from stratagem._src.data.options import AUTOTUNE
from stratagem._src.data.plan.node import Node
from stratagem._src.data.transforms.element_function import call_with
from stratagem._src.data.transforms.filter import Filter
from stratagem._src.data.transforms.interleave import Interleave
from stratagem._src.data.transforms.map import Map
from stratagem._src.data.transforms.scan import Scan
from stratagem._src.data.transforms.take_while import TakeWhile

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetFunctions"]


class DatasetFunctions(DatasetBase):
    """Transformations that call a user function on elements."""

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Returns ``map_func`` of every element; the components of a tuple are separate arguments.

        If JAX can trace the function, two traces agree, and it does not read a clock or a random
        generator, it runs as one ``jit(vmap(map_func))`` per batch on the host, provided that the results
        are bit-identical. As in tf.data, Python side effects then happen during tracing and not for every
        element; put what must happen for each element into the loop over the dataset.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(3).map(lambda x: x + 1))
        [np.int64(1), np.int64(2), np.int64(3)]

        Args:
            map_func: Takes NumPy arrays, returns a nest of arrays and numbers.
            num_parallel_calls: How many calls run in parallel, ahead of the consumer.
            deterministic: ``False`` allows another order, but the order is always kept.
            synchronous: Whether calls must run in the consumer's thread, as they do without
                ``num_parallel_calls``.
            use_unbounded_threadpool: Has no effect: each transformation has its own threads.
            name: Shown by ``repr``.
        """
        if synchronous and num_parallel_calls is not None:
            raise InvalidArgumentError(
                "map with synchronous=True makes one call at a time, so num_parallel_calls must be "
                f"None, got {num_parallel_calls!r}."
            )
        return self._from_plan(Map(self.plan, map_func, num_parallel_calls), name)

    def flat_map(self, map_func: Callable[..., Dataset], name: str | None = None) -> Dataset:
        """Maps each element to a dataset with ``map_func`` and concatenates these datasets.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(3).flat_map(lambda n: Dataset.range(n)))
        [np.int64(0), np.int64(0), np.int64(1)]
        """
        return self._from_plan(Interleave(self.plan, _plan_maker(map_func), cycle_length=1), name)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Maps each element to a dataset with ``map_func`` and interleaves these datasets.

        >>> from stratagem.data import Dataset
        >>> dataset = Dataset.range(2).interleave(
        ...     lambda n: Dataset.from_tensors(n).repeat(3), cycle_length=2, block_length=2)
        >>> [int(n) for n in dataset]
        [0, 0, 1, 1, 0, 1]

        Args:
            map_func: Returns a dataset for an element.
            cycle_length: How many datasets are open at a time; 4 by default.
            block_length: How many consecutive elements each one yields per turn; 1 by default.
            num_parallel_calls: How many of them are read in background threads.
            deterministic: ``False`` allows another order, but the order is always kept.
            name: Shown by ``repr``.
        """
        plan = Interleave(
            self.plan,
            _plan_maker(map_func),
            AUTOTUNE if cycle_length is None else cycle_length,
            1 if block_length is None else block_length,
            num_parallel_calls,
        )
        return self._from_plan(plan, name)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Returns the elements for which ``predicate`` is true.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(5).filter(lambda x: x % 2 == 0))
        [np.int64(0), np.int64(2), np.int64(4)]
        """
        return self._from_plan(Filter(self.plan, predicate), name)

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Returns the elements before the first for which ``predicate`` is false.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(9).take_while(lambda x: x < 2))
        [np.int64(0), np.int64(1)]
        """
        return self._from_plan(TakeWhile(self.plan, predicate), name)

    def scan(
        self,
        initial_state: PyTree,
        scan_func: Callable[[Any, Any], tuple[Any, Any]],
        name: str | None = None,
    ) -> Dataset:
        """Carries a state through ``state, output = scan_func(state, element)`` and returns the outputs.

        >>> import numpy as np
        >>> from stratagem.data import Dataset
        >>> sums = Dataset.range(5).scan(np.int64(0), lambda total, x: (total + x, total + x))
        >>> [int(x) for x in sums]
        [0, 1, 3, 6, 10]

        Args:
            initial_state: The state before the first element, a nest of arrays. The current state is part
                of the iterator's state.
            scan_func: Returns the next state, of the same structure and types, and the output.
            name: Shown by ``repr``.
        """
        return self._from_plan(Scan(self.plan, initial_state, scan_func), name)


def _plan_maker(map_func: Callable[..., Dataset]) -> Callable[[Any], Node]:
    if not callable(map_func):
        raise InvalidArgumentError(f"map_func must be callable, got {map_func!r}.")
    return lambda element: plan_of(call_with(map_func, element), "map_func")
