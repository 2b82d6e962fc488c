"""``WorkerSession``: what a worker does for one coordinator."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import OutOfRangeError
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.parameter_server.protocol.shipping import (
    LARGEST_INLINE_BYTES,
    KeptValue,
    Parcel,
    check_parts,
    pack,
    unpack,
)
from stratagem._src.parameter_server.protocol.worker_index import on_worker
from stratagem._src.parameter_server.protocol.worker_messages import (
    LONGEST_WAIT_SECONDS,
    ClosureCall,
    Exchange,
    Failed,
    Held,
    Hello,
    InlineValue,
    NotStarted,
    Report,
    Resource,
    Returned,
    ValueAt,
)
from stratagem._src.parameter_server.worker.worker_definitions import WorkerDefinitions
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.transport.remote_error import exception_to_bytes

__all__ = ["ValueMissing", "WorkerSession"]

_ENOUGH_REPORTS = 32
_SECONDS_TO_GATHER = 0.001

FetchValue = Callable[[ValueAt], Parcel]


class ValueMissing(Exception):
    """A result that a closure needs is not where it was said to be."""

    def __init__(self, closure: int) -> None:
        super().__init__(closure)
        self.closure = closure


class WorkerSession:
    """Runs one coordinator's closures in threads of its own, and keeps its results and definitions.

    What ends such a thread, which catches whatever functions raise, is raised from the next exchange:
    a closure that it had would never be reported.

    Args:
        token: The name of the session.
        hello: How the coordinator presented itself.
        worker_index: Which worker this is.
        fetch_value: Gets a result that another worker holds; raises ``ValueMissing``.
    """

    def __init__(
        self, token: str, hello: Hello, worker_index: int, fetch_value: FetchValue
    ) -> None:
        self.token = token
        self.coordinator = hello.coordinator
        self.owner = hello.owner
        self.last_heard = time.monotonic()
        self.background = Background(f"worker {worker_index}", on_failure=self._wake_exchanges)
        self._worker_index = worker_index
        self._fetch_value = fetch_value
        with on_worker(worker_index):
            self._strategy: StrategyProtocol = unpack(hello.strategy)
        self._definitions = WorkerDefinitions()
        self._values: dict[int, KeptValue] = {}
        self._lock = threading.Lock()
        self._has_calls = threading.Condition(self._lock)
        self._has_reports = threading.Condition(self._lock)
        self._calls: collections.deque[ClosureCall] = collections.deque()
        self._reports: list[Report] = []
        self._closed = self._gathering = self._has_failed = False
        self._num_idle = 0
        self._threads_left = hello.num_threads

    def exchange(self, request: Exchange) -> list[Report]:
        """Takes in what the coordinator sends and returns the reports that there are."""
        for define in request.definitions:
            self._definitions.add(define)
        self._definitions.forget(request.forgotten)
        for closure in request.released:
            self._values.pop(closure, None)
        with self._lock:
            self.last_heard = time.monotonic()
            if request.recall:
                self._reports += [NotStarted(call.closure, None) for call in self._calls]
                self._calls.clear()
            if request.calls:
                self._calls.extend(request.calls)
                self._start_threads()
                self._has_calls.notify(len(request.calls))
            wait = min(request.wait, LONGEST_WAIT_SECONDS)
            if wait:
                self._wait_for_reports(wait)
                self.last_heard = time.monotonic()
            self.background.check()
            reports, self._reports = self._reports, []
        return reports

    def _wake_exchanges(self, _: BaseException) -> None:
        with self._lock:
            self._has_failed = True
            self._has_reports.notify_all()

    def _wait_for_reports(self, seconds: float) -> None:
        if not self._reports:
            self._has_reports.wait_for(
                lambda: self._reports or self._closed or self._has_failed, seconds
            )
        if self._calls:  # more reports are about to come, and travel better together
            self._gathering = True
            self._has_reports.wait_for(self._has_gathered, _SECONDS_TO_GATHER)
            self._gathering = False

    def _has_gathered(self) -> bool:
        return len(self._reports) >= _ENOUGH_REPORTS or not self._calls or self._closed

    def value(self, closure: int) -> Parcel:
        """Returns a result that is held.

        Raises:
            ValueMissing: If it is not.
        """
        return pack(self._held_value(closure), copy=False)

    def close(self) -> None:
        """Drops the closures that wait; threads end after the ones that run."""
        with self._lock:
            self._closed = True
            self._calls.clear()
            self._reports.clear()
            self._has_calls.notify_all()
            self._has_reports.notify_all()

    def _held_value(self, closure: int) -> Any:
        try:
            return self._values[closure].get()
        except KeyError:
            raise ValueMissing(closure) from None

    def _start_threads(self) -> None:
        for _ in range(min(self._threads_left, len(self._calls) - self._num_idle)):
            self._threads_left -= 1
            self.background.start(self._run_calls, name="closures")

    def _run_calls(self) -> None:
        with on_worker(self._worker_index), self._strategy.scope():
            while (call := self._next_call()) is not None:
                report = self._run(call)
                del call
                with self._lock:
                    if not self._closed:
                        self._reports.append(report)
                        if not self._gathering or self._has_gathered():
                            self._has_reports.notify()
                del report

    def _next_call(self) -> ClosureCall | None:
        with self._lock:
            self._num_idle += 1
            while not self._calls and not self._closed:
                self._has_calls.wait()
            self._num_idle -= 1
            return None if self._closed else self._calls.popleft()

    def _run(self, call: ClosureCall) -> Report:
        start = time.perf_counter()
        try:
            function = self._definitions.get(call.function)
            resolved = [self._resolve(reference) for reference in call.references]
            args, kwargs = unpack(call.arguments, resolved)
            observer = recorder()
            if observer is None:
                result = function(*args, **kwargs)
            else:
                with observer.span(f"closure {_name(function)}", "closure", number=call.closure):
                    result = function(*args, **kwargs)
            parcel = _pack_result(result, function)
            is_large = bool(parcel.buffers) or len(parcel.data) > LARGEST_INLINE_BYTES
            # The function may change what it returned when it is called again.
            kept = KeptValue(result) if is_large else None
        except ValueMissing as missing:
            return NotStarted(call.closure, missing.closure)
        except BaseException as error:
            return Failed(call.closure, exception_to_bytes(_as_error(error)))
        seconds = time.perf_counter() - start
        if kept is not None:
            self._values[call.closure] = kept
            return Held(call.closure, seconds)
        return Returned(call.closure, seconds, parcel)

    def _resolve(self, reference: Resource | InlineValue | ValueAt) -> Any:
        if isinstance(reference, Resource):
            return self._definitions.get(reference.definition)
        if isinstance(reference, InlineValue):
            return unpack(reference.parcel)
        if reference.session == self.token:
            return self._held_value(reference.closure)
        return unpack(self._fetch_value(reference))


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _pack_result(result: Any, function: Any) -> Parcel:
    name = _name(function)
    try:
        parcel = pack(result, copy=False)
    except Exception as error:
        parts = [(f"The result of {name}", result)]
        if isinstance(result, dict):
            parts = [(f"{key!r} of the result of {name}", part) for key, part in result.items()]
        elif isinstance(result, (tuple, list)):
            parts = [(f"Item {i} of the result of {name}", part) for i, part in enumerate(result)]
        raise check_parts(parts, error, "Return arrays, numbers or plain data.") from error
    if parcel.references:
        raise check_parts([], TypeError(f"{name} returned {parcel.references[0]!r}"), "")
    return parcel


def _as_error(error: BaseException) -> BaseException:
    """Returns what the coordinator is to raise: nothing that means something else there."""
    if isinstance(error, StopIteration):
        replacement: Exception = OutOfRangeError("End of the dataset.")
    elif isinstance(error, Exception):
        return error
    else:
        replacement = RuntimeError(f"The function ended with {type(error).__name__}: {error}")
    replacement.__cause__ = error
    return replacement
