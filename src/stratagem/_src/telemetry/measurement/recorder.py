"""``Recorder``: collects the measurements of a task's threads at the cost of a few additions."""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from stratagem._src.core.types import PyTree, StaticValue
from stratagem._src.telemetry.measurement.interval import Interval
from stratagem._src.telemetry.measurement.thread_counters import ThreadCounters

__all__ = [
    "Annotate",
    "Recorder",
    "activity",
    "annotate_with",
    "begin_recording",
    "end_recording",
    "recorder",
    "span",
    "when_recording_changes",
]

_T = TypeVar("_T")
_MAX_PENDING_PROGRAMS = 2**16
_MAX_NOTES = 100

Source = Callable[[], Mapping[str, Any]]
Annotate = Callable[..., contextlib.AbstractContextManager[Any]]
"""Called with a name and details, returns a block whose duration is recorded in a profile."""

_NO_SPAN = contextlib.nullcontext()


class _Local(threading.local):
    """The counters of each thread, created when the thread first measures something."""

    def __init__(self, all_counters: list[ThreadCounters]) -> None:
        self.counters = ThreadCounters()
        all_counters.append(self.counters)


class Recorder:
    """Collects measurements from any thread without a lock; one thread sums them up periodically.

    >>> from stratagem._src.telemetry.measurement.recorder import Recorder
    >>> recorder = Recorder()
    >>> step = recorder.as_step(lambda x: x + 1)
    >>> step(1), step(2)
    (2, 3)
    >>> recorder.take().steps
    2

    Attributes:
        annotate: Records spans in a profile, while one is written; otherwise ``None``.
        report: Records a user's metrics, such as the loss; arrays need not be computed yet.
        replicas: The replica of each device, by device id, of the programs that ran.
    """

    def __init__(self) -> None:
        self._all_counters: list[ThreadCounters] = []
        self._local = _Local(self._all_counters)
        # Bounded, in case the thread that takes the entries is delayed.
        self._joint: collections.deque[tuple[int, float]] = collections.deque(
            maxlen=_MAX_PENDING_PROGRAMS
        )
        self._last_take = time.perf_counter()
        self._last_end = -math.inf
        self._reported: dict[str, Any] = {}
        self.report: Callable[[dict[str, Any]], None] = self._reported.update
        self._notes: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MAX_NOTES)
        self._sources: dict[str, weakref.WeakMethod[Source]] = {}
        self._activities: list[str] = []
        self.annotate: Annotate | None = None
        self.replicas: dict[int, int] = {}

    # Measurements.

    def as_step(
        self, run: Callable[..., _T], replicas: Mapping[int, int] | None = None
    ) -> Callable[..., _T]:
        """Wraps ``run`` so that every call that returns counts as a step.

        Args:
            run: The function that runs a step.
            replicas: The replica of each participating device, by device id.
        """
        local, clock = self._local, time.perf_counter
        if replicas is not None:
            self.replicas |= replicas
        if self.annotate is not None:
            run = _annotated(run, self.annotate)

        def step(*args: PyTree) -> _T:
            counters = local.counters
            if counters.in_step:
                return run(*args)
            counters.in_step = True
            untimed = counters.untimed
            began = 0.0 if untimed else clock()
            try:
                result = run(*args)
            finally:
                counters.in_step = False
            if untimed:
                counters.untimed = untimed - 1
            else:
                ended = clock()
                if not counters.steps:
                    counters.first_start = began
                one_in = counters.time_one_in
                counters.untimed = one_in - 1
                counters.program_seconds += (ended - began) * one_in
                counters.last_end = ended
            # The reader relies on this order: it reads the count first and the times after it.
            counters.steps += 1
            return result

        return step

    def draw(self, take: Callable[[], _T], count_examples: Callable[[_T], int]) -> _T:
        """Returns the result of ``take``, and records its duration and number of examples."""
        counters = self._local.counters
        if counters.in_draw:
            return take()
        counters.in_draw = True
        began = time.perf_counter()
        try:
            with self.span("input wait", "input"):
                element = take()
        finally:
            counters.in_draw = False
        counters.input_seconds += time.perf_counter() - began
        counters.examples += count_examples(element)
        return element

    def communicate(self, transfer: Callable[[], _T]) -> _T:
        """Returns the result of ``transfer``, and records its duration as communication."""
        began = time.perf_counter()
        try:
            return transfer()
        finally:
            self._local.counters.communication_seconds += time.perf_counter() - began

    def run_multi_process(self, number: int, name: str, run: Callable[[], _T]) -> _T:
        """Returns the result of ``run``, and records the duration of a program that all workers run.

        Args:
            number: The sequence number of the program; the same in all workers.
            name: The name of the program.
            run: Waits for the program.
        """
        began = time.perf_counter()
        with self.span(f"all workers: {name}", "together", number=number):
            result = run()
        self._joint.append((number, time.perf_counter() - began))
        return result

    def span(
        self, name: str, kind: str, **details: StaticValue
    ) -> contextlib.AbstractContextManager[Any]:
        """Returns a block whose duration is recorded in the profile, if one is written; see ``span``."""
        return _NO_SPAN if self.annotate is None else self.annotate(name, kind=kind, **details)

    def take(self) -> Interval:
        """Returns the sums of the measurements since the last call. Only one thread may call it."""
        interval = Interval()
        now = time.perf_counter()
        since_last_take, self._last_take = now - self._last_take, now
        first_start, last_end = math.inf, self._last_end
        for counters in list(self._all_counters):
            # Checked first: if the thread has ended by now, its counters are final.
            has_ended = not counters.thread.is_alive()
            some_untimed = counters.time_one_in > 1
            # The counts before the times: a step sets its times first and counts afterwards, so every
            # counted step has its times.
            counters.move_to(interval, since_last_take)
            first_start = min(first_start, counters.first_start)
            last_end = max(last_end, now if some_untimed else counters.last_end)
            if has_ended:
                self._all_counters.remove(counters)
        interval.joint = [self._joint.popleft() for _ in range(len(self._joint))]
        if interval.steps:
            began = first_start if self._last_end == -math.inf else self._last_end
            interval.seconds = last_end - began
        else:
            interval.seconds = since_last_take
        self._last_end = last_end
        return interval

    # Metrics, activities and notes.

    @contextlib.contextmanager
    def activity(self, name: str) -> Iterator[None]:
        """Says what the task does in the block instead of steps, such as compiling."""
        self._activities.append(name)
        try:
            yield
        finally:
            self._activities.remove(name)

    @property
    def current_activity(self) -> str:
        """The activity that began last and has not ended; empty if there is none."""
        return next(iter(self._activities[-1:]), "")

    def take_reported(self) -> dict[str, Any]:
        """Returns the newest reported metrics since the last call."""
        return {name: self._reported.pop(name) for name in list(self._reported)}

    def note(self, kind: str, text: str) -> None:
        """Records a message for users: a warning, an error, a recovery."""
        self._notes.append({"time": time.time(), "kind": kind, "text": text})

    def take_notes(self) -> list[dict[str, Any]]:
        """Returns the messages since the last call; only the newest if there are very many."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def add_source(self, name: str, source: Source) -> None:
        """Adds a method that is polled for metrics every second, for as long as its object lives."""
        self._sources[name] = weakref.WeakMethod(source)

    def metrics(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields the current metrics of all sources."""
        for name, reference in list(self._sources.items()):
            source = reference()
            if source is not None:
                yield name, source()


