"""Runs replicas as threads that take turns.

Replica 0 runs until it reaches a barrier (a collective, ``merge_call`` or an aggregated assignment) or
returns, then replica 1, and so on. When all replicas wait at the same barrier, the calling thread runs the
barrier's action and the next round of turns starts. Only one replica's Python runs at a time, so side
effects have a deterministic order, while the computations of the arrays overlap on their devices.
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
from stratagem._src.core.types import PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.flax_modules import add_flax_hint
from stratagem._src.jax_compat import jax_settings
from stratagem._src.jax_compat.flax_trace_level import own_trace_level
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.process.background import Background, BackgroundThread
from stratagem._src.telemetry.measurement.recorder import span
from stratagem._src.variables import transactions

__all__ = ["Barrier", "ReplicaThreads"]

_RELEASE_TIMEOUT = 1.0


class _Released(BaseException):
    """Unwinds a replica that waits at a barrier which the others will not reach."""


@dataclass(slots=True)
class Barrier:
    """A barrier that one replica has reached, and what the replica passes to it.

    Attributes:
        label: Names the operation; must be the same in all replicas.
        action: Called once with every replica's payload; returns one result per replica.
        payload: The replica's contribution.
    """

    label: str
    action: Callable[[list[Any]], Sequence[Any]]
    payload: PyTree


@dataclass(slots=True)
class _Replica:
    start: Callable[[], BackgroundThread]
    turn: queue.SimpleQueue[None]
    thread: BackgroundThread | None = None
    barrier: Barrier | None = None
    answer: Any = None
    result: Any = None
    error: BaseException | None = None
    finished: bool = False


class ReplicaThreads:
    """Runs one function for each replica of a group.

    Args:
        strategy: The strategy, current in the replicas and in the actions of barriers.
        group: The replicas' devices.
    """

    def __init__(self, strategy: StrategyProtocol, group: ReplicaGroup) -> None:
        self._strategy = strategy
        self._group = group
        self._replicas: list[_Replica] = []
        self._background = Background(f"a run of {strategy!r}")
        # A queue, because the semaphores of `threading` can turn an interrupt into "release unlocked lock".
        self._baton: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._aborted = False

    def run(self, bodies: Sequence[Callable[[], Any]], merge: Callable[[list[Any]], Any]) -> Any:
        """Returns what ``merge`` makes of the results of the replicas' bodies.

        Raises:
            ReplicaMismatchError: If the replicas do not reach the same barriers.
            BaseException: The first error of a replica or of a barrier's action. Variables then have the
                values they had before the call.
        """
        settings = jax_settings.current_settings()
        return transactions.atomically(lambda journal: self._run(bodies, merge, journal, settings))

    def _run(
        self,
        bodies: Sequence[Callable[[], Any]],
        merge: Callable[[list[Any]], Any],
        journal: transactions.Journal,
        settings: tuple[Any, ...],
    ) -> Any:
        for index, body in enumerate(bodies):
            # A copy of the context for each replica: Python lets no two threads run in the same one.
            start = functools.partial(
                self._background.start,
                contextvars.copy_context().run,
                self._thread_body(index, body, journal, settings),
                name=f"replica-{index}",
            )
            self._replicas.append(_Replica(start, queue.SimpleQueue()))
        try:
            # While this thread waits, only signal handlers run in it. What they change is not part of this
            # run, and must not be rolled back with it: no journal is active.
            with context.enter(context.Frame(self._strategy, None)), transactions.journaled(None):
                self._take_turns(journal)
            for replica in self._replicas:
                assert replica.thread is not None
                replica.thread.join()
            return merge([replica.result for replica in self._replicas])
        except BaseException:
            # Once more if an interrupt arrives meanwhile: a replica that is not released waits forever.
            try:
                self._release()
            except BaseException:
                self._release()
                raise
            raise

    def wait_at(self, index: int, barrier: Barrier) -> Any:
        """Waits in replica ``index`` for the others, and returns this replica's result of the action."""
        if self._aborted:
            raise _Released
        replica = self._replicas[index]
        replica.barrier = barrier
        with span(f"meet at {barrier.label}", "collective"):
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
        journal: transactions.Journal,
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
                        stack.enter_context(transactions.journaled(journal))
                        stack.enter_context(own_trace_level())
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

    def _take_turns(self, journal: transactions.Journal) -> None:
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
            with transactions.journaled(journal):
                self._run_action()

    def _run_action(self) -> None:
        """Runs the action of the barrier that all replicas have reached.

        Raises:
            ReplicaMismatchError: If some replica returned or is at another barrier.
        """
        barriers = [replica.barrier for replica in self._replicas]
        if any(barrier is None for barrier in barriers) or (
            len({barrier.label for barrier in barriers if barrier is not None}) > 1
        ):
            raise ReplicaMismatchError(
                "Every replica must take part in the same merge_call, collective or aggregated "
                "assignment, but "
                + "; ".join(
                    f"replica {index} {'returned' if barrier is None else 'is at ' + barrier.label}"
                    for index, barrier in enumerate(barriers, self._group.first_local)
                )
                + ". Call it in every replica, outside of conditions that depend on the replica."
            )
        reached = [barrier for barrier in barriers if barrier is not None]
        with span(reached[0].label, "collective"):
            answers = reached[0].action([barrier.payload for barrier in reached])
        for replica, answer in zip(self._replicas, answers, strict=True):
            replica.barrier = None
            replica.answer = answer

    def _release(self) -> None:
        # A replica that waits at a barrier wakes up, sees the flag and unwinds with `_Released`. One that
        # has not had its first turn returns at once. One that computes sees it at its next barrier.
        self._aborted = True
        for replica in self._replicas:
            replica.turn.put(None)
        # A busy replica cannot be stopped. A warning names it, and its later changes to variables are
        # rejected.
        self._background.join_or_abandon(_RELEASE_TIMEOUT)


def _explained(error: BaseException) -> BaseException:
    """Returns the error of a replica, explained in terms of replicas where JAX only speaks of devices."""
    add_flax_hint(error)
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
