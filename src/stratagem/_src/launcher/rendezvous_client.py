"""``RendezvousClient``: another node's end of the conversation with node 0."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.cluster.leadership import Task
from stratagem._src.core.errors import DeadlineExceededError, UnauthenticatedError, UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.events import (
    Finish,
    Interrupted,
    NodeStopped,
    Order,
    Report,
    Start,
    StartAgain,
    Stop,
    TakeUpAgain,
    TaskEnded,
)
from stratagem._src.launcher.events_as_json import order_from_json, report_to_json
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.rendezvous import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT,
    HOST,
    NODE_ROLE,
    Rendezvous,
)
from stratagem._src.launcher.task_loop import TaskLoop
from stratagem._src.process.background import Background
from stratagem._src.transport import Connection, Identity, connect
from stratagem._src.transport.duplex_stream import Conversation, HeartbeatTimeout

__all__ = ["RendezvousClient"]

_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_TO_CONNECT = 10.0
_SECONDS_TO_LEAVE = 5.0


class RendezvousClient:
    """Takes part in the job of node 0.

    Args:
        loop: The event loop that drives it.
        rendezvous: Where node 0 is.
        rules: How long tasks have to end when node 0 is lost, or whether they go on without it.
        console: Where it is said that node 0 is waited for.

    Raises:
        RendezvousError: If node 0 does not answer in time, or refuses.
    """

    def __init__(
        self, loop: TaskLoop, rendezvous: Rendezvous, rules: JobRules, console: Console
    ) -> None:
        self._loop = loop
        self._rendezvous = rendezvous
        self._rules = rules
        self._console = console
        self._tasks: tuple[Task, ...] = ()
        self._running: set[Task] = set()
        self._codes: list[int] = []
        self._obey: Callable[[Order], None] = lambda _: None
        self._was_interrupted = False
        self._is_lost = False
        self._lost = ""
        self._is_ending = False
        self._is_over = False
        self.own_host, self._conversation = _join(rendezvous, console)
        # An error that nobody expected ends the launcher: the loop raises it.
        self._background = Background(
            f"node {rendezvous.node_rank}",
            on_failure=lambda _: loop.call_soon(self._background.check),
        )
        self._closed = threading.Event()
        self._background.start(self._listen, name="rendezvous-hear")
        self._background.start(self._beat, name="rendezvous-beat")

    def obey_with(self, obey: Callable[[Order], None]) -> None:
        """Calls back with every order from now on."""
        self._obey = obey

    def report(self, report: Report) -> None:
        """Tells node 0 something; when it is lost, ends this node's part of the job."""
        if isinstance(report, TaskEnded):
            self._running.discard(report.ending.task)
            self._codes.append(report.ending.exit_code)
        if self._is_lost:
            if isinstance(report, NodeStopped) and not self._is_over:
                self._finish_alone()
            elif isinstance(report, TaskEnded) and not (self._running or self._is_ending):
                self._end_tasks(signal.SIGTERM)
            elif isinstance(report, Interrupted):
                self._end_tasks(report.signal)
            return
        if isinstance(report, Interrupted):
            if self._was_interrupted and report.signal == signal.SIGINT:
                self._obey(Stop(signal.SIGKILL, 0.0))
            self._was_interrupted = True
        self._conversation.say(report_to_json(report))

    def close(self) -> None:
        """Ends the conversation."""
        self._is_over = True
        self._closed.set()
        self._conversation.finish(_SECONDS_TO_LEAVE)

    def __enter__(self) -> RendezvousClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        reason = "is gone"
        try:
            while True:
                order = order_from_json(self._conversation.hear())
                self._loop.call_soon(functools.partial(self._hear, order))
        except HeartbeatTimeout:
            reason = f"has not been heard of for {HEARTBEAT_TIMEOUT:g} s"
        except OSError:
            pass
        self._loop.call_soon(functools.partial(self._lose, reason))

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            self._conversation.beat()

    def _hear(self, order: Order) -> None:
        if self._is_over:
            return
        rank = self._rendezvous.node_rank
        match order:
            case Finish():
                self._is_over = True
            case Start():
                self._begin(order)
            case TakeUpAgain() if order.node == rank:
                self._begin(order.start)
            case StartAgain() if order.task in self._tasks:
                self._running.add(order.task)
        self._obey(order)

    def _begin(self, order: Start) -> None:
        self._tasks = order.plan.tasks.get(self._rendezvous.node_rank, ())
        self._running, self._codes = set(self._tasks), []

    def _lose(self, reason: str) -> None:
        if self._is_over or self._is_lost:
            return
        self._is_lost = True
        self._lost = f"node 0 at {self._rendezvous.endpoint} {reason}"
        if self._rules.min_workers is not None and self._running:
            self._console.message(f"{self._lost}; the tasks of this node go on")
        else:
            self._console.message(f"{self._lost}; the tasks of this node are ended")
            self._end_tasks(signal.SIGTERM)

    def _end_tasks(self, number: int) -> None:
        """Ends the tasks without being told to; at once if they were to end before."""
        self._obey(
            Stop(signal.SIGKILL, 0.0)
            if self._is_ending
            else Stop(number, self._rules.grace_seconds)
        )
        self._is_ending = True

    def _finish_alone(self) -> None:
        """Ends this node's part of a job whose node 0 is gone: well, if its workers came to an end."""
        self._is_over = True
        if self._rules.min_workers is not None and 0 in self._codes:
            self._obey(Finish(0))
        else:
            self._obey(Finish(1, self._lost))


