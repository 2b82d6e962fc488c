"""``ClusterWatch``: what keeps one worker from waiting in vain for the others."""

from __future__ import annotations

import ctypes
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem.cluster.meeting.client import MeetingClient
from stratagem.cluster.meeting.diagnosis import SILENT_SECONDS, Wait, diagnose
from stratagem.cluster.meeting.worker_status import (
    AGREEING,
    FAILED,
    IDLE,
    LEAVING,
    WAITING,
    WorkerStatus,
)
from stratagem.core import jax_settings
from stratagem.core.errors import ReplicaMismatchError, StratagemError, UnavailableError

__all__ = ["ClusterWatch"]

_POLL_SECONDS = 0.25
# Nobody else's, hopefully; its handler is the C library's pause().
_FREEZE_SIGNAL = signal.SIGRTMAX - 3 if sys.platform == "linux" else signal.SIGUSR2
_LOST = "the meeting point beside the leader is gone: its machine or process was ended"


class ClusterWatch:
    """Watches over the programs that all workers run together.

    Before a program that is another than the last one the workers make sure that all of them are to run
    the same: XLA ends a process whose collectives meet others of another size. While one waits for a
    program it looks whether the others are still there, and gives up with an error that names them.

    Args:
        client: The line to the meeting point.
        worker: The number of this worker.
        names: What every worker is called, with its address.
        timeout: Seconds that a program may wait for the others.
    """

    def __init__(
        self, client: MeetingClient, worker: int, names: Sequence[str], timeout: float
    ) -> None:
        self._client = client
        self._worker = worker
        self._names = names
        self.timeout = timeout
        self._launched = 0
        self._last_program: str | None = None
        self._status = WorkerStatus()
        self._counts: dict[str, int] = {}
        self._counts_lock = threading.Lock()
        self._failure: StratagemError | None = None
        self._runner = _Runner()

    @property
    def has_failed(self) -> bool:
        """Whether this worker has given up on the others."""
        return self._failure is not None

    # --- programs -----------------------------------------------------------------------------------

    def before_launch(self, name: str, fingerprint: str) -> None:
        """Makes sure that all workers are about to run the same program.

        Args:
            name: What it is called in messages.
            fingerprint: Equal for the same program on all workers.

        Raises:
            ReplicaMismatchError: If another worker is to run something else.
            UnavailableError: If another worker does not come.
        """
        self._check_usable()
        if fingerprint != self._last_program:
            programs = self.exchange("programs", [name, fingerprint], name)
            if any(program != programs[0] for program in programs):
                self._last_program = None
                raise ReplicaMismatchError(
                    "Every worker must run the same program at the same time, but "
                    + "; ".join(
                        f"{self._names[i]} is to run {program[0]}"
                        for i, program in enumerate(programs)
                    )
                    + ". Give every worker the same steps, with the same shapes, in the same order."
                )
            self._last_program = fingerprint
        self._launched += 1
        self._be(WAITING, name)

    def run(self, program: Callable[[], Any]) -> Any:
        """Launches a program and returns its results when it has computed them.

        Raises:
            UnavailableError: If another worker is gone, stopped, or does not come in time.
            ReplicaMismatchError: If another worker waits for this one elsewhere.
        """
        begun = time.monotonic()
        try:
            running = self._runner.begin(program)
            while not running.unfinished.acquire(timeout=_POLL_SECONDS):
                self._look(begun)
            if running.error is not None and _lost_connection(running.error):
                self._explain(running.error, begun)
        except StratagemError:
            raise
        except BaseException:
            self._fail_interrupted(self._status.at)
            raise
        self._be(IDLE, self._status.at)
        if running.error is not None:
            raise running.error
        return running.results

    # --- values -------------------------------------------------------------------------------------

    def exchange(
        self,
        channel: str,
        value: Any,
        what: str,
        *,
        turn: int | None = None,
        in_sequence: bool = True,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Any]:
        """Returns what every worker gives, in order; nothing if it is cancelled.

        Args:
            channel: Exchanges of one channel happen in the same order on all workers.
            turn: Which exchange of the channel this is, if the caller counts them: then nothing is
                kept of a channel that is used for a while only.
            value: Plain data of this worker.
            what: What for, in messages.
            in_sequence: Whether it belongs to the common sequence of programs.
            cancelled: Whether the values are not wanted any more.
        """
        self._check_usable()
        if turn is None:
            with self._counts_lock:
                turn = self._counts[channel] = self._counts.get(channel, 0) + 1
        key = f"{channel}/{turn}"
        if in_sequence:
            self._be(AGREEING, what)
        begun = time.monotonic()
        status = self._status if in_sequence else WorkerStatus(AGREEING, at=what)
        try:
            self._client.put(key, value)
            while (values := self._client.take(key, _POLL_SECONDS)) is None:
                if cancelled():
                    self._client.withdraw(key)
                    return []
                self._look(begun, status, in_sequence=in_sequence)
        except StratagemError:
            raise
        except BaseException:
            self._fail_interrupted(what)
            raise
        if in_sequence:
            self._be(IDLE, what)
        return values

    def give(self, channel: str, value: Any, turn: int) -> None:
        """Gives this worker's part of an exchange, for the others: it does not want theirs."""
        self._client.put(f"{channel}/{turn}", value)

    # --- leaving ------------------------------------------------------------------------------------

    def leave(self, reason: str, *, wait_seconds: float) -> None:
        """Leaves the cluster.

        Args:
            reason: Why, for the others.
            wait_seconds: How long to wait for the others to come to their end too.
        """
        if wait_seconds > 0 and self._failure is None:
            self._be(LEAVING, "the end of its program", tell_now=True)
            self._client.put("leave", None)
            deadline = time.monotonic() + wait_seconds
            while self._client.take("leave", _POLL_SECONDS) is None:
                begun = deadline - wait_seconds
                wait = Wait(self._status, time.monotonic() - begun, wait_seconds, in_sequence=False)
                views = self._client.views()
                if self._client.is_lost or diagnose(self._worker, wait, views, self._names):
                    break
        self._client.leave(reason)
        self._runner.close()

    # --- failures -----------------------------------------------------------------------------------

    def _be(self, phase: str, at: str, *, tell_now: bool = False) -> None:
        self._status = WorkerStatus(phase, self._launched, at)
        self._client.set_status(self._status, tell_now=tell_now)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(
                f"The cluster is not usable any more since: {self._failure} Start all workers again, "
                "from a checkpoint."
            )

    def _look(
        self, begun: float, status: WorkerStatus | None = None, *, in_sequence: bool = True
    ) -> None:
        """Raises if waiting is in vain."""
        status = status or self._status
        if self._failure is not None:
            raise self._failure
        if self._client.is_lost:
            self._give_up(UnavailableError, f"{self._names[0]} is gone: {_LOST}.", 0, status.at)
        wait = Wait(status, time.monotonic() - begun, self.timeout, in_sequence)
        finding = diagnose(self._worker, wait, self._client.views(), self._names)
        if finding is not None:
            kind = UnavailableError if finding.culprit is not None else ReplicaMismatchError
            self._give_up(kind, f"{finding.text}.", finding.culprit, status.at)

    def _explain(self, error: BaseException, begun: float) -> None:
        """Raises for a program that failed, once it is known whose fault it was."""
        deadline = time.monotonic() + SILENT_SECONDS + 2.0
        while time.monotonic() < deadline:
            try:
                self._look(begun)
            except StratagemError as explained:
                raise explained from error
            time.sleep(_POLL_SECONDS / 5)
        unexplained = UnavailableError(
            f"{self._names[self._worker]} lost the connection to another worker in {self._status.at}, "
            f"though all of them are there: {error}"
        )
        self._fail(unexplained, self._worker, str(unexplained))
        raise unexplained from error

    def _give_up(self, kind: type[StratagemError], text: str, culprit: int | None, at: str) -> None:
        error = kind(f"{self._names[self._worker]} waited in {at}, but {text}")
        self._fail(error, culprit, text)
        raise error

    def _fail_interrupted(self, at: str) -> None:
        reason = f"{self._names[self._worker]} was interrupted in {at}."
        self._fail(UnavailableError(reason), self._worker, reason)

    def _fail(self, error: StratagemError, culprit: int | None, reason: str) -> None:
        self._failure = error
        at, reason = self._status.at, reason.rstrip(".")
        self._status = WorkerStatus(FAILED, self._launched, at, culprit, reason)
        self._client.set_status(self._status, tell_now=True)


