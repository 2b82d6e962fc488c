"""``WorkerSession``: runs the closures of one coordinator on a worker."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import OutOfRangeError
from stratagem._src.core.types import Picklable
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.parameter_server.protocol.serialization import (
    MAX_INLINE_BYTES,
    Payload,
    ResultSnapshot,
    pack,
    unpack,
    unpicklable_part_error,
)
from stratagem._src.parameter_server.protocol.worker_index import on_worker
from stratagem._src.parameter_server.protocol.worker_messages import (
    MAX_POLL_WAIT_SECONDS,
    ClosureCall,
    Failed,
    Held,
    Hello,
    InlineValue,
    NotStarted,
    PollRequest,
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

_REPORT_BATCH_SIZE = 32
_BATCH_WINDOW_SECONDS = 0.001

FetchValue = Callable[[ValueAt], Payload]


class ValueMissing(Exception):
    """The result that a closure needs is not on the worker that should hold it."""

    def __init__(self, closure: int) -> None:
        super().__init__(closure)
        self.closure = closure


class WorkerSession:
    """Runs one coordinator's closures in threads, and keeps its results and definitions.

    The threads catch all exceptions of user functions. Any other error that ends a thread is raised by
    the next poll, because the thread's closure would never be reported.

    Args:
        token: The id of the session.
        hello: The message that opened it.
        worker_index: The index of this worker.
        fetch_value: Fetches a result that another worker holds; raises ``ValueMissing``.
    """

    def __init__(
        self, token: str, hello: Hello, worker_index: int, fetch_value: FetchValue
    ) -> None:
        self.token = token
        self.coordinator = hello.coordinator
        self.owner = hello.owner
        self.last_heard = time.monotonic()
        self.background = Background(f"worker {worker_index}", on_failure=self._wake_polls)
        self._worker_index = worker_index
        self._fetch_value = fetch_value
        with on_worker(worker_index):
            self._strategy: StrategyProtocol = unpack(hello.strategy)
        self._definitions = WorkerDefinitions()
        self._values: dict[int, ResultSnapshot] = {}
        self._lock = threading.Lock()
        self._has_calls = threading.Condition(self._lock)
        self._has_reports = threading.Condition(self._lock)
        self._calls: collections.deque[ClosureCall] = collections.deque()
        self._reports: list[Report] = []
        self._closed = self._is_batching = self._has_failed = False
        self._num_idle = 0
        self._threads_left = hello.num_threads

    def poll(self, request: PollRequest) -> list[Report]:
        """Handles a coordinator's request and returns the available reports."""
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
            wait = min(request.wait, MAX_POLL_WAIT_SECONDS)
            if wait:
                self._wait_for_reports(wait)
                self.last_heard = time.monotonic()
            self.background.check()
            reports, self._reports = self._reports, []
        return reports

    def _wake_polls(self, _: BaseException) -> None:
        with self._lock:
            self._has_failed = True
            self._has_reports.notify_all()

    def _wait_for_reports(self, seconds: float) -> None:
        if not self._reports:
            self._has_reports.wait_for(
                lambda: self._reports or self._closed or self._has_failed, seconds
            )
        if self._calls:  # more reports follow soon: batch them into one reply
            self._is_batching = True
            self._has_reports.wait_for(self._has_full_batch, _BATCH_WINDOW_SECONDS)
            self._is_batching = False

    def _has_full_batch(self) -> bool:
        return len(self._reports) >= _REPORT_BATCH_SIZE or not self._calls or self._closed

    def value(self, closure: int) -> Payload:
        """Returns a held result.

        Raises:
            ValueMissing: If this session does not hold it.
        """
        return pack(self._held_value(closure), copy=False)

    def close(self) -> None:
        """Drops queued closures; each thread ends after its running closure."""
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
                        if not self._is_batching or self._has_full_batch():
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
            payload = _pack_result(result, function)
            is_large = bool(payload.buffers) or len(payload.data) > MAX_INLINE_BYTES
            # A snapshot, because a later call of the function may change the object that it returned.
            snapshot = ResultSnapshot(result) if is_large else None
        except ValueMissing as missing:
            return NotStarted(call.closure, missing.closure)
        except BaseException as error:
            return Failed(call.closure, exception_to_bytes(_as_error(error)))
        seconds = time.perf_counter() - start
        if snapshot is not None:
            self._values[call.closure] = snapshot
            return Held(call.closure, seconds)
        return Returned(call.closure, seconds, payload)

    def _resolve(self, reference: Resource | InlineValue | ValueAt) -> Any:
        if isinstance(reference, Resource):
            return self._definitions.get(reference.definition)
        if isinstance(reference, InlineValue):
            return unpack(reference.payload)
        if reference.session == self.token:
            return self._held_value(reference.closure)
        return unpack(self._fetch_value(reference))


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _pack_result(result: Picklable, function: Any) -> Payload:
    try:
        payload = pack(result, copy=False)
    except Exception as error:
        name = _name(function)
        parts = [(f"The result of {name}", result)]
        if isinstance(result, dict):
            parts = [(f"{key!r} of the result of {name}", part) for key, part in result.items()]
        elif isinstance(result, (tuple, list)):
            parts = [(f"Item {i} of the result of {name}", part) for i, part in enumerate(result)]
        raise unpicklable_part_error(
            parts, error, "Return arrays, numbers or plain data."
        ) from error
    if payload.references:
        raise unpicklable_part_error(
            [], TypeError(f"{_name(function)} returned {payload.references[0]!r}"), ""
        )
    return payload


def _as_error(error: BaseException) -> BaseException:
    """Returns the error for the coordinator to raise; replaces exceptions with a special meaning there."""
    if isinstance(error, StopIteration):
        replacement: Exception = OutOfRangeError("End of the dataset.")
    elif isinstance(error, Exception):
        return error
    else:
        replacement = RuntimeError(f"The function ended with {type(error).__name__}: {error}")
    replacement.__cause__ = error
    return replacement