def _annotated(run: Callable[..., _T], annotate: Annotate) -> Callable[..., _T]:
    def annotated(*args: PyTree) -> _T:
        with annotate("step", kind="step"):
            return run(*args)

    return annotated


_recorder: Recorder | None = None
_num_users = 0
_changing = threading.RLock()
_when_changed: list[Callable[[], None]] = []


def recorder() -> Recorder | None:
    """Returns the recorder of this task's measurements; ``None`` if the task is not monitored."""
    return _recorder


def span(name: str, kind: str, **details: StaticValue) -> contextlib.AbstractContextManager[Any]:
    """Returns a block whose duration is recorded in the profile of this process, if one is written.

    Args:
        name: The name of the span.
        kind: The category of the span.
        **details: Additional attributes: numbers and strings.
    """
    current = _recorder
    return _NO_SPAN if current is None else current.span(name, kind, **details)


def activity(name: str) -> contextlib.AbstractContextManager[Any]:
    """Returns a block in which the dashboard shows ``name`` as the state of this task.

    Args:
        name: ``"compiling"`` or ``"recovering"``.
    """
    current = _recorder
    return _NO_SPAN if current is None else current.activity(name)


def when_recording_changes(function: Callable[[], None]) -> None:
    """Calls ``function`` whenever recording starts, stops, or changes how steps are measured."""
    _when_changed.append(function)


def begin_recording() -> Recorder:
    """Starts recording measurements, until ``end_recording`` has been called as often."""
    global _recorder, _num_users
    with _changing:
        _num_users += 1
        if _recorder is None:
            _recorder = Recorder()
            _notify_change()
        return _recorder


def end_recording() -> None:
    """Stops recording, if there is no other user of the recorder."""
    global _recorder, _num_users
    with _changing:
        _num_users -= 1
        if not _num_users:
            _recorder = None
            _notify_change()


@contextlib.contextmanager
def annotate_with(annotate: Annotate) -> Iterator[Recorder]:
    """Also records the measurements of the block in a profile."""
    current = begin_recording()
    try:
        current.annotate = annotate
        _notify_change()
        yield current
    finally:
        current.annotate = None
        _notify_change()
        end_recording()


def _notify_change() -> None:
    for function in _when_changed:
        function()
