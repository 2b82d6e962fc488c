"""``Recorder``: takes in what the threads of a task measure, at the price of a few additions."""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from stratagem._src.telemetry.measurement.interval import Interval
from stratagem._src.telemetry.measurement.tally import Tally

__all__ = [
    "Annotate",
    "Recorder",
    "annotate_with",
    "begin_recording",
    "end_recording",
    "recorder",
    "span",
    "when_recording_changes",
]

_T = TypeVar("_T")
_MOST_JOINT = 2**16
_MOST_NOTES = 100

Source = Callable[[], Mapping[str, Any]]
Annotate = Callable[..., contextlib.AbstractContextManager[Any]]
"""Called with a name and details, notes in a profile how long a block takes."""

_NOT_NOTED = contextlib.nullcontext()


class _Mine(threading.local):
    """The tally of each thread, made when it first measures something."""

    def __init__(self, tallies: list[Tally]) -> None:
        self.tally = Tally()
        tallies.append(self.tally)


class Recorder:
    """Takes in measurements from any thread without a lock; one thread adds them up every now and then.

    >>> from stratagem._src.telemetry.measurement.recorder import Recorder
    >>> recorder = Recorder()
    >>> step = recorder.as_step(lambda x: x + 1)
    >>> step(1), step(2)
    (2, 3)
    >>> recorder.take().steps
    2

    Attributes:
        annotate: Notes what happens in a profile, too, while one is written.
        report: Takes in figures of a user, such as the loss; arrays need not have been computed.
        replicas: Of which replica a device is, by the number of the device; of programs that ran.
    """

    def __init__(self) -> None:
        self._tallies: list[Tally] = []
        self._mine = _Mine(self._tallies)
        # Bounded, for the case that the thread that takes them is held up.
        self._joint: collections.deque[tuple[int, float]] = collections.deque(maxlen=_MOST_JOINT)
        self._last_take = time.perf_counter()
        self._last_end = -math.inf
        self._reported: dict[str, Any] = {}
        self.report: Callable[[dict[str, Any]], None] = self._reported.update
        self._notes: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MOST_NOTES)
        self._sources: dict[str, weakref.WeakMethod[Source]] = {}
        self.annotate: Annotate | None = None
        self.replicas: dict[int, int] = {}

    # What is measured.

    def as_step(
        self, run: Callable[..., _T], replicas: Mapping[int, int] | None = None
    ) -> Callable[..., _T]:
        """Returns ``run`` as a function whose calls are counted as steps if they return.

        Args:
            run: What a step calls.
            replicas: The replica of each device that takes part, by the number of the device.
        """
        mine, clock = self._mine, time.perf_counter
        if replicas is not None:
            self.replicas |= replicas
        if self.annotate is not None:
            run = _annotated(run, self.annotate)

        def step(*args: Any) -> _T:
            tally = mine.tally
            if tally.in_step:
                return run(*args)
            tally.in_step = True
            untimed = tally.untimed
            began = 0.0 if untimed else clock()
            try:
                result = run(*args)
            finally:
                tally.in_step = False
            if untimed:
                tally.untimed = untimed - 1
            else:
                ended = clock()
                if not tally.steps:
                    tally.first_start = began
                one_in = tally.time_one_in
                tally.untimed = one_in - 1
                tally.program_seconds += (ended - began) * one_in
                tally.last_end = ended
            tally.steps += 1
            return result

        return step

    def draw(self, take: Callable[[], _T], count_examples: Callable[[_T], int]) -> _T:
        """Returns what ``take`` does, and notes how long that took and how many examples it are."""
        tally = self._mine.tally
        if tally.in_draw:
            return take()
        tally.in_draw = True
        began = time.perf_counter()
        try:
            with self.span("input wait", "input"):
                element = take()
        finally:
            tally.in_draw = False
        tally.input_seconds += time.perf_counter() - began
        tally.examples += count_examples(element)
        return element

    def communicate(self, exchange: Callable[[], _T]) -> _T:
        """Returns what ``exchange`` does, and notes how long a step has fetched or sent so."""
        began = time.perf_counter()
        try:
            return exchange()
        finally:
            self._mine.tally.communication_seconds += time.perf_counter() - began

    def run_together(self, number: int, name: str, run: Callable[[], _T]) -> _T:
        """Returns what ``run`` does, and notes how long a program took that all workers run.

        Args:
            number: Of the program; the same in all workers.
            name: What it is called.
            run: Waits for it.
        """
        began = time.perf_counter()
        with self.span(f"all workers: {name}", "together", number=number):
            result = run()
        self._joint.append((number, time.perf_counter() - began))
        return result

    def span(self, name: str, kind: str, **details: Any) -> contextlib.AbstractContextManager[Any]:
        """Returns a block that is noted in the profile, if one is written; see ``span``."""
        return _NOT_NOTED if self.annotate is None else self.annotate(name, kind=kind, **details)

    def take(self) -> Interval:
        """Returns what was measured since the last call, added up. For one thread."""
        interval = Interval()
        now = time.perf_counter()
        since_last_take, self._last_take = now - self._last_take, now
        first_start, last_end = math.inf, self._last_end
        for tally in list(self._tallies):
            # Asked first: then what it measured is all there.
            has_ended = not tally.thread.is_alive()
            some_untimed = tally.time_one_in > 1
            # Before its times, which steps set and then count.
            tally.move_to(interval, since_last_take)
            first_start = min(first_start, tally.first_start)
            last_end = max(last_end, now if some_untimed else tally.last_end)
            if has_ended:
                self._tallies.remove(tally)
        interval.joint = [self._joint.popleft() for _ in range(len(self._joint))]
        if interval.steps:
            began = first_start if self._last_end == -math.inf else self._last_end
            interval.seconds = last_end - began
        else:
            interval.seconds = since_last_take
        self._last_end = last_end
        return interval

    # What is said.

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


