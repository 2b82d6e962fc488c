"""``DistributedIterator``: one iteration over a distributed dataset."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from stratagem._src.core.errors import (
    InvalidArgumentError,
    NotAnArrayError,
    OutOfRangeError,
    ShippingError,
)
from stratagem._src.core.input_kinds import NOT_DRAWN, DrawableIterator, Drawn, EndOfData
from stratagem._src.core.types import ElementSpec, IteratorState
from stratagem._src.current_strategy import context
from stratagem._src.input.optional import MISSING, Optional
from stratagem._src.input.prefetcher import Prefetcher
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.values.rows import num_local_rows
from stratagem._src.variables import frames, transactions

if TYPE_CHECKING:
    from stratagem._src.input.device_steps import PlaceSteps
    from stratagem._src.input.sources import Source
from stratagem._src.input.worker_input import HostSteps, WorkerInput

__all__ = ["DistributedIterator"]


class DistributedIterator(DrawableIterator):
    """Iterates over a distributed dataset and prefetches its elements.

    Created by ``iter(distributed_dataset)``. ``next(iterator)`` inside a ``function`` makes the element
    an input of the compiled program. Its threads end with the iterator, even if a loop breaks early.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = sg.data.Dataset.from_tensor_slices([5., 6., 7., 8.]).batch(2)
    >>> iterator = iter(strategy.experimental_distribute_dataset(dataset))
    >>> next(iterator)
    PerReplica:{
      0: Array([5.], dtype=float32),
      1: Array([6.], dtype=float32)
    }
    """

    def __init__(
        self,
        worker_input: WorkerInput,
        place: PlaceSteps,
        buffer_size: int,
        spec: ElementSpec,
        sources: Sequence[Source],
    ) -> None:
        self._input = worker_input
        self._sources = sources
        self._place = place
        self._buffer_size = buffer_size
        self._spec = spec
        self._lock = threading.RLock()
        self._state: Any = None
        # Elements that were put back, the next one first, each with the state after it.
        self._returned: collections.deque[tuple[Any, Any]] = collections.deque()
        self._checked: tuple[IteratorState, HostSteps] | None = None
        self._open(None)

    def _open(self, state: IteratorState) -> None:
        checked, self._checked = self._checked, None
        # Not twice: it may read all elements up to the state, and a loader draws from its generator.
        is_checked = checked is not None and checked[0] == state
        steps = checked[1] if checked is not None and is_checked else self._input(state)
        self._state = steps.state
        self._returned.clear()
        self._steps: HostSteps | None = steps
        self._prefetcher: Prefetcher | None = None

    def _start_prefetching(self) -> Prefetcher:
        """Starts the prefetch thread at the first draw.

        All workers draw from their iterators in the same order, so iterations get the same numbers
        everywhere. Iterators may be created in any order, or never be drawn from.
        """
        assert self._steps is not None
        closed = threading.Event()
        placed = self._place(self._steps, self._state, closed)
        self._steps = None
        size = self._buffer_size
        self._prefetcher = Prefetcher(placed, lambda elements: len(elements) < size)
        self._finalizer = weakref.finalize(self, _close, closed, self._prefetcher)
        return self._prefetcher

    def __reduce__(self) -> Any:
        raise ShippingError(
            "A distributed iterator cannot be copied or pickled: its elements are on the devices of this "
            "process. Send the dataset and iterator.get_state(), and call set_state() on an iterator over "
            "the dataset distributed there; ClusterCoordinator.create_per_worker_dataset() makes "
            "iterators that functions can take."
        )

    def __iter__(self) -> Self:
        frame = frames.current_frame()
        if frame is not None:
            frame.refuse_to_loop(self)
        return self

    def _check_context(self) -> None:
        if context.has_strategy() and context.get_replica_context() is not None:
            raise NotAnArrayError(
                "next(iterator) cannot be called in replica context (inside the function given to "
                "strategy.run()). Call it outside and pass the element: "
                "strategy.run(fn, args=(next(iterator),))."
            )

    def __next__(self) -> Any:
        self._check_context()
        frame = frames.current_frame()
        if frame is not None:
            return frame.draw(self)
        drawn = Drawn(self, self._state)
        journal = transactions.current_journal()
        if journal is not None:
            journal.note_draw(drawn.put_back)
        try:
            return self.draw(drawn)
        except BaseException:
            # An interrupt (Ctrl-C) after the element has left the buffer.
            drawn.put_back()
            drawn.element = NOT_DRAWN  # not once more by the journal
            raise

    def draw(self, drawn: Drawn | None = None, *, optional: bool = False) -> Any:
        """Returns the next element immediately, even while a function is traced.

        Args:
            drawn: Gets the element in the moment in which it leaves the iterator.
            optional: Whether to return ``MISSING`` at the end.

        Raises:
            EndOfData: At the end.
        """
        drawn = Drawn(self, None) if drawn is None else drawn
        with self._lock:
            items = self._returned
            while not items:  # a signal handler may draw the element before this call does
                try:
                    items = self._wait()
                except StopIteration:
                    if not optional:
                        raise EndOfData from None
                    return MISSING
            # Without a call, so that an interrupt comes before or after all of it; see Drawn.
            drawn.element, self._state = items[0]
            del items[0]
            prefetcher = self._prefetcher
            if prefetcher is not None and items is not self._returned:
                prefetcher.note_taken()
            return drawn.element

    def _wait(self) -> collections.deque[tuple[Any, Any]]:
        """Waits for an element, and returns the buffer whose first item it is, with the state after it."""
        prefetcher = self._prefetcher or self._start_prefetching()
        observer = recorder()
        return (
            prefetcher.wait() if observer is None else observer.draw(prefetcher.wait, _num_examples)
        )

    def put_back(self, drawn: list[tuple[Any, Any]]) -> None:
        """Puts drawn elements back, each given with the state before it, to be drawn again."""
        if not drawn:
            return
        with self._lock:
            # The state after an element is the state before the next one.
            states = [before for _, before in drawn[1:]] + [self._state]
            for (element, _), after in zip(reversed(drawn), reversed(states), strict=True):
                self._returned.appendleft((element, after))
            self._state = drawn[0][1]

    def get_next(self) -> Any:
        """Returns the next element.

        Raises:
            OutOfRangeError: At the end.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("End of the dataset.") from None

    def get_next_as_optional(self) -> Optional:
        """Returns the next element as an ``Optional``, empty at the end.

        Inside a function ``has_value`` is a Python bool: a call with an element and a call without one
        run different programs.
        """
        frame = frames.current_frame()
        if frame is not None:
            self._check_context()
            return Optional(frame.draw(self, optional=True))
        try:
            return Optional(next(self))
        except StopIteration:
            return Optional.empty()

    @property
    def element_spec(self) -> Any:
        """The structure of specs of an element."""
        return self._spec

    def get_state(self) -> Any:
        """Returns a small JSON-able value that records which elements have been drawn.

        Raises:
            UnsupportedError: If the order of the elements is random and cannot be repeated.
        """
        for source in self._sources:
            source.check_repeatable()
        with self._lock:
            return {"distributed": self._state}

    def set_state(self, state: IteratorState) -> None:
        """Resumes after the elements that had been drawn when the state was taken.

        Args:
            state: From ``get_state`` of an iterator over the same dataset and number of replicas.
        """
        self.check_state(state)
        with self._lock:
            if self._prefetcher is not None:
                self._finalizer()
            self._open(state["distributed"])

    def close(self) -> None:
        """Stops the prefetch threads and ends the iteration."""
        with self._lock:
            if self._prefetcher is not None:
                self._finalizer()
            self._returned.clear()

    def check_state(self, state: IteratorState) -> None:
        """Checks that ``set_state`` accepts the state.

        Raises:
            InvalidArgumentError: If the state belongs to another dataset.
        """
        if not isinstance(state, dict) or state.keys() != {"distributed"}:
            raise InvalidArgumentError(
                f"state must be what get_state of a DistributedIterator returned, got {state!r}."
            )
        self._checked = (state["distributed"], self._input(state["distributed"]))

    def current_state(self) -> Any:
        """Returns the state of the input, for ``put_back``."""
        return self._state


def _num_examples(items: Sequence[tuple[Any, Any]]) -> int:
    element, _ = items[0]
    return num_local_rows(element)


def _close(closed: threading.Event, prefetcher: Prefetcher) -> None:
    closed.set()
    prefetcher.close()
