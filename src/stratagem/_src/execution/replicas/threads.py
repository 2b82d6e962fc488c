"""Replicas as threads that take turns.

Replica 0 runs until it meets the others (in a collective, ``merge_call`` or an aggregated assignment)
or returns, then replica 1, and so on; when all wait at the same meeting, the calling thread holds it
and the turns begin again. Only one replica's Python runs at a time, so side effects come in a definite
order, while the arrays' computations overlap on their devices.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core.errors import DeviceError, ReplicaMismatchError
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.jax_compat import jax_settings
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.process.background import Background, BackgroundThread
from stratagem._src.telemetry.measurement.recorder import span
from stratagem._src.variables import access as state

__all__ = ["Meeting", "ReplicaThreads"]

_RELEASE_SECONDS = 1.0


class _Released(BaseException):
    """Unwinds a replica that waits at a meeting that will not take place."""


@dataclass(slots=True)
class Meeting:
    """What a replica brings to a meeting.

    Attributes:
        label: What is done; must be the same in all replicas.
        hold: Called once with every replica's payload; returns a result for each.
        payload: The replica's contribution.
    """

    label: str
    hold: Callable[[list[Any]], Sequence[Any]]
    payload: Any


@dataclass(slots=True)
class _Replica:
    start: Callable[[], BackgroundThread]
    turn: queue.SimpleQueue[None]
    thread: BackgroundThread | None = None
    meeting: Meeting | None = None
    answer: Any = None
    result: Any = None
    error: BaseException | None = None
    finished: bool = False


class ReplicaThreads:
    """Runs one function for each replica of a group.

    Args:
        strategy: The strategy, current in the replicas and in meetings.
        group: The replicas' devices.
    """

    def __init__(self, strategy: StrategyProtocol, group: ReplicaGroup) -> None:
        self._strategy = strategy
        self._group = group
        self._replicas: list[_Replica] = []
        self._background = Background(f"a run of {strategy!r}")
        # Not of threading, whose semaphores turn an interrupt into "release unlocked lock" now and then.
        self._baton: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._aborted = False

    def run(self, bodies: Sequence[Callable[[], Any]], merge: Callable[[list[Any]], Any]) -> Any:
        """Returns what ``merge`` makes of the results of the replicas' bodies.

        Raises:
            ReplicaMismatchError: If the replicas do not come to the same meetings.
            BaseException: The first error of a replica or a meeting. Variables then have the values
                they had before the call.
        """
        settings = jax_settings.current_settings()
        return state.atomically(lambda journal: self._run(bodies, merge, journal, settings))

    def _run(
        self,
        bodies: Sequence[Callable[[], Any]],
        merge: Callable[[list[Any]], Any],
        journal: state.Journal,
        settings: tuple[Any, ...],
    ) -> Any:
        for index, body in enumerate(bodies):
            start = functools.partial(
                self._background.start,
                contextvars.copy_context().run,
                self._thread_body(index, body, journal, settings),
                name=f"replica-{index}",
            )
            self._replicas.append(_Replica(start, queue.SimpleQueue()))
        try:
            # While this thread waits, what it does is a signal handler's and not the run's.
            with context.enter(context.Frame(self._strategy, None)), state.journaled(None):
                self._take_turns(journal)
            for replica in self._replicas:
                assert replica.thread is not None
                replica.thread.join()
            return merge([replica.result for replica in self._replicas])
        except BaseException:
            # Again, if an interrupt arrives meanwhile: a replica that is not released waits for ever.
            try:
                self._release()
            except BaseException:
                self._release()
                raise
            raise

    def meet(self, index: int, meeting: Meeting) -> Any:
        """Waits in replica ``index`` for the others and returns its result of the meeting."""
        if self._aborted:
            raise _Released
        replica = self._replicas[index]
        replica.meeting = meeting
        with span(f"meet at {meeting.label}", "collective"):
            self._baton.put(None)
            replica.turn.get()
        if self._aborted:
            raise _Released
        answer, replica.answer = replica.answer, None
        return answer

    def _thread_body(
        self,
        index: int,
        body: Callable[[], Any],
        journal: state.Journal,
        settings: tuple[Any, ...],
    ) -> Callable[[], None]:
        number = self._group.first_local + index

        def target() -> None:
            replica = self._replicas[index]
            replica.turn.get()
            try:
                if not self._aborted:
                    with contextlib.ExitStack() as stack:
                        stack.enter_context(jax_settings.applied(settings))
                        stack.enter_context(jax.default_device(self._group.local_devices[index]))
                        stack.enter_context(state.journaled(journal))
                        stack.enter_context(span(f"replica {number}", "replica"))
                        replica.result = body()
            except _Released:
                pass
            except BaseException as error:
                replica.error = _explained(error)
            finally:
                replica.finished = True
                self._baton.put(None)

        return target

    def _take_turns(self, journal: state.Journal) -> None:
        for replica in self._replicas:
            replica.thread = replica.start()
        while True:
            for replica in self._replicas:
                replica.turn.put(None)
                self._baton.get()
                if replica.error is not None:
                    raise replica.error
            if all(replica.finished for replica in self._replicas):
                return
            with state.journaled(journal):
                self._hold_meeting()

    def _hold_meeting(self) -> None:
        meetings = [replica.meeting for replica in self._replicas]
        if any(meeting is None for meeting in meetings) or (
            len({meeting.label for meeting in meetings if meeting is not None}) > 1
        ):
            raise ReplicaMismatchError(
                "Every replica must take part in the same merge_call, collective or aggregated "
                "assignment, but "
                + "; ".join(
                    f"replica {index} {'returned' if meeting is None else 'is at ' + meeting.label}"
                    for index, meeting in enumerate(meetings, self._group.first_local)
                )
                + ". Call it in every replica, outside of conditions that depend on the replica."
            )
        present = [meeting for meeting in meetings if meeting is not None]
        with span(present[0].label, "collective"):
            answers = present[0].hold([meeting.payload for meeting in present])
        for replica, answer in zip(self._replicas, answers, strict=True):
            replica.meeting = None
            replica.answer = answer

    def _release(self) -> None:
        self._aborted = True
        for replica in self._replicas:
            replica.turn.put(None)
        # One that is busy cannot be stopped: it is named in a warning, and what it does to variables from
        # now on is refused.
        self._background.join_or_leave(_RELEASE_SECONDS)


def _explained(error: BaseException) -> BaseException:
    """Returns the error of a replica, or one that says more where JAX knows nothing of replicas."""
    if not (isinstance(error, ValueError) and "incompatible devices" in str(error)):
        return error
    explained = DeviceError(
        "A replica computes with arrays of its own device, got one that is on several devices or on "
        "another one: most likely a captured array, such as the result of strategy.reduce() or gather(). "
        "Pass it as an argument, strategy.run(fn, args=(x,)), which gives each replica its copy; or call "
        f"run inside a stratagem.function. JAX says: {str(error).splitlines()[0]}"
    )
    explained.__cause__ = error
    return explained
