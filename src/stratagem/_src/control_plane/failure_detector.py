"""``ClusterWatch``: what keeps one worker from waiting in vain for the others."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from stratagem._src.collective_backends.hosts.host_link import CONNECTION_LOST
from stratagem._src.collective_backends.shared_memory.local_group import PEER_ENDED
from stratagem._src.control_plane.beginnings import Beginnings
from stratagem._src.control_plane.diagnosis import (
    SILENT_SECONDS,
    Finding,
    ServerView,
    Wait,
    diagnose,
    find_cut,
)
from stratagem._src.control_plane.given_values import GivenValues
from stratagem._src.control_plane.membership_client import MeetingClient
from stratagem._src.control_plane.optional_meeting import OptionalMeeting, Position
from stratagem._src.control_plane.program_difference import first_difference
from stratagem._src.control_plane.program_runner import ProgramRunner, Running
from stratagem._src.control_plane.suspend_aware_timer import Patience
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
from stratagem._src.mesh.dispatch_queue import Comparison, Listing
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.recorder import recorder, span

__all__ = ["ClusterWatch"]

_POLL_SECONDS = 0.25
_LAST_PROGRAM_SECONDS = 5.0
_CULPRIT_SECONDS = 5.0
_THREAD_SECONDS = 1.0


class ClusterWatch:
    """Watches over the programs that all workers run together.

    Before a program that is another than the last one the workers make sure that all of them are to run
    the same: XLA ends a process whose collectives meet others of another size.

    On CPU it waits for each program, looks meanwhile whether the others are still there, and gives up with
    an error that names them. Elsewhere programs are only launched, and a watchdog looks: its error is
    raised by the next call, and ends the process if that does not come.

    Args:
        client: The line to the meeting point.
        worker: The number of this worker.
        names: What every worker is called, with its address.
        timeout: Seconds that a program may wait for the others.
        platform: What the programs run on, as JAX calls it.
        server_at: The number of the worker on whose host the membership server runs.
    """

    def __init__(
        self,
        client: MeetingClient,
        worker: int,
        names: Sequence[str],
        timeout: float,
        platform: str = "cpu",
        server_at: int = 0,
    ) -> None:
        self._client = client
        self._server_at = server_at
        self._worker = worker
        self._names = names
        self.timeout = timeout
        self._launched = 0
        self._launching_threads: weakref.WeakSet[Any] = weakref.WeakSet()
        self._agreed = 0
        self._beginnings = Beginnings(client.set_begins)
        self._last_program: str | None = None
        self._status = WorkerStatus()
        self._given = GivenValues(client, self._look)
        self._optional = OptionalMeeting(client, worker)
        self._failure: StratagemError | None = None
        self._has_lost_others = False
        self._has_left = False
        self._is_told = False
        self._when_stuck: Callable[[], None] = lambda: None
        self._when_given_up: Callable[[], None] = lambda: None
        self._unacknowledged: Callable[[], Mapping[int, float]] = dict
        self.use_platform(platform)
        self._background = Background("the watch over the workers")
        self._runner = ProgramRunner(self._background)
        self._watchdog = Watchdog(
            self._background, self._find_loss, lambda: self._is_told, lambda: self.timeout
        )

    @property
    def line(self) -> MeetingClient:
        """The line to the meeting point."""
        return self._client

    @property
    def has_failed(self) -> bool:
        """Whether this worker has given up on the others."""
        return self._failure is not None

    @property
    def has_lost_others(self) -> bool:
        """Whether it has because some are gone or not heard of, so that the rest could go on."""
        return self._has_lost_others

    def silent_workers(self) -> set[int]:
        """Returns the other workers that have missed heartbeats for as long as the timeout.

        Also the one that this worker gave up on: another may have told that it is silent.
        """
        silent = {
            number
            for number, view in enumerate(self._client.views())
            if view.is_there and view.silent >= SILENT_SECONDS
        }
        if self._client.silent_seconds >= SILENT_SECONDS:
            silent.add(self._server_at)
        if self._has_lost_others and self._status.culprit is not None:
            silent.add(self._status.culprit)
        return silent - {self._worker}

    def use_platform(self, platform: str) -> None:
        """Sets what the programs run on, when it is known."""
        self.waits_for_programs = platform == "cpu"

    def is_stuck(self) -> bool:
        """Returns whether a program that nobody waits for has not ended."""
        return self._runner.is_busy or (self.has_failed and self._watchdog.has_unfinished())

    def when_stuck(self, function: Callable[[], None]) -> None:
        """Has ``function`` called when an error is raised while a program is stuck."""
        self._when_stuck = function

    def when_given_up(self, function: Callable[[], None]) -> None:
        """Has ``function`` called when this worker gives up on the others or leaves them."""
        self._when_given_up = function

    def watch_connections(self, unacknowledged: Callable[[], Mapping[int, float]]) -> None:
        """Has the connections to other workers looked after.

        Args:
            unacknowledged: Returns for how many seconds workers have acknowledged nothing.
        """
        self._unacknowledged = unacknowledged

    def check_usable(self) -> None:
        """Checks that this worker has not given up on the others.

        Raises:
            UnavailableError: If it has.
            ReplicaMismatchError: If it has because they ran different programs.
        """
        if self._failure is not None:
            self._note_told()
            raise type(self._failure)(
                f"The cluster is not usable any more since: {self._failure} Start all workers again, "
                "from a checkpoint."
            )
        if self._has_left:
            raise UnavailableError(
                f"{self._names[self._worker]} has left the cluster: it is ending."
            )

    # --- programs -----------------------------------------------------------------------------------

    def before_launch(self, name: str, fingerprint: str, listing: Listing | None = None) -> None:
        """Makes sure that all workers are about to run the same program.

        Args:
            name: What it is called in messages.
            fingerprint: Equal for the same program on all workers.
            listing: The program's text, for a message that shows where two programs differ.

        Raises:
            ReplicaMismatchError: If another worker is to run something else.
            UnavailableError: If another worker does not come.
        """
        self.check_usable()
        if not self.waits_for_programs:
            self._look(0.0, self._status, in_sequence=False)
        if fingerprint != self._last_program:
            programs = self.exchange("programs", [name, fingerprint], name)
            if any(program != programs[0] for program in programs):
                self._last_program = None
                where = ""
                if all(program[0] == name for program in programs):
                    where = first_difference(self._names, self._exchange_lines, listing)
                raise ReplicaMismatchError(
                    "Every worker must run the same program at the same time, but "
                    + "; ".join(
                        f"{self._names[i]} is to run {program[0]}"
                        for i, program in enumerate(programs)
                    )
                    + f".{where} Give every worker the same steps, with the same shapes, in the same "
                    "order."
                )
            self._last_program = fingerprint
        self._launched += 1
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            self._launching_threads.add(thread)
        self._be(WAITING, name)

    def _exchange_lines(self, value: Any) -> list[Any]:
        return self.exchange("programs", value, "comparing programs that differ")

    def start_together(self, what: str, start: Callable[[], Any]) -> None:
        """Calls ``start``, which waits for the other workers to do so too, and watches over it."""
        self._be(WAITING, what)
        try:
            self._run_to_end(start)
        except StratagemError:
            raise
        except Exception as error:
            reason = f"{what} failed in {self._names[self._worker]}: {error}"
            self._fail(UnavailableError(reason), self._worker, reason)
            raise

    def fail(self, error: StratagemError) -> None:
        """Makes the cluster unusable for this worker, by an error that every worker raises."""
        self._fail(error, self._worker, str(error))

    def run(self, program: Callable[[], Any]) -> Any:
        """Launches a program and returns its results; on CPU when it has computed them.

        Raises:
            UnavailableError: If another worker is gone, stopped, or does not come in time.
            ReplicaMismatchError: If another worker waits for this one elsewhere.
        """
        if self.waits_for_programs:
            observer = recorder()
            if observer is None:
                return self._run_to_end(program)
            return observer.run_together(
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
            self._note_told()
            if not isinstance(error, StratagemError):
                self._fail_interrupted(self._status.at)
            raise
        self._be(IDLE, self._status.at)
        if running.error is not None:
            raise running.error
        return running.results

    def _wait_for(self, running: Running) -> None:
        patience = Patience()
        while not running.unfinished.acquire(timeout=_POLL_SECONDS):
            self._look(patience.seconds())

    # --- values -------------------------------------------------------------------------------------

    def exchange(self, topic: str, value: Any, what: str, *, in_sequence: bool = True) -> list[Any]:
        """See ``ProcessWatch.exchange``."""
        self.check_usable()
        key = self._given.next_key(topic)
        values: list[Any]
        with span(f"agree on {what}", "together"), self._interrupts_noted(what):
            if not in_sequence:
                self._client.put(key, value)
                values = self._given.take_beside(key, what)
                return values
            self._be(AGREEING, what, key)
            self._client.put(key, value)
            values = self._given.take(key, self._status, in_sequence=True)
        self._agreed += 1
        self._be(IDLE, what)
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
        """See ``ProcessWatch.compare``."""
        self.check_usable()
        key = f"{topic}/{turn}"
        with self._interrupts_noted(what):
            self._client.put(key, said, entries=entries)
            found: Comparison | None = self._given.take_beside(key, what, cancelled)
        return found

    def all_come(self, place: str, what: str) -> bool:
        """Returns whether all workers come to a place, where one may also be alone.

        It belongs to no sequence: others that are waited for elsewhere do not come, and are not waited for.

        Args:
            place: The same for all workers that may do something together.
            what: What that is called in messages.

        Raises:
            UnavailableError: If another worker is lost meanwhile.
        """
        self.check_usable()
        self._be(IDLE, what)
        position = Position(self._launched, self._agreed)
        # Others may come to their end without having come here, as for a worker that is at its own.
        needs_nobody = WorkerStatus(LEAVING, self._launched, what)
        with self._interrupts_noted(what):
            return self._optional.all_come(
                place,
                position,
                lambda: self._beginnings.latest,
                # Finds lost workers. How long to wait for the others is not its affair.
                lambda: self._look(0.0, needs_nobody, in_sequence=False),
                self.timeout,
            )

    @contextlib.contextmanager
    def _interrupts_noted(self, what: str) -> Iterator[None]:
        try:
            yield
        except StratagemError:
            raise
        except BaseException:
            self._fail_interrupted(what)
            raise

    def begin_input(self, dataset: str, number: int) -> Callable[[], None]:
        """See ``ProcessWatch.begin_input``."""
        return self._beginnings.begin(dataset, number)

    def give(self, topic: str, turn: int, said: Any) -> None:
        """See ``ProcessWatch.give``."""
        self._client.put(f"{topic}/{turn}", said, entries=[], is_awaited=False)

    def take_answers(self, key: str, what: str) -> list[Any]:
        """Waits for every worker's answer, none of which waits for another, and returns them.

        Args:
            key: What they answer.
            what: What it is called in messages.

        Raises:
            UnavailableError: If another worker is gone, stopped, or does not answer in time.
        """
        self.check_usable()
        answers: list[Any] = self._given.take_beside(key, what)
        return answers

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
            patience = Patience()
            while self._client.take("leave", _POLL_SECONDS) is None:
                wait = Wait(self._status, patience.seconds(), wait_seconds, in_sequence=False)
                if self._find(wait):
                    break
        if self._failure is not None:
            self._let_culprit_end()
        self._client.leave(reason, keep_line=wait_seconds == 0)
        self._has_left = True
        is_given_up = self.has_failed and self._runner.is_busy
        # Another thread of this process may be at a program still.
        self._runner.close(0.0 if is_given_up else _LAST_PROGRAM_SECONDS)
        self._watchdog.close()
        self._let_threads_end()

    def _let_threads_end(self) -> None:
        """Waits a moment for threads whose next program is refused now.

        JAX aborts a process in which a thread gives an array back while the interpreter is finalized.
        """
        deadline = time.monotonic() + _THREAD_SECONDS
        for thread in self._launching_threads - {threading.current_thread()}:
            thread.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Leaves the others without a word: they, too, are to meet again without this watch."""
        self._has_left = True
        if self._failure is None:
            at = self._names[self._worker]
            self._failure = UnavailableError(f"{at} has left these workers to meet others.")
        self._when_given_up()
        self._client.close()
        self._runner.close(0.0)
        self._watchdog.close()

    def _let_culprit_end(self) -> None:
        """Waits for the end of the one to blame, if it left: its exit code is the one to be seen first."""
        culprit = self._status.culprit
        if culprit in (None, self._worker) or self._client.views()[culprit].left is None:
            return
        self._client.wait_for_change(
            lambda: self._client.is_lost or self._client.views()[culprit].gone, _CULPRIT_SECONDS
        )

    # --- failures -----------------------------------------------------------------------------------

    def _be(self, phase: str, at: str, awaits: str = "", *, tell_now: bool = False) -> None:
        self._status = WorkerStatus(phase, self._launched, at, None, "", self._agreed, awaits)
        self._client.set_status(self._status, tell_now=tell_now)

    def _look(
        self, seconds: float, status: WorkerStatus | None = None, *, in_sequence: bool = True
    ) -> None:
        """Raises if waiting is in vain."""
        self._background.check()
        status = status or self._status
        if self._failure is not None:
            self._note_told()
            raise self._failure
        main_begins = None if in_sequence else self._beginnings.of_main_thread
        begun = self._beginnings.latest
        finding = self._find(
            Wait(status, seconds, self.timeout, in_sequence, main_begins=main_begins, begun=begun)
        )
        if finding is not None:
            error = self._give_up(finding, status.at)
            self._note_told()
            raise error

    def _note_told(self) -> None:
        self._is_told = True
        if self.is_stuck():
            self._when_stuck()

    def _find(self, wait: Wait) -> Finding | None:
        # Before the views: what the server said last of the others is known then, and says more.
        client = self._client
        server = ServerView(self._server_at, client.silent_seconds, client.is_gone)
        views = client.views()
        finding = diagnose(self._worker, wait, views, self._names, server)
        return finding or find_cut(self._worker, self._unacknowledged(), self._names)

    def _find_loss(self, seconds: float, num_launched_since: int) -> str | None:
        """Returns why a program that is in flight will not end, after noting that."""
        if self._failure is None:
            launched = self._launched - num_launched_since
            status = WorkerStatus(WAITING, launched, self._status.at)
            finding = self._find(Wait(status, seconds, self.timeout, may_compute=True))
            if finding is not None:
                self._give_up(finding, status.at)
        return None if self._failure is None else str(self._failure)

    def _explain(self, error: BaseException) -> None:
        """Raises for a program that failed, once it is known whose fault it was."""
        patience = Patience()
        while patience.seconds() < SILENT_SECONDS + 2.0:
            try:
                self._look(patience.seconds())
            except StratagemError as explained:
                raise explained from error
            time.sleep(_POLL_SECONDS / 5)
        unexplained = UnavailableError(
            f"{self._names[self._worker]} lost the connection to another worker in {self._status.at}, "
            f"though all of them are there: {error}"
        )
        self._has_lost_others = True
        self._fail(unexplained, self._worker, str(unexplained))
        raise unexplained from error

    def _give_up(self, finding: Finding, at: str) -> StratagemError:
        """Fails because of a finding; returns the error."""
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
        self._client.set_status(self._status, tell_now=True)
        self._when_given_up()


def _lost_connection(error: BaseException) -> bool:
    """Returns whether a program failed because of another worker, and not on its own."""
    text = str(error)
    is_of_program = isinstance(error, (jax.errors.JaxRuntimeError, ValueError))
    return is_of_program and any(lost in text for lost in ("Gloo", PEER_ENDED, CONNECTION_LOST))
