"""``group_by_window``: groups elements by key, and maps every full group to a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, Element
from stratagem._src.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.peek import first_element
from stratagem._src.data.plan.run import Run, Seed, Seeded
from stratagem._src.data.plan.sparse_resume_points import SparseResumePoints
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.sources.elements import Elements
from stratagem._src.data.transforms.element_function import ElementFunction
from stratagem._src.process.signal_handlers import is_raised_by_signal_handler

__all__ = ["GroupByWindow"]


class GroupByWindow(Seeded):
    """Applies ``reduce_group`` to each group of elements with the same key.

    Args:
        source: The plan whose elements are grouped.
        key_func: Returns the key of an element, an integer.
        reduce_group: Returns the plan for a key and the plan of a group.
        window_size_func: Returns the group size for a key.
    """

    def __init__(
        self,
        source: Node,
        key_func: Callable[..., Any],
        reduce_group: Callable[[Any, Node], Node],
        window_size_func: Callable[[Any], Any],
    ) -> None:
        self.inputs = (source,)
        self.seed = Seed(None)
        self._key_func = ElementFunction(key_func, "key_func")
        self._reduce_group = reduce_group
        self._window_size_func = ElementFunction(window_size_func, "window_size_func")

    def _compute_spec(self) -> Any:
        first = first_element(self.inputs[0], "group_by_window")
        return self.reduced(self.key_of(first), [first]).element_spec

    def cardinality(self) -> int:
        """Returns unknown, unless the input is empty or infinite."""
        size = self.inputs[0].cardinality()
        return size if size in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _GroupStream(
            self, lambda: self.inputs[0].open(run, epoch), run, run.key(self.seed, epoch)
        )

    def key_of(self, element: Element) -> int:
        """Returns the key of an element."""
        return _integer("key_func", self._key_func(element))

    def window_size(self, key: int) -> int:
        """Returns the size of the groups of a key."""
        size = _integer("window_size_func", self._window_size_func(np.int64(key)))
        if size < 1:
            raise InvalidArgumentError(f"The size of a window must be at least 1, got {size}.")
        return size

    def reduced(self, key: int, elements: list[Any]) -> Node:
        """Returns the plan for a group."""
        group = Elements(elements, lambda: self.inputs[0].element_spec)
        return self._reduce_group(np.int64(key), group)


def _integer(role: str, value: ArrayLike) -> int:
    if getattr(value, "shape", None) != () or value.dtype.kind not in "biu":
        raise InvalidArgumentError(f"{role} must return one integer, got {value!r}.")
    return int(value)


class _GroupStream(Stream):
    """Holds the incomplete groups, and at most one full group, whose dataset is being read.

    The state does not contain the elements of the groups; they are read again from the input. The group of
    a key consists of all elements with that key since its first one, so the state stores only its index.
    """

    def __init__(
        self, node: GroupByWindow, open_source: Callable[[], Stream], run: Run, key: list[int]
    ) -> None:
        self._node = node
        self._open_source = open_source
        self._run = run
        self._seed_key = key
        self._source = open_source()
        self._resume_points = SparseResumePoints(self._source)
        self._groups: dict[int, list[tuple[int, Any]]] = {}
        self._sizes: dict[int, int] = {}
        self._num_full = 0
        self._full: int | None = None
        self._inner: Stream | None = None

    def __next__(self) -> Any:
        while True:
            if self._full is None:
                self._full = self._next_full()
            if self._inner is None:
                self._inner = self._open(self._full)
            try:
                return next(self._inner)
            except StopIteration:
                self._end_group(self._full)

    def _next_full(self) -> int:
        """Reads until a group is full; at the end of the input takes the others in the order of keys."""
        while True:
            try:
                element = self._resume_points.next_element()
            except StopIteration:
                if not self._groups:
                    raise
                return min(self._groups)
            number = self._resume_points.read - 1
            key = self._node.key_of(element)
            if key not in self._sizes:
                self._sizes[key] = self._node.window_size(key)
            self._hold(key, number, element)
            if len(self._groups[key]) >= self._sizes[key]:
                return key

    def _hold(self, key: int, number: int, element: Element) -> None:
        self._resume_points.hold(number)
        self._groups.setdefault(key, []).append((number, element))

    def _open(self, key: int) -> Stream:
        plan = self._node.reduced(key, [element for _, element in self._groups[key]])
        run = Run.within(plan, self._run, self._seed_key, self._num_full)
        return lower(plan).open(run, ())

    def _end_group(self, key: int) -> None:
        self._close_inner()
        for number, _ in self._groups.pop(key):
            self._resume_points.release(number)
        self._num_full += 1
        self._full = None

    def get_state(self) -> State:
        return {
            "input": self._resume_points.get_state(),
            "since": [[key, group[0][0]] for key, group in self._groups.items()],
            "num_full": self._num_full,
            "full": self._full,
            "inner": None if self._inner is None else self._inner.get_state(),
        }

    def set_state(self, state: State) -> None:
        since = dict(state["since"])
        for number, element in self._resume_points.resume(state["input"], self._open_source):
            try:
                key = self._node.key_of(element)
            except Exception as error:
                if is_raised_by_signal_handler(error):
                    raise
                # key_func failed the first time too, so the element was not held.
                continue
            if number >= since.get(key, number + 1):
                self._hold(key, number, element)
        self._num_full, self._full = state["num_full"], state["full"]
        if state["inner"] is not None and self._full is not None:
            self._inner = self._open(self._full)
            self._inner.set_state(state["inner"])

    def skip_past_error(self) -> None:
        self._source.skip_past_error()
        if self._inner is not None:
            self._inner.skip_past_error()

    def close(self) -> None:
        self._source.close()
        self._close_inner()

    def _close_inner(self) -> None:
        if self._inner is not None:
            self._inner.close()
            self._inner = None
