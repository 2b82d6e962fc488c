"""The methods of ``Dataset`` that call a function of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.options import AUTOTUNE
from stratagem._src.data.plan.node import Node
from stratagem._src.data.planned_elements import PlannedElements, plan_of
from stratagem._src.data.transforms.element_function import call_with
from stratagem._src.data.transforms.filter import Filter
from stratagem._src.data.transforms.interleave import Interleave
from stratagem._src.data.transforms.map import Map
from stratagem._src.data.transforms.scan import Scan
from stratagem._src.data.transforms.take_while import TakeWhile

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetFunctions"]


class DatasetFunctions(PlannedElements):
    """Transformations by a function of elements."""

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

        A function of numbers that JAX can trace, twice with the same result and without asking a clock
        or a random generator, runs as one ``jit(vmap(map_func))`` per batch, on the host, if that
        gives the same bits. Side effects of Python code, as in tf.data, happen while it is traced and
        not for every element; what must happen for each belongs into the loop over the dataset.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(3).map(lambda x: x + 1))
        [np.int64(1), np.int64(2), np.int64(3)]

        Args:
            map_func: Takes NumPy arrays, returns a nest of arrays and numbers.
            num_parallel_calls: How many calls run at a time, ahead of the consumer.
            deterministic: ``False`` allows another order; the order is kept all the same.
            synchronous: Whether calls must run where the consumer is, as they do without
                ``num_parallel_calls``.
            use_unbounded_threadpool: Has no effect: each step has threads of its own.
            name: Shown by ``repr``.
        """
        if synchronous and num_parallel_calls is not None:
            raise InvalidArgumentError(
                "map with synchronous=True makes one call at a time, so num_parallel_calls must be "
                f"None, got {num_parallel_calls!r}."
            )
        return self._of(Map(self.plan, map_func, num_parallel_calls), name)

    def flat_map(self, map_func: Callable[..., Dataset], name: str | None = None) -> Dataset:
        """Returns the elements of the dataset that ``map_func`` makes of each element, in order.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(3).flat_map(lambda n: Dataset.range(n)))
        [np.int64(0), np.int64(0), np.int64(1)]
        """
        return self._of(Interleave(self.plan, _plan_maker(map_func), cycle_length=1), name)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns elements of the datasets that ``map_func`` makes, some of each in turn.

        >>> from stratagem.data import Dataset
        >>> dataset = Dataset.range(2).interleave(
        ...     lambda n: Dataset.from_tensors(n).repeat(3), cycle_length=2, block_length=2)
        >>> [int(n) for n in dataset]
        [0, 0, 1, 1, 0, 1]

        Args:
            map_func: Makes a dataset from an element.
            cycle_length: How many datasets are read at a time; 4 by default.
            block_length: How many elements each gives in its turn; 1 by default.
            num_parallel_calls: How many of them are read on threads of their own.
            deterministic: ``False`` allows another order; the order is kept all the same.
            name: Shown by ``repr``.
        """
        plan = Interleave(
            self.plan,
            _plan_maker(map_func),
            AUTOTUNE if cycle_length is None else cycle_length,
            1 if block_length is None else block_length,
            num_parallel_calls,
        )
        return self._of(plan, name)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Returns the elements for which ``predicate`` is true.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(5).filter(lambda x: x % 2 == 0))
        [np.int64(0), np.int64(2), np.int64(4)]
        """
        return self._of(Filter(self.plan, predicate), name)

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Returns the elements before the first for which ``predicate`` is false.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(9).take_while(lambda x: x < 2))
        [np.int64(0), np.int64(1)]
        """
        return self._of(TakeWhile(self.plan, predicate), name)

    def scan(
        self,
        initial_state: Any,
        scan_func: Callable[[Any, Any], tuple[Any, Any]],
        name: str | None = None,
    ) -> Dataset:
        """Returns the second of ``state, output = scan_func(state, element)`` for every element.

        >>> import numpy as np
        >>> from stratagem.data import Dataset
        >>> sums = Dataset.range(5).scan(np.int64(0), lambda total, x: (total + x, total + x))
        >>> [int(x) for x in sums]
        [0, 1, 3, 6, 10]

        Args:
            initial_state: The state before the first element, a nest of arrays. It is part of a saved
                iterator.
            scan_func: Returns the next state, of the same structure and types, and the output.
            name: Shown by ``repr``.
        """
        return self._of(Scan(self.plan, initial_state, scan_func), name)


def _plan_maker(map_func: Callable[..., Dataset]) -> Callable[[Any], Node]:
    if not callable(map_func):
        raise InvalidArgumentError(f"map_func must be callable, got {map_func!r}.")
    return lambda element: plan_of(call_with(map_func, element), "map_func")