class _MayRetry(Exception):
    """Node 0 cannot be joined yet."""


def _join(rendezvous: Rendezvous, console: Console) -> tuple[str, Conversation]:
    """Returns the address of this machine on the way to node 0, and the conversation."""
    deadline = time.monotonic() + rendezvous.timeout_seconds
    notice = WaitingNotice()
    own = rendezvous.name_of_node(rendezvous.node_rank)
    leader = f"{rendezvous.name_of_node(0)} at {rendezvous.endpoint}"
    while True:
        try:
            connection = _connect(rendezvous, deadline)
            return connection.own_host, _introduce(rendezvous, connection, deadline)
        except _MayRetry as error:
            if time.monotonic() + _SECONDS_BETWEEN_TRIES > deadline:
                raise RendezvousError(
                    f"{own[0].upper()}{own[1:]} waited {rendezvous.timeout_seconds:g} s for {leader}, "
                    f"but: {error} Start 'stratagem run' there as {rendezvous.name_of_node(0)}, with "
                    "the same --rdzv-endpoint."
                ) from None
            if notice.is_due():
                console.own_message(f"{own}, {notice.seconds:.0f} s: waiting for {leader}: {error}")
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _connect(rendezvous: Rendezvous, deadline: float) -> Connection:
    try:
        return connect(
            rendezvous.endpoint,
            rendezvous.credentials,
            own=Identity(NODE_ROLE, rendezvous.node_rank),
            wanted=HOST,
            deadline=deadline,
        )
    except (UnavailableError, DeadlineExceededError) as error:
        raise _MayRetry(str(error)) from None
    except UnauthenticatedError as error:
        raise RendezvousError(f"Node {rendezvous.node_rank} cannot join node 0. {error}") from None


def _introduce(rendezvous: Rendezvous, connection: Connection, deadline: float) -> Conversation:
    conversation = Conversation(connection, HEARTBEAT_TIMEOUT)
    conversation.say({"num_nodes": rendezvous.num_nodes})
    try:
        answer = conversation.hear(min(deadline, time.monotonic() + _SECONDS_TO_CONNECT))
    except OSError as error:
        conversation.close()
        raise _MayRetry(f"it left ({error}).") from None
    if "refused" not in answer:
        return conversation
    conversation.close()
    if answer.get("may_retry") is True:
        raise _MayRetry(f"{answer['refused']}.")
    raise RendezvousError(
        f"Node 0 at {rendezvous.endpoint} refused node {rendezvous.node_rank}: {answer['refused']}. Run "
        "the same command on every node."
    )