def _annotated(run: Callable[..., _T], annotate: Annotate) -> Callable[..., _T]:
    def annotated(*args: Any) -> _T:
        with annotate("step", kind="step"):
            return run(*args)

    return annotated


_recorder: Recorder | None = None
_num_users = 0
_changing = threading.RLock()
_when_changed: list[Callable[[], None]] = []


def recorder() -> Recorder | None:
    """Returns who takes in this task's measurements; ``None`` if nobody observes it."""
    return _recorder


def span(name: str, kind: str, **details: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a block whose time is noted in the profile of this process, if one is written.

    Args:
        name: What happens in it.
        kind: What such blocks have in common.
        **details: More about it: numbers and texts.
    """
    observer = _recorder
    return _NOT_NOTED if observer is None else observer.span(name, kind, **details)


def when_recording_changes(function: Callable[[], None]) -> None:
    """Has ``function`` called each time that steps are to be measured, or not any more, or otherwise."""
    _when_changed.append(function)


def begin_recording() -> Recorder:
    """Has what this task does from now on measured, until ``end_recording`` was called as often."""
    global _recorder, _num_users
    with _changing:
        _num_users += 1
        if _recorder is None:
            _recorder = Recorder()
            _tell_of_change()
        return _recorder


def end_recording() -> None:
    """Has nothing measured any more, if nobody else wants it."""
    global _recorder, _num_users
    with _changing:
        _num_users -= 1
        if not _num_users:
            _recorder = None
            _tell_of_change()


@contextlib.contextmanager
def annotate_with(annotate: Annotate) -> Iterator[Recorder]:
    """Has what is measured within the block noted in a profile, too."""
    observer = begin_recording()
    try:
        observer.annotate = annotate
        _tell_of_change()
        yield observer
    finally:
        observer.annotate = None
        _tell_of_change()
        end_recording()


def _tell_of_change() -> None:
    for function in _when_changed:
        function()