def _lost_connection(error: BaseException) -> bool:
    """Returns whether a program failed because of another worker, and not on its own."""
    return isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) and "Gloo" in str(error)


class _Running:
    """A program that runs, and what became of it."""

    def __init__(self, program: Callable[[], Any]) -> None:
        self.program: Callable[[], Any] | None = program
        self.settings = jax_settings.current_settings()
        # A bare lock, because an event takes longer to wait for: held until the program has finished.
        self.unfinished = threading.Lock()
        self.unfinished.acquire()
        self.results: Any = None
        self.error: BaseException | None = None


class _Runner:
    """Runs programs in a thread of its own, so that the caller can look up meanwhile.

    Launching one may take as long as running it: XLA runs small programs at once.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Running | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_busy = False

    def begin(self, program: Callable[[], Any]) -> _Running:
        """Begins to run ``program``, with the JAX settings of this thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="workers-program", daemon=True)
            self._thread.start()
        running = _Running(program)
        self._queue.put(running)
        return running

    def close(self) -> None:
        """Ends the thread; if a program is stuck in it, stops it for good.

        Else it might come back from XLA while Python shuts down, which ends in an abort.
        """
        self._queue.put(None)
        if self._is_busy and self._thread is not None and self._thread.ident is not None:
            libc = ctypes.CDLL(None)
            libc.signal(_FREEZE_SIGNAL, libc.pause)
            signal.pthread_kill(self._thread.ident, _FREEZE_SIGNAL)

    def _work(self) -> None:
        while (running := self._queue.get()) is not None:
            self._is_busy = True
            try:
                with jax_settings.applied(running.settings):
                    assert running.program is not None
                    running.results = jax.block_until_ready(running.program())
            except BaseException as error:
                running.error = error
            running.program = None
            self._is_busy = False
            running.unfinished.release()
            del running
