"""``DatasetIterator``: one iteration over a dataset, which can be saved and restored."""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple, Self

from stratagem._src.core.errors import (
    ContextError,
    DataLossError,
    InvalidArgumentError,
    OutOfRangeError,
)
from stratagem._src.core.thread_state import INSIDE, THIS_THREAD
from stratagem._src.data.plan.anchors import too_short
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Node, walk
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.transforms.shard import ShardHint
from stratagem._src.process.fork import ProcessOwner, end_in_child

__all__ = ["DatasetIterator", "EndOfData", "refuse_hints"]

_DRAWS_BETWEEN_LOOKS = 16
_SECONDS_BETWEEN_PLACES = 1.0
_POLL_SECONDS = 0.1


class _Place(NamedTuple):
    """Where an iterator stood between two draws.

    Attributes:
        num_drawn: How many elements had been drawn.
        stream: The stream's state, by its key in the iterator's; empty at the beginning.
    """

    num_drawn: int
    stream: dict[str, Any]


_BEGINNING = _Place(0, {})


class EndOfData(StopIteration):
    """The end of a dataset: ends loops, and is told from what else stops in a function."""


def refuse_hints(plan: Node) -> None:
    """Refuses a plan that says where it is to be sharded, and is not.

    Raises:
        ContextError: If it does.
    """
    if any(isinstance(node, ShardHint) for node in walk(plan)):
        raise ContextError(
            "A dataset with shard(SHARD_HINT, SHARD_HINT) can be read only after "
            "strategy.experimental_distribute_dataset() has replaced the hint, which it does with "
            "AutoShardPolicy.HINT. Set options.experimental_distribute.auto_shard_policy to it."
        )


