"""``RendezvousClient``: the connection of another node to node 0."""

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
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.event_serialization import order_from_json, report_to_json
from stratagem._src.launcher.events import (
    Finish,
    Interrupted,
    NodeStopped,
    Order,
    Report,
    RestartNode,
    RestartTask,
    Start,
    Stop,
    TaskEnded,
)
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.rendezvous import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT,
    HOST,
    NODE_ROLE,
    Rendezvous,
)
from stratagem._src.process.background import Background
from stratagem._src.transport import Connection, Identity, connect
from stratagem._src.transport.duplex_stream import DuplexStream, HeartbeatTimeout

__all__ = ["RendezvousClient"]

_RETRY_INTERVAL = 0.2
_CONNECT_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 5.0


class RendezvousClient:
    """Joins the job that node 0 leads: receives its orders and sends it reports.

    Args:
        loop: The event loop in which orders are carried out.
        rendezvous: The address of node 0.
        rules: The grace period of tasks when node 0 is lost, and whether they continue without it.
        console: Shows that this node waits for node 0.

    Raises:
        RendezvousError: If node 0 does not respond in time, or rejects this node.
    """

    def __init__(
        self, loop: EventLoop, rendezvous: Rendezvous, rules: JobRules, console: Console
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
        self._loss_message = ""
        self._is_stopping = False
        self._is_over = False
        self.own_host, self._stream = _join(rendezvous, console)
        # The loop raises an unexpected exception of a thread, which ends the launcher.
        self._background = Background(
            f"node {rendezvous.node_rank}",
            on_failure=lambda _: loop.call_soon(self._background.check),
        )
        self._closed = threading.Event()
        self._background.start(self._listen, name="rendezvous-receive")
        self._background.start(self._send_heartbeats, name="rendezvous-heartbeat")

    def obey_with(self, obey: Callable[[Order], None]) -> None:
        """Sets the function that carries out orders."""
        self._obey = obey

    def report(self, report: Report) -> None:
        """Sends a report to node 0; if node 0 is lost, decides for this node alone."""
        if isinstance(report, TaskEnded):
            self._running.discard(report.ending.task)
            self._codes.append(report.ending.exit_code)
        if self._is_lost:
            if isinstance(report, NodeStopped) and not self._is_over:
                self._finish_alone()
            elif isinstance(report, TaskEnded) and not (self._running or self._is_stopping):
                self._stop_tasks(signal.SIGTERM)
            elif isinstance(report, Interrupted):
                self._stop_tasks(report.signal)
            return
        if isinstance(report, Interrupted):
            if self._was_interrupted and report.signal == signal.SIGINT:
                self._obey(Stop(signal.SIGKILL, 0.0))
            self._was_interrupted = True
        self._stream.send(report_to_json(report))

    def close(self) -> None:
        """Closes the connection."""
        self._is_over = True
        self._closed.set()
        self._stream.finish(_SHUTDOWN_TIMEOUT)

    def __enter__(self) -> RendezvousClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        reason = "is gone"
        try:
            while True:
                order = order_from_json(self._stream.receive())
                self._loop.call_soon(functools.partial(self._receive, order))
        except HeartbeatTimeout:
            reason = f"has sent no heartbeat for {HEARTBEAT_TIMEOUT:g} s"
        except OSError:
            pass
        self._loop.call_soon(functools.partial(self._lose, reason))

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            self._stream.send_heartbeat()

    def _receive(self, order: Order) -> None:
        if self._is_over:
            return
        rank = self._rendezvous.node_rank
        match order:
            case Finish():
                self._is_over = True
            case Start():
                self._begin(order)
            case RestartNode() if order.node == rank:
                self._begin(order.start)
            case RestartTask() if order.task in self._tasks:
                self._running.add(order.task)
        self._obey(order)

    def _begin(self, order: Start) -> None:
        self._tasks = order.plan.tasks.get(self._rendezvous.node_rank, ())
        self._running, self._codes = set(self._tasks), []

    def _lose(self, reason: str) -> None:
        if self._is_over or self._is_lost:
            return
        self._is_lost = True
        self._loss_message = f"node 0 at {self._rendezvous.endpoint} {reason}"
        # The workers of an elastic job can finish without the launcher of node 0.
        if self._rules.min_workers is not None and self._running:
            self._console.message(f"{self._loss_message}; the tasks of this node continue")
        else:
            self._console.message(f"{self._loss_message}; stopping the tasks of this node")
            self._stop_tasks(signal.SIGTERM)

    def _stop_tasks(self, number: int) -> None:
        """Stops the tasks without an order of node 0; kills them if they are stopping already."""
        self._obey(
            Stop(signal.SIGKILL, 0.0)
            if self._is_stopping
            else Stop(number, self._rules.grace_seconds)
        )
        self._is_stopping = True

    def _finish_alone(self) -> None:
        """Finishes this node's part of a job that lost node 0; with success if a worker succeeded."""
        self._is_over = True
        if self._rules.min_workers is not None and 0 in self._codes:
            self._obey(Finish(0))
        else:
            self._obey(Finish(1, self._loss_message))


class _MayRetry(Exception):
    """Node 0 cannot be joined yet."""


def _join(rendezvous: Rendezvous, console: Console) -> tuple[str, DuplexStream]:
    """Returns the local address of the connection to node 0, and the stream."""
    deadline = time.monotonic() + rendezvous.timeout_seconds
    notice = WaitingNotice()
    own = rendezvous.name_of_node(rendezvous.node_rank)
    leader = f"{rendezvous.name_of_node(0)} at {rendezvous.endpoint}"
    while True:
        try:
            connection = _connect(rendezvous, deadline)
            return connection.own_host, _introduce(rendezvous, connection, deadline)
        except _MayRetry as error:
            if time.monotonic() + _RETRY_INTERVAL > deadline:
                raise RendezvousError(
                    f"{own[0].upper()}{own[1:]} waited {rendezvous.timeout_seconds:g} s for {leader}: "
                    f"{error} Start 'stratagem run' there as {rendezvous.name_of_node(0)}, with "
                    "the same --rdzv-endpoint."
                ) from None
            if notice.is_due():
                console.own_message(f"{own}, {notice.seconds:.0f} s: waiting for {leader}: {error}")
        time.sleep(_RETRY_INTERVAL)


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


def _introduce(rendezvous: Rendezvous, connection: Connection, deadline: float) -> DuplexStream:
    stream = DuplexStream(connection, HEARTBEAT_TIMEOUT)
    stream.send({"num_nodes": rendezvous.num_nodes})
    try:
        answer = stream.receive(min(deadline, time.monotonic() + _CONNECT_TIMEOUT))
    except OSError as error:
        stream.close()
        raise _MayRetry(f"it closed the connection ({error}).") from None
    if "refused" not in answer:
        return stream
    stream.close()
    if answer.get("may_retry") is True:
        raise _MayRetry(f"{answer['refused']}.")
    raise RendezvousError(
        f"Node 0 at {rendezvous.endpoint} refused node {rendezvous.node_rank}: {answer['refused']}. Run "
        "the same command on every node."
    )
