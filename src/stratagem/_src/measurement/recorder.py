"""``Recorder``: takes in what the threads of a task measure, at the price of appending to a queue."""

from __future__ import annotations

import collections
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from stratagem._src.measurement.interval import Interval

__all__ = ["Recorder", "begin_recording", "end_recording", "recorder"]

_T = TypeVar("_T")
_STEP, _DRAW, _COMMUNICATION, _JOINT = range(4)
_MOST_ENTRIES = 2**19
_MOST_NOTES = 100

Source = Callable[[], Mapping[str, Any]]


class _Inside(threading.local):
    """What this thread is at: a step within a step is none, nor a draw within a draw."""

    step = False
    draw = False


class Recorder:
    """Takes in measurements from any thread without a lock; one thread adds them up every now and then.

    >>> from stratagem._src.measurement.recorder import Recorder
    >>> recorder = Recorder()
    >>> step = recorder.as_step(lambda x: x + 1)
    >>> step(1), step(2)
    (2, 3)
    >>> recorder.take().steps
    2
    """

    def __init__(self) -> None:
        # Bounded, for the case that the thread that takes them is held up.
        self._entries: collections.deque[tuple[int, float, Any]] = collections.deque(
            maxlen=_MOST_ENTRIES
        )
        self._inside = _Inside()
        self._last_take = time.perf_counter()
        self._last_end: float | None = None
        self._reported: dict[str, Any] = {}
        self._notes: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MOST_NOTES)
        self._sources: dict[str, weakref.WeakMethod[Source]] = {}

    # What is measured.

    def as_step(self, run: Callable[..., _T]) -> Callable[..., _T]:
        """Returns ``run`` as a function whose calls are counted as steps if they return."""
        add, clock, inside = self._entries.append, time.perf_counter, self._inside

        def step(*args: Any) -> _T:
            if inside.step:
                return run(*args)
            inside.step = True
            began = clock()
            try:
                result = run(*args)
            finally:
                inside.step = False
            add((_STEP, began, clock()))
            return result

        return step

    def draw(self, take: Callable[[], _T], count_examples: Callable[[_T], int]) -> _T:
        """Returns what ``take`` does, and notes how long that took and how many examples it are."""
        inside = self._inside
        if inside.draw:
            return take()
        inside.draw = True
        began = time.perf_counter()
        try:
            element = take()
        finally:
            inside.draw = False
            seconds = time.perf_counter() - began
        self._entries.append((_DRAW, seconds, count_examples(element)))
        return element

    def communicate(self, exchange: Callable[[], _T]) -> _T:
        """Returns what ``exchange`` does, and notes how long a step has fetched or sent so."""
        began = time.perf_counter()
        try:
            return exchange()
        finally:
            self._entries.append((_COMMUNICATION, time.perf_counter() - began, None))

    def run_together(self, number: int, run: Callable[[], _T]) -> _T:
        """Returns what ``run`` does, and notes how long a program took that all workers run.

        Args:
            number: Of the program; the same in all workers.
            run: Waits for it.
        """
        began = time.perf_counter()
        result = run()
        self._entries.append((_JOINT, time.perf_counter() - began, number))
        return result

    def take(self) -> Interval:
        """Returns what was measured since the last call, added up. For one thread."""
        interval = Interval()
        first_start, last_end = None, self._last_end
        while self._entries:
            kind, seconds, detail = self._entries.popleft()
            if kind == _STEP:
                start, end = seconds, detail
                first_start = start if first_start is None else first_start
                last_end = end if last_end is None else max(last_end, end)
                interval.steps += 1
                interval.program_seconds += end - start
            elif kind == _DRAW:
                interval.input_seconds += seconds
                interval.examples += detail
            elif kind == _COMMUNICATION:
                interval.communication_seconds += seconds
            else:
                interval.joint.append((detail, seconds))
        now = time.perf_counter()
        if first_start is not None and last_end is not None:
            began = first_start if self._last_end is None else self._last_end
            interval.seconds = last_end - began
        else:
            interval.seconds = now - self._last_take
        self._last_end, self._last_take = last_end, now
        return interval

    # What is said.

    def report(self, values: Mapping[str, Any]) -> None:
        """Takes in figures of a user, such as the loss; arrays need not have been computed."""
        for name, value in values.items():  # each at once, as another thread may take them
            self._reported[name] = value

    def take_reported(self) -> dict[str, Any]:
        """Returns the newest figures since the last call."""
        return {name: self._reported.pop(name) for name in list(self._reported)}

    def note(self, kind: str, text: str) -> None:
        """Takes in something for people to read: a warning, an error, a recovery."""
        self._notes.append({"time": time.time(), "kind": kind, "text": text})

    def take_notes(self) -> list[dict[str, Any]]:
        """Returns what was noted since the last call; of very much the newest."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def add_source(self, name: str, source: Source) -> None:
        """Has a method asked for its figures every second, for as long as its object lives."""
        self._sources[name] = weakref.WeakMethod(source)

    def figures(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields what the sources say now."""
        for name, reference in list(self._sources.items()):
            source = reference()
            if source is not None:
                yield name, source()


_recorder: Recorder | None = None


def recorder() -> Recorder | None:
    """Returns who takes in this task's measurements; ``None`` if nobody observes it."""
    return _recorder


def begin_recording() -> Recorder:
    """Has what this task does from now on measured. Programs that exist already are not."""
    global _recorder
    _recorder = Recorder()
    return _recorder


def end_recording() -> None:
    """Has nothing measured any more."""
    global _recorder
    _recorder = None