class DatasetIterator:
    """An iteration over the elements of a dataset.

    Its threads and files end with it: when it is exhausted, closed or no longer referenced. A copy,
    or one that was pickled, goes on where the original stood, independently of it. ``next(iterator)``
    inside a ``function`` makes the element an input of the compiled program.

    >>> from stratagem.data import Dataset
    >>> dataset = Dataset.range(100).shuffle(100, seed=1).repeat().batch(8)
    >>> iterator = iter(dataset)
    >>> first = next(iterator)
    >>> state = iterator.get_state()
    >>> expected = next(iterator)
    >>> restored = iter(dataset)
    >>> restored.set_state(state)
    >>> bool((next(restored) == expected).all())
    True
    """

    def __init__(self, plan: Node) -> None:
        refuse_hints(plan)
        self._set_plan(plan)
        self._start(Run(plan))

    def _set_plan(self, plan: Node) -> None:
        _refuse_to_loop(self)
        self._plan = plan
        self._lowered = lower(plan)
        # Elements that were put back, the next one first, each with the state before it.
        self._returned: collections.deque[tuple[Any, Any]] = collections.deque()
        self._set_free()
        journal = THIS_THREAD.state.journal
        self._made_in = None if journal is None else weakref.ref(journal)

    def _set_free(self) -> None:
        # Whether a thread draws from it now. A lock would cost as much as the rest of a draw. This is read
        # and set without a call between, and CPython, which has the GIL, switches threads and runs signal
        # handlers only at calls and backward jumps.
        self._is_busy = False
        # A lock for each thread that waits, to be released. Not a Condition: an interrupt in its methods,
        # which are Python, would leave it locked.
        self._waiting: collections.deque[threading.Lock] = collections.deque()

    @classmethod
    def _resumed(cls, plan: Node, state: Any, closed: bool) -> Self:
        iterator = cls.__new__(cls)
        iterator._set_plan(plan)
        iterator._resume(state)
        if closed:
            iterator.close()
        return iterator

    @property
    def _is_over(self) -> bool:
        return not self._finalizer.alive and not self._returned

    def __reduce__(self) -> Any:
        return type(self)._resumed, (self._plan, self.get_state(), self._is_over)

    def __copy__(self) -> Self:
        return self._resumed(self._plan, self.get_state(), self._is_over)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def _start(self, run: Run, place: _Place = _BEGINNING) -> None:
        self._run = run
        self._owner = ProcessOwner("a dataset's iterator")
        self._stream: Stream = self._lowered.open(run, ())
        self._elements = self._elements_of(self._stream)
        # A stream that is busy has no state: a signal handler that asks for it, or another thread, is
        # told the last place that was noted, and how many elements have been drawn since.
        self._num_drawn = 0
        self._place: _Place | None = place
        # The draw before which something is to be done: note the place, or give what was put back.
        self._look_at = _DRAWS_BETWEEN_LOOKS
        self._place_is_due = time.monotonic() + _SECONDS_BETWEEN_PLACES
        self._finalizer = weakref.finalize(self, self._stream.close)
        # Its threads are the parent's, and so is the place in its files, which the child would move.
        end_in_child(self, DatasetIterator._end_in_child)

    def _end_in_child(self) -> None:
        self._elements = iter(self._owner.check, True)  # which raises
        self._set_free()  # a thread of the parent that draws does not exist here
        self._finalizer.detach()  # to close it may remove files that the parent writes

    def _elements_of(self, stream: Stream) -> Iterator[Any]:
        """Returns the elements as they are given out."""
        return stream.elements()

    def __iter__(self) -> Self:
        _refuse_to_loop(self)
        return self

    def __next__(self, *, is_noted: bool = True) -> Any:
        if INSIDE and is_noted:
            thread = THIS_THREAD.state
            if thread.state_frames:
                return thread.state_frames[-1].draw(self)
            if thread.journal is not None:
                return self._draw_and_note(thread.journal)
        while self._is_busy:
            self._wait()
        self._is_busy = True
        try:
            if self._num_drawn >= self._look_at:
                # First: another thread may put something back meanwhile, and says so in _look_at.
                self._note_place()
                if self._returned:
                    self._look_at = 0
                    return self._returned.popleft()[0]
            element = next(self._elements)
            self._num_drawn += 1
            return element
        except StopIteration:
            self._end()
            raise EndOfData from None
        except BaseException:
            # What is drawn next may be something else than when it is drawn again.
            self._place, self._look_at, self._place_is_due = None, 0, 0.0
            if self._finalizer.alive:
                self._elements = self._elements_of(self._stream)
            self._run.rest()
            raise
        finally:
            self._is_busy = False
            if self._waiting:
                self._wake()

    def _draw_and_note(self, journal: Any) -> Any:
        """Draws an element that is given again if the call around this fails."""
        before, element = self.current_state(), self.draw()
        # Nobody can ask an iterator again that was made by the call itself.
        if self._made_in is None or self._made_in() is not journal:
            journal.note_draw(lambda: self.put_back([(element, before)]))
        return element

    def draw(self, *, optional: bool = False) -> Any:
        """Returns the next element now, also while a function is traced.

        Args:
            optional: Must be false: this iterator gives no optionals.

        Raises:
            EndOfData: At the end.
            ContextError: In a signal handler that interrupts this.
        """
        assert not optional
        return self.__next__(is_noted=False)

    def _wait(self) -> None:
        """Waits for another thread that draws.

        Raises:
            ContextError: In a signal handler, if what it interrupts draws.
        """
        if self._is_below(sys._getframe(2)):
            raise ContextError(
                "A signal handler cannot draw from an iterator, or set its state, while it interrupts "
                "next(iterator) of the same iterator. Set a flag in the handler, and do it in the loop "
                "when the flag is set. Saving a Checkpoint that contains it works in a handler."
            )
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        try:
            if self._is_busy:
                turn.acquire(timeout=_POLL_SECONDS)
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)

    def _is_below(self, frame: FrameType | None) -> bool:
        """Returns whether ``frame``, or what called it, is a method that makes this iterator busy.

        Asked when it is busy, so that no draw has to find out in which thread it is.
        """
        while frame is not None:
            if frame.f_code in _BUSY_CODES and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _wake(self) -> None:
        with contextlib.suppress(IndexError):
            self._waiting.popleft().release()

    def _note_place(self) -> None:
        """Notes where the iterator stands, if that has not been done for a while."""
        self._look_at = self._num_drawn + _DRAWS_BETWEEN_LOOKS
        now = time.monotonic()
        if now >= self._place_is_due:
            self._place_is_due = now + _SECONDS_BETWEEN_PLACES
            self._place = _Place(self._num_drawn, {"stream": self._stream.get_state()})

    def put_back(self, drawn: list[tuple[Any, Any]]) -> None:
        """Takes elements back, with the states before them, as if they had not been drawn."""
        self._returned.extendleft(reversed(drawn))
        self._look_at = 0

    def current_state(self) -> Any:
        """Returns the state, for ``put_back``."""
        return self.get_state()

    def get_next(self) -> Any:
        """Returns the next element.

        Raises:
            OutOfRangeError: If there is none.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("End of the dataset.") from None

    @property
    def element_spec(self) -> Any:
        """The nest of ``TensorSpec`` of an element."""
        return self._plan.element_spec

    @functools.cached_property
    def _description(self) -> str:
        return self._plan.describe()

    def get_state(self) -> Any:
        """Returns a small JSON-able value from which ``set_state`` resumes exactly.

        Elements that were read ahead or wait in a shuffle buffer are not part of it; they are read
        again. A ``from_generator`` source is resumed by calling the generator and dropping the
        elements that were given, so it must give the same elements each time.

        While an element is drawn, by another thread or below a signal handler, it is the state before
        that element. Up to about a second's elements are drawn again then when it is restored.
        """
        if self._returned:
            return self._returned[0][1]
        state = {"plan": self._description, "run": self._run.get_state()}
        # Not waited for: who draws may wait for whoever asks.
        if not self._is_busy:
            self._is_busy = True
            try:
                return {**state, "stream": self._stream.get_state()}
            finally:
                self._is_busy = False
                if self._waiting:
                    self._wake()
        place = self._place  # first: it never is of a later element than those counted
        if place is None:
            raise ContextError(
                "A signal handler cannot have the state of an iterator when it interrupts next(iterator) "
                "just after that has failed. Set a flag in the handler, and save in the loop when the "
                "flag is set."
            )
        return {**state, **place.stream, "skip": self._num_drawn - place.num_drawn}

    def set_state(self, state: Any) -> None:
        """Goes on where the iterator stood from which the state was taken.

        Args:
            state: What ``get_state`` returned, of an iterator over the same pipeline.

        Raises:
            InvalidArgumentError: If the state belongs to another pipeline.
            ContextError: In a signal handler that interrupts ``next``.
        """
        self.check_state(state)
        while self._is_busy:
            self._wait()
        self._is_busy = True
        try:
            self.close()
            self._resume(state)
        finally:
            self._is_busy = False
            if self._waiting:
                self._wake()

    def check_state(self, state: Any) -> None:
        """Checks that ``set_state`` can be called.

        Raises:
            InvalidArgumentError: If the state belongs to another pipeline.
        """
        if not isinstance(state, dict) or state.keys() - {"skip", "stream"} != {"plan", "run"}:
            raise InvalidArgumentError(
                f"state must be what get_state of an iterator returned, got {state!r}."
            )
        if state["plan"] != self._description:
            raise InvalidArgumentError(
                f"The state belongs to another dataset: it was saved from {state['plan']}, this is "
                f"{self._description}. Build the same pipeline before set_state."
            )

    def _resume(self, state: Any) -> None:
        skipped = state.get("skip", 0)
        stream = {"stream": state["stream"]} if "stream" in state else {}
        self._start(Run(self._plan, state["run"]), _Place(-skipped, stream))
        if stream:
            self._stream.set_state(state["stream"])
        if skipped and self._stream.skip(skipped) != skipped:
            raise DataLossError(too_short(skipped))

    def close(self) -> None:
        """Ends the threads and closes the files of this iteration."""
        self._returned.clear()
        self._end()

    def _end(self) -> None:
        self._elements = iter(())
        self._finalizer()


_BUSY_CODES = frozenset(
    method.__code__
    for method in (DatasetIterator.__next__, DatasetIterator.get_state, DatasetIterator.set_state)
)


def _refuse_to_loop(iterator: DatasetIterator) -> None:
    """Tells a function that is traced, if there is one, that its Python runs in every call."""
    if INSIDE and (frames := THIS_THREAD.state.state_frames):
        frames[-1].refuse_to_loop(iterator)
