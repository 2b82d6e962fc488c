"""``FailureDetector``: ends a worker's wait for others that are lost, late, or run other programs."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from stratagem._src.collective_backends.hosts.host_link import CONNECTION_LOST
from stratagem._src.collective_backends.shared_memory.local_group import ABORTED, PEER_EXITED
from stratagem._src.control_plane.diagnosis import (
    HEARTBEAT_TIMEOUT_SECONDS,
    Finding,
    ServerView,
    Wait,
    diagnose,
    find_partition,
)
from stratagem._src.control_plane.input_iterations import InputIterations
from stratagem._src.control_plane.membership_client import MembershipClient
from stratagem._src.control_plane.optional_barrier import OptionalBarrier, Position
from stratagem._src.control_plane.program_difference import first_difference
from stratagem._src.control_plane.program_runner import ProgramRunner, Running
from stratagem._src.control_plane.suspend_aware_timer import SuspendAwareTimer
from stratagem._src.control_plane.value_gather import ValueGather
from stratagem._src.control_plane.watchdog import Watchdog
from stratagem._src.control_plane.worker_status import (
    AGREEING,
    FAILED,
    IDLE,
    LEAVING,
    WAITING,
    WorkerStatus,
)
from stratagem._src.core.errors import ReplicaMismatchError, StratagemError, UnavailableError
from stratagem._src.mesh.process_monitor import Comparison, Listing
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.recorder import recorder, span

__all__ = ["FailureDetector"]

_POLL_SECONDS = 0.25
_LAST_PROGRAM_SECONDS = 5.0
_CULPRIT_SECONDS = 5.0
_THREAD_SECONDS = 1.0


class FailureDetector:
    """Monitors the programs that all workers run together.

    When the next program differs from the last one, the workers first verify that all of them are about to
    run the same: XLA aborts a process whose collectives have another size than those of its peers.

    On CPU it waits for each program, polls meanwhile whether the other workers are alive, and gives up with
    an error that names the lost ones. On other platforms programs are launched asynchronously and a
    watchdog polls: the next call raises its error, and the process ends if there is no next call.

    Args:
        client: The client of the membership server.
        worker: The rank of this worker.
        names: The names of all workers, with their addresses.
        timeout: Seconds that a program may wait for the others.
        platform: The JAX platform that the programs run on.
        server_rank: The rank of the worker on whose host the membership server runs.
    """

    def __init__(
        self,
        client: MembershipClient,
        worker: int,
        names: Sequence[str],
        timeout: float,
        platform: str = "cpu",
        server_rank: int = 0,
    ) -> None:
        self._client = client
        self._server_rank = server_rank
        self._worker = worker
        self._names = names
        self.timeout = timeout
        self._launched = 0
        self._launching_threads: weakref.WeakSet[Any] = weakref.WeakSet()
        self._agreed = 0
        self._iterations = InputIterations(client.set_begins)
        self._last_program: str | None = None
        self._status = WorkerStatus()
        self._values = ValueGather(client, self._check_wait)
        self._barrier = OptionalBarrier(client, worker)
        self._failure: StratagemError | None = None
        self._has_lost_others = False
        self._has_left = False
        self._is_reported = False
        self._when_stuck: Callable[[], None] = lambda: None
        self._when_given_up: Callable[[], None] = lambda: None
        self._unacknowledged: Callable[[], Mapping[int, float]] = dict
        self.use_platform(platform)
        self._background = Background("the failure detector")
        self._runner = ProgramRunner(self._background)
        self._watchdog = Watchdog(
            self._background, self._find_loss, lambda: self._is_reported, lambda: self.timeout
        )

    @property
    def membership(self) -> MembershipClient:
        """The client of the membership server."""
        return self._client

    @property
    def has_failed(self) -> bool:
        """Whether this worker has given up on the others."""
        return self._failure is not None

    @property
    def has_lost_others(self) -> bool:
        """Whether it gave up because workers are gone or unresponsive, so that the rest could continue."""
        return self._has_lost_others

    def unresponsive_workers(self) -> set[int]:
        """Returns the other workers that have exceeded the heartbeat timeout.

        Includes the one that this worker gave up on: another worker may have reported it.
        """
        silent = {
            number
            for number, view in enumerate(self._client.views())
            if view.is_there and view.heartbeat_age >= HEARTBEAT_TIMEOUT_SECONDS
        }
        if self._client.heartbeat_age >= HEARTBEAT_TIMEOUT_SECONDS:
            silent.add(self._server_rank)
        if self._has_lost_others and self._status.culprit is not None:
            silent.add(self._status.culprit)
        return silent - {self._worker}

    def use_platform(self, platform: str) -> None:
        """Sets the platform that the programs run on, once it is known."""
        self.waits_for_programs = platform == "cpu"

    def is_stuck(self) -> bool:
        """Returns whether a program that was given up on is still running."""
        return self._runner.is_busy or (self.has_failed and self._watchdog.has_unfinished())

    def on_stuck(self, function: Callable[[], None]) -> None:
        """Calls ``function`` when an error is raised while a program is stuck."""
        self._when_stuck = function

    def on_give_up(self, function: Callable[[], None]) -> None:
        """Calls ``function`` when this worker gives up on the others or leaves them."""
        self._when_given_up = function

    def monitor_connections(self, unacknowledged: Callable[[], Mapping[int, float]]) -> None:
        """Monitors the data connections to other workers.

        Args:
            unacknowledged: Returns, by rank, the seconds for which a worker has acknowledged nothing.
        """
        self._unacknowledged = unacknowledged

    def check_usable(self) -> None:
        """Checks that this worker has not given up on the others.

        Raises:
            UnavailableError: If it has.
            ReplicaMismatchError: If it has because the workers ran different programs.
        """
        if self._failure is not None:
            self._mark_reported()
            raise type(self._failure)(
                f"The cluster is no longer usable since: {self._failure} Restart all workers from a "
                "checkpoint."
            )
        if self._has_left:
            raise UnavailableError(
                f"{self._names[self._worker]} has left the cluster: it is ending."
            )

    # --- programs -----------------------------------------------------------------------------------

    def before_launch(self, name: str, fingerprint: str, listing: Listing | None = None) -> None:
        """Verifies that all workers are about to run the same program.

        Args:
            name: The name of the program in messages.
            fingerprint: Equal for the same program on all workers.
            listing: The program's text, for a message that shows where two programs differ.

        Raises:
            ReplicaMismatchError: If another worker is about to run another program.
            UnavailableError: If another worker does not arrive.
        """
        self.check_usable()
        if not self.waits_for_programs:
            self._check_wait(0.0, self._status, in_sequence=False)
        if fingerprint != self._last_program:
            # A repeated program is not verified again: the steady state of training has no round trip here.
            programs = self.all_gather_object("programs", [name, fingerprint], name)
            if any(program != programs[0] for program in programs):
                self._last_program = None
                where = ""
                if all(program[0] == name for program in programs):
                    where = first_difference(self._names, self._gather_lines, listing)
                raise ReplicaMismatchError(
                    "Every worker must run the same program at the same time, but "
                    + "; ".join(
                        f"{self._names[i]} is about to run {program[0]}"
                        for i, program in enumerate(programs)
                    )
                    + f".{where} Give every worker the same steps, with the same shapes, in the same "
                    "order."
                )
            self._last_program = fingerprint
        # Part of the status: of workers that wait, the ones with a smaller number have not arrived yet.
        self._launched += 1
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            self._launching_threads.add(thread)
        self._set_status(WAITING, name)

    def _gather_lines(self, value: Any) -> list[Any]:
        return self.all_gather_object("programs", value, "comparing programs that differ")

    def start_together(self, what: str, start: Callable[[], Any]) -> None:
        """Calls ``start``, which blocks until all workers have called it, and monitors the wait."""
        self._set_status(WAITING, what)
        try:
            self._run_to_end(start)
        except StratagemError:
            raise
        except Exception as error:
            reason = f"{what} failed in {self._names[self._worker]}: {error}"
            self._fail(UnavailableError(reason), self._worker, reason)
            raise

    def fail(self, error: StratagemError) -> None:
        """Makes the cluster unusable for this worker, because of an error that every worker raises."""
        self._fail(error, self._worker, str(error))

    def run(self, program: Callable[[], Any]) -> Any:
        """Launches a program and returns its results; on CPU only when they are computed.

        Raises:
            UnavailableError: If another worker is gone, suspended, or does not arrive in time.
            ReplicaMismatchError: If another worker waits for this one elsewhere.
        """
        if self.waits_for_programs:
            observer = recorder()
            if observer is None:
                return self._run_to_end(program)
            return observer.run_multi_process(
                self._launched, self._status.at, lambda: self._run_to_end(program)
            )
        try:
            return self._watchdog.launch(program)
        except Exception as error:
            if _lost_connection(error):
                self._explain(error)
            raise

    def _run_to_end(self, program: Callable[[], Any]) -> Any:
        running = self._runner.begin(program)
        try:
            if not running.unfinished.acquire(timeout=_POLL_SECONDS):
                self._wait_for(running)
            if running.error is not None and _lost_connection(running.error):
                self._explain(running.error)
        except BaseException as error:
            self._mark_reported()
            # A Ctrl-C leaves the program half run: the others still wait in its collectives, and would
            # take those of the next program for the missing ones.
            if not isinstance(error, StratagemError):
                self._fail_interrupted(self._status.at)
            raise
        self._set_status(IDLE, self._status.at)
        if running.error is not None:
            raise running.error
        return running.results

    def _wait_for(self, running: Running) -> None:
        timer = SuspendAwareTimer()
        while not running.unfinished.acquire(timeout=_POLL_SECONDS):
            self._check_wait(timer.seconds())

    # --- values -------------------------------------------------------------------------------------

    def all_gather_object(
        self, topic: str, value: Any, what: str, *, in_sequence: bool = True
    ) -> list[Any]:
        """See ``ProcessMonitor.all_gather_object``."""
        self.check_usable()
        key = self._values.next_key(topic)
        values: list[Any]
        with span(f"agree on {what}", "together"), self._failing_on_interrupt(what):
            if not in_sequence:
                self._client.put(key, value)
                # Threads of the input gather while the main thread is in a program, whose status must
                # stay.
                values = self._values.take_out_of_sequence(key, what)
                return values
            self._set_status(AGREEING, what, key)
            self._client.put(key, value)
            values = self._values.take(key, self._status, in_sequence=True)
        self._agreed += 1
        self._set_status(IDLE, what)
        return values

    def compare(
        self,
        topic: str,
        turn: int,
        said: Any,
        entries: list[Any],
        what: str,
        cancelled: Callable[[], bool],
    ) -> Comparison | None:
        """See ``ProcessMonitor.compare``."""
        self.check_usable()
        key = f"{topic}/{turn}"
        with self._failing_on_interrupt(what):
            self._client.put(key, said, entries=entries)
            found: Comparison | None = self._values.take_out_of_sequence(key, what, cancelled)
        return found

    def all_arrive(self, place: str, what: str) -> bool:
        """Waits at an optional barrier; returns whether all workers arrived, or this one is alone there.

        The barrier is not part of the common sequence: workers that wait elsewhere will not arrive, and
        this worker does not wait for them.

        Args:
            place: The name of the barrier, equal on all workers that may meet there.
            what: Its name in messages.

        Raises:
            UnavailableError: If another worker is lost meanwhile.
        """
        self.check_usable()
        self._set_status(IDLE, what)
        position = Position(self._launched, self._agreed)
        # With the status LEAVING, another worker that finishes without arriving here is not a failure.
        needs_nobody = WorkerStatus(LEAVING, self._launched, what)
        with self._failing_on_interrupt(what):
            return self._barrier.all_arrive(
                place,
                position,
                lambda: self._iterations.latest,
                # Zero seconds: finds lost workers, but never a late one.
                lambda: self._check_wait(0.0, needs_nobody, in_sequence=False),
                self.timeout,
            )

    @contextlib.contextmanager
    def _failing_on_interrupt(self, what: str) -> Iterator[None]:
        try:
            yield
        except StratagemError:
            raise
        except BaseException:
            self._fail_interrupted(what)
            raise

    def begin_input(self, dataset: str, number: int) -> Callable[[], None]:
        """See ``ProcessMonitor.begin_input``."""
        return self._iterations.begin(dataset, number)

    def contribute(self, topic: str, turn: int, said: Any) -> None:
        """See ``ProcessMonitor.contribute``."""
        self._client.put(f"{topic}/{turn}", said, entries=[], is_awaited=False)

    def take_answers(self, key: str, what: str) -> list[Any]:
        """Waits for the answers of all workers and returns them. No worker waits for another to answer.

        Args:
            key: The key of the question.
            what: Its name in messages.

        Raises:
            UnavailableError: If another worker is gone, suspended, or does not answer in time.
        """
        self.check_usable()
        answers: list[Any] = self._values.take_out_of_sequence(key, what)
        return answers

    # --- leaving ------------------------------------------------------------------------------------

    def leave(self, reason: str, *, wait_seconds: float) -> None:
        """Leaves the cluster.

        Args:
            reason: The reason, for the other workers.
            wait_seconds: Seconds to wait for the others to finish too.
        """
        if wait_seconds > 0 and self._failure is None:
            self._set_status(LEAVING, "the end of its program", send_now=True)
            # A gather of nothing is a barrier: it is complete when all workers are at the end of their
            # programs.
            self._client.put("leave", None)
            timer = SuspendAwareTimer()
            while self._client.take("leave", _POLL_SECONDS) is None:
                wait = Wait(self._status, timer.seconds(), wait_seconds, in_sequence=False)
                if self._find(wait):
                    break
        if self._failure is not None:
            self._let_culprit_end()
        self._client.leave(reason, keep_connection=wait_seconds == 0)
        self._has_left = True
        is_given_up = self.has_failed and self._runner.is_busy
        # Another thread of this process may still run a program.
        self._runner.close(0.0 if is_given_up else _LAST_PROGRAM_SECONDS)
        self._watchdog.close()
        self._let_threads_end()

    def _let_threads_end(self) -> None:
        """Waits a moment for threads that launched programs; their next launch raises.

        JAX aborts a process in which a thread releases an array while the interpreter is finalized.
        """
        deadline = time.monotonic() + _THREAD_SECONDS
        for thread in self._launching_threads - {threading.current_thread()}:
            thread.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Leaves without notice, because all workers re-form with new failure detectors."""
        self._has_left = True
        if self._failure is None:
            at = self._names[self._worker]
            self._failure = UnavailableError(f"{at} has left these workers to join others.")
        self._when_given_up()
        self._client.close()
        self._runner.close(0.0)
        self._watchdog.close()

    def _let_culprit_end(self) -> None:
        """Waits for the failed worker to end, if it left: a launcher should see its exit code first."""
        culprit = self._status.culprit
        if culprit in (None, self._worker) or self._client.views()[culprit].left is None:
            return
        self._client.wait_for_change(
            lambda: self._client.is_lost or self._client.views()[culprit].gone, _CULPRIT_SECONDS
        )

    # --- failures -----------------------------------------------------------------------------------

    def _set_status(self, phase: str, at: str, awaits: str = "", *, send_now: bool = False) -> None:
        self._status = WorkerStatus(phase, self._launched, at, None, "", self._agreed, awaits)
        self._client.set_status(self._status, send_now=send_now)

    def _check_wait(
        self, seconds: float, status: WorkerStatus | None = None, *, in_sequence: bool = True
    ) -> None:
        """Raises if the wait can never end."""
        self._background.check()
        status = status or self._status
        if self._failure is not None:
            self._mark_reported()
            raise self._failure
        main_begins = None if in_sequence else self._iterations.of_main_thread
        wait = Wait(
            status,
            seconds,
            self.timeout,
            in_sequence,
            main_begins=main_begins,
            begun=self._iterations.latest,
            in_main_thread=threading.current_thread() is threading.main_thread(),
        )
        finding = self._find(wait)
        if finding is not None:
            error = self._give_up(finding, status.at)
            self._mark_reported()
            raise error

    def _mark_reported(self) -> None:
        self._is_reported = True
        if self.is_stuck():
            self._when_stuck()

    def _find(self, wait: Wait) -> Finding | None:
        # Read before the views: if the server is disconnected by then, the views include its last message,
        # which says more than its loss.
        client = self._client
        server = ServerView(self._server_rank, client.heartbeat_age, client.is_disconnected)
        views = client.views()
        finding = diagnose(self._worker, wait, views, self._names, server)
        return finding or find_partition(self._worker, self._unacknowledged(), self._names)

    def _find_loss(self, seconds: float, num_launched_since: int) -> str | None:
        """Returns why a program in flight will not end, and records that as the failure."""
        if self._failure is None:
            launched = self._launched - num_launched_since
            status = WorkerStatus(WAITING, launched, self._status.at)
            finding = self._find(Wait(status, seconds, self.timeout, may_compute=True))
            if finding is not None:
                self._give_up(finding, status.at)
        return None if self._failure is None else str(self._failure)

    def _explain(self, error: BaseException) -> None:
        """Raises for a program that failed with a connection error, once the failed worker is known.

        Polls for longer than the heartbeat timeout, so that a worker without heartbeats is found too.
        """
        timer = SuspendAwareTimer()
        while timer.seconds() < HEARTBEAT_TIMEOUT_SECONDS + 2.0:
            try:
                self._check_wait(timer.seconds())
            except StratagemError as explained:
                # The connection is lost because of what this says: the program's own error adds nothing.
                raise explained from None
            time.sleep(_POLL_SECONDS / 5)
        unexplained = UnavailableError(
            f"{self._names[self._worker]} lost the connection to another worker in {self._status.at}, "
            f"although none of them is lost: {error}"
        )
        self._has_lost_others = True
        self._fail(unexplained, self._worker, str(unexplained))
        raise unexplained from error

    def _give_up(self, finding: Finding, at: str) -> StratagemError:
        """Records a finding as the failure of this worker; returns the error."""
        kind = UnavailableError if finding.culprit is not None else ReplicaMismatchError
        error = kind(f"{self._names[self._worker]} waited in {at}, but {finding.text}.")
        self._has_lost_others = finding.is_lost
        self._fail(error, finding.culprit, finding.text)
        return error

    def _fail_interrupted(self, at: str) -> None:
        reason = f"{self._names[self._worker]} was interrupted in {at}."
        self._fail(UnavailableError(reason), self._worker, reason)

    def _fail(self, error: StratagemError, culprit: int | None, reason: str) -> None:
        self._failure = error
        at, reason = self._status.at, reason.rstrip(".")
        self._status = WorkerStatus(FAILED, self._launched, at, culprit, reason)
        # In this order: the others should learn the reason before their collectives with this worker fail.
        self._client.set_status(self._status, send_now=True)
        self._when_given_up()


def _lost_connection(error: BaseException) -> bool:
    """Returns whether a program failed because it lost the connection to another worker.

    Also if this worker has given up on another in a thread of the input, which aborts its collectives.
    """
    text = str(error)
    is_of_program = isinstance(error, (jax.errors.JaxRuntimeError, ValueError))
    return is_of_program and any(
        lost in text for lost in ("Gloo", PEER_EXITED, CONNECTION_LOST, ABORTED)
    )
