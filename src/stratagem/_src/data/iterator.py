"""``DatasetIterator``: one iteration over a dataset, with a state that can be saved and restored."""

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
from stratagem._src.core.input_kinds import NOT_DRAWN, DrawableIterator, Drawn, EndOfData
from stratagem._src.core.thread_state import THIS_THREAD, THREADS_IN_CONTEXT
from stratagem._src.core.types import IteratorState
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Node, walk
from stratagem._src.data.plan.resume_points import shrunk_input_message
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.transforms.shard import ShardHint
from stratagem._src.process.fork import ProcessOwner, close_in_child
from stratagem._src.process.signal_handlers import is_raised_by_signal_handler

__all__ = ["DatasetIterator", "check_no_shard_hints"]

_DRAWS_PER_CHECK = 16
_POSITION_INTERVAL_SECONDS = 1.0
_POLL_SECONDS = 0.1


class _Position(NamedTuple):
    """The position of an iterator between two draws.

    Attributes:
        num_drawn: The number of elements drawn before.
        stream: ``{"stream": state}``, as in the iterator's state; empty at the start.
    """

    num_drawn: int
    stream: dict[str, Any]


_START = _Position(0, {})


def check_no_shard_hints(plan: Node) -> None:
    """Checks that a plan has no unresolved shard hint.

    Raises:
        ContextError: If it has one.
    """
    if any(isinstance(node, ShardHint) for node in walk(plan)):
        raise ContextError(
            "A dataset with shard(SHARD_HINT, SHARD_HINT) can be read only after "
            "strategy.experimental_distribute_dataset() has replaced the hint, which it does with "
            "AutoShardPolicy.HINT. Set options.experimental_distribute.auto_shard_policy to it."
        )


class DatasetIterator(DrawableIterator):
    """Iterates over the elements of a dataset.

    Its threads and files are closed with it: when it is exhausted, closed or no longer referenced. A copy
    or a pickled iterator continues at the position of the original, independently of it.
    ``next(iterator)`` inside a ``function`` makes the element an input of the compiled program.

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
        check_no_shard_hints(plan)
        self._set_plan(plan)
        self._start(Run(plan))

    def _set_plan(self, plan: Node) -> None:
        _refuse_to_loop(self)
        self._plan = plan
        self._lowered = lower(plan)
        # Elements that were put back, the next one first, each with the state before it.
        self._returned: collections.deque[tuple[Any, Any]] = collections.deque()
        self._set_idle()
        journal = THIS_THREAD.state.journal
        self._created_in = None if journal is None else weakref.ref(journal)

    def _set_idle(self) -> None:
        # Whether a thread is drawing now. A lock would cost as much as the rest of a draw. The flag is read
        # and set without a call in between, and CPython with the GIL switches threads and runs signal
        # handlers only at calls and backward jumps, so that test and set are atomic.
        self._is_busy = False
        # One lock per waiting thread; releasing it wakes the thread. Not a Condition: its methods are
        # written in Python, and an interrupt inside them would leave it locked.
        self._waiting: collections.deque[threading.Lock] = collections.deque()

    @classmethod
    def _resumed(cls, plan: Node, state: IteratorState, closed: bool) -> Self:
        iterator = cls.__new__(cls)
        iterator._set_plan(plan)
        iterator._resume(state)
        if closed:
            iterator.close()
        return iterator

    @property
    def _is_exhausted(self) -> bool:
        return not self._finalizer.alive and not self._returned

    def __reduce__(self) -> Any:
        return type(self)._resumed, (self._plan, self.get_state(), self._is_exhausted)

    def __copy__(self) -> Self:
        return self._resumed(self._plan, self.get_state(), self._is_exhausted)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def _start(self, run: Run, position: _Position = _START) -> None:
        self._run = run
        self._owner = ProcessOwner("a dataset's iterator")
        self._stream: Stream = self._lowered.open(run, ())
        self._elements = self._elements_of(self._stream)
        # A busy stream cannot return its state. A signal handler or another thread that needs it gets the
        # last recorded position, and the number of elements drawn since.
        self._num_drawn = 0
        self._last_position: _Position | None = position
        # The number of elements drawn before a draw that an interrupt stopped; the next draw resumes there.
        self._interrupted_at: int | None = None
        # The draw at which to record the position, or to return an element that was put back. One
        # comparison per draw covers both.
        self._next_check = _DRAWS_PER_CHECK
        self._position_due = time.monotonic() + _POSITION_INTERVAL_SECONDS
        self._finalizer = weakref.finalize(self, self._stream.close)
        # After a fork the threads exist only in the parent, and the child shares the file offsets: reading
        # would move them for the parent too.
        close_in_child(self, DatasetIterator._end_in_child)

    def _end_in_child(self) -> None:
        self._elements = iter(self._owner.check, True)  # check() raises in the child
        self._set_idle()  # a thread that was drawing does not exist in the child
        self._finalizer.detach()  # closing the stream might remove files that the parent is writing

    def _elements_of(self, stream: Stream) -> Iterator[Any]:
        """Returns the iterator over the elements as the user gets them."""
        return stream.elements()

    def __iter__(self) -> Self:
        _refuse_to_loop(self)
        return self

    def __next__(self, drawn: Drawn | None = None) -> Any:
        if THREADS_IN_CONTEXT and drawn is None:
            thread = THIS_THREAD.state
            if thread.state_frames:
                return thread.state_frames[-1].draw(self)
            if thread.journal is not None:
                return self._draw_and_journal(thread.journal)
        while self._is_busy:
            self._wait()
        self._is_busy = True
        element, before = NOT_DRAWN, None
        try:
            if self._num_drawn >= self._next_check:
                if self._interrupted_at is not None:
                    self._resume_interrupted()
                # Before the test of _returned: this moves _next_check forward, and must not undo the reset
                # by a put_back() of another thread in between.
                self._record_position()
                if self._returned:
                    self._next_check = 0
                    element, before = self._returned[0]
                    # Without a call, so that an interrupt comes before or after all of it; see Drawn.
                    del self._returned[0]
                    if drawn is not None:
                        drawn.element = element
                    return element
            element = next(self._elements)
            self._num_drawn += 1
            if drawn is not None:
                drawn.element = element
            return element
        except StopIteration:
            self._end()
            raise EndOfData from None
        except BaseException as error:
            is_interrupt = not isinstance(error, Exception) or is_raised_by_signal_handler(error)
            if self._last_position is not None and is_interrupt:
                # An interrupt (Ctrl-C) can hit any part of the stream, which may then lose elements.
                self._interrupted_at, self._next_check = self._num_drawn, 0
                raise
            # After an error the stream may yield other elements than a replay from the recorded position.
            self._last_position, self._next_check, self._position_due = None, 0, 0.0
            if self._finalizer.alive:
                self._elements = self._elements_of(self._stream)
            self._run.pause()
            raise
        finally:
            self._is_busy = False
            if self._waiting:
                # No call came before, so no other thread has drawn since.
                position, num_drawn = self._last_position, self._num_drawn
                try:
                    self._wake()
                except BaseException:
                    # The caller does not get the element; one with a Drawn puts it back itself.
                    if drawn is None and element is not NOT_DRAWN:
                        if before is None:
                            before = self._state_after(position, num_drawn - 1)
                        self.put_back([(element, before)])
                    raise

    def _resume_interrupted(self) -> None:
        """Continues after an interrupted draw at the position before it, as if it had not begun."""
        position, interrupted_at = self._last_position, self._interrupted_at
        assert position is not None
        assert interrupted_at is not None
        state = {"run": self._run.get_state(), **position.stream}
        self._end()
        # _last_position of the new stream is the old one: a second interrupt, in here, resumes there too.
        self._resume({**state, "skip": interrupted_at - position.num_drawn})
        self._interrupted_at = None

    def _draw_and_journal(self, journal: Any) -> Any:
        """Draws an element that is put back if the surrounding call fails."""
        drawn = Drawn(self, self.current_state())
        # An iterator that the call itself created is gone after the call, so nothing is put back.
        if self._created_in is None or self._created_in() is not journal:
            journal.note_draw(drawn.put_back)
        return self.draw(drawn)

    def draw(self, drawn: Drawn | None = None, *, optional: bool = False) -> Any:
        """Returns the next element immediately, even while a function is traced.

        Args:
            drawn: Gets the element in the moment in which it leaves the iterator.
            optional: Must be false: this iterator does not support optionals.

        Raises:
            EndOfData: At the end.
            ContextError: In a signal handler that interrupts a draw from this iterator.
        """
        assert not optional
        return self.__next__(Drawn(self, None) if drawn is None else drawn)

    def _wait(self) -> None:
        """Waits until another thread has finished its draw.

        Raises:
            ContextError: In a signal handler that interrupted the draw: waiting would deadlock.
        """
        if self._is_called_from_busy_method(sys._getframe(2)):
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

    def _is_called_from_busy_method(self, frame: FrameType | None) -> bool:
        """Returns whether ``frame`` runs below a method that makes this iterator busy.

        Walking the stack is slow, but needed only when the iterator is busy. The alternative, recording
        the drawing thread, would make every draw slower.
        """
        while frame is not None:
            if frame.f_code in _BUSY_CODES and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _wake(self) -> None:
        with contextlib.suppress(IndexError):
            self._waiting.popleft().release()

    def _record_position(self) -> None:
        """Records the position, at most once per ``_POSITION_INTERVAL_SECONDS``."""
        self._next_check = self._num_drawn + _DRAWS_PER_CHECK
        now = time.monotonic()
        if now >= self._position_due:
            self._position_due = now + _POSITION_INTERVAL_SECONDS
            self._last_position = _Position(self._num_drawn, {"stream": self._stream.get_state()})

    def put_back(self, drawn: list[tuple[Any, Any]]) -> None:
        """Puts drawn elements back, each given with the state before it, to be drawn again."""
        self._returned.extendleft(reversed(drawn))
        self._next_check = 0

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

        It does not contain prefetched elements or those in a shuffle buffer; they are read again. A
        ``from_generator`` source is resumed by calling the generator and dropping the elements that were
        drawn, so it must yield the same elements each time.

        While another thread, or the code that a signal handler interrupts, draws an element, this is the
        state before that element. Restoring it then reads up to about a second's worth of elements again.
        """
        if self._returned:
            return self._returned[0][1]
        # Never wait here: the drawing thread may be waiting for the one that needs the state.
        if not self._is_busy and self._interrupted_at is None:
            self._is_busy = True
            try:
                return {**self._run_state(), "stream": self._stream.get_state()}
            finally:
                self._is_busy = False
                if self._waiting:
                    self._wake()
        # The position is read before _num_drawn, so that it is never ahead of the count.
        return self._state_after(self._last_position, self._num_drawn)

    def _run_state(self) -> dict[str, Any]:
        return {"plan": self._description, "run": self._run.get_state()}

    def _state_after(self, position: _Position | None, num_drawn: int) -> Any:
        """Returns the state after a number of draws, from a position recorded before."""
        if position is None:
            raise ContextError(
                "A signal handler cannot read the state of an iterator while it interrupts next(iterator) "
                "just after a failed draw. Set a flag in the handler, and save in the loop when the flag "
                "is set."
            )
        return {**self._run_state(), **position.stream, "skip": num_drawn - position.num_drawn}

    def set_state(self, state: IteratorState) -> None:
        """Continues at the position of the iterator that the state was taken from.

        Args:
            state: The result of ``get_state`` of an iterator over the same pipeline.

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

    def check_state(self, state: IteratorState) -> None:
        """Checks that ``set_state`` accepts the state.

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

    def _resume(self, state: IteratorState) -> None:
        skipped = state.get("skip", 0)
        stream = {"stream": state["stream"]} if "stream" in state else {}
        self._start(Run(self._plan, state["run"]), _Position(-skipped, stream))
        if stream:
            self._stream.set_state(state["stream"])
        if skipped and self._stream.skip(skipped) != skipped:
            raise DataLossError(shrunk_input_message(skipped))

    def close(self) -> None:
        """Stops the threads and closes the files of this iteration."""
        self._returned.clear()
        self._end()

    def _end(self) -> None:
        self._elements = iter(())
        try:
            self._finalizer()
        except BaseException:
            # An interrupt (Ctrl-C): the stream may have threads still, which end with a second close.
            self._finalizer = weakref.finalize(self, self._stream.close)
            raise


_BUSY_CODES = frozenset(
    method.__code__
    for method in (DatasetIterator.__next__, DatasetIterator.get_state, DatasetIterator.set_state)
)


def _refuse_to_loop(iterator: DatasetIterator) -> None:
    """Tells the function that is being traced, if any, that its Python code must run in every call."""
    if THREADS_IN_CONTEXT and (frames := THIS_THREAD.state.state_frames):
        frames[-1].refuse_to_loop(iterator)
