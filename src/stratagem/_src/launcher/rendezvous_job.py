"""``run_rendezvous_job`` and ``lead_job``: one node's part of a multi-node job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.events import DeadlinePassed, Finish, Order, Rejoin
from stratagem._src.launcher.job_dispatcher import JobDispatcher
from stratagem._src.launcher.job_monitor import JobMonitor, monitor_job
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobPhase, JobState
from stratagem._src.launcher.local_job import JobResult, finish, new_job_id
from stratagem._src.launcher.monitoring_options import NO_MONITORING, MonitoringOptions
from stratagem._src.launcher.node_runner import JobNode, NodeRunner
from stratagem._src.launcher.node_starter import NodeStarter
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_client import RendezvousClient
from stratagem._src.launcher.rendezvous_server import RendezvousServer
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.transport.secret import job_secret

__all__ = ["lead_job", "run_rendezvous_job"]


def run_rendezvous_job(
    rendezvous: Rendezvous,
    counts: TaskCounts,
    program: TaskProgram,
    console: Console,
    signals: SignalPipe,
    rules: JobRules,
    monitoring: MonitoringOptions = NO_MONITORING,
) -> JobResult:
    """Runs this node's tasks, coordinated with the other nodes, until the whole job has ended.

    Node 0 decides for all nodes: its rules apply.

    Args:
        rendezvous: The rendezvous of the nodes.
        counts: The number of tasks of each job on this node.
        program: What the tasks run.
        console: Shows their output.
        signals: Signals that end the job.
        rules: What happens when a task fails.
        monitoring: How node 0 monitors the job.

    Raises:
        RendezvousError: If this node cannot join.
    """
    with EventLoop() as loop:
        if rendezvous.node_rank == 0:
            with _monitor(monitoring, rendezvous, console) as monitor:
                leader = _Leader(loop, rendezvous, counts, program, console, rules, monitor)
                return leader.run(signals)
        # Until node 0 has responded, signals have their default effect on this process.
        with RendezvousClient(loop, rendezvous, rules, console) as client:
            host = rendezvous.own_host or client.own_host
            node = JobNode(rendezvous.node_rank, host, counts)
            runner = NodeRunner(loop, node, program, client.report, _secret_of(rendezvous), console)
            client.obey_with(runner.obey)
            with runner, signals:
                signals.attach(loop, client.report)
                runner.join()
                return finish(loop, runner)


def lead_job(
    rendezvous: Rendezvous,
    starter: NodeStarter,
    console: Console,
    signals: SignalPipe,
    rules: JobRules,
    monitoring: MonitoringOptions = NO_MONITORING,
) -> JobResult:
    """Leads a job as a node 0 without tasks; a scheduler starts the other nodes.

    Args:
        rendezvous: The rendezvous of the nodes.
        starter: Starts the other nodes.
        console: Shows messages.
        signals: Signals that end the job.
        rules: What happens when a task fails.
        monitoring: How the job is monitored.
    """
    no_program, no_tasks = TaskProgram((), {}), TaskCounts(workers=0)
    with EventLoop() as loop, _monitor(monitoring, rendezvous, console) as monitor:
        leader = _Leader(loop, rendezvous, no_tasks, no_program, console, rules, monitor)
        return leader.run(signals, starter)


class _Leader:
    """Node 0: decides for all nodes, and runs its own tasks if it has any."""

    def __init__(
        self,
        loop: EventLoop,
        rendezvous: Rendezvous,
        counts: TaskCounts,
        program: TaskProgram,
        console: Console,
        rules: JobRules,
        monitor: JobMonitor,
    ) -> None:
        self._loop = loop
        self._rendezvous = rendezvous
        self._console = console
        names = rendezvous.name_of_node
        self._state = JobState(
            rendezvous.num_nodes,
            rules,
            new_job_id,
            names,
            rendezvous.nodes_are_restarted,
            monitor.address,
        )
        self._record = monitor.record
        self._dispatcher = JobDispatcher(self._state, self._record)
        node = JobNode(0, _own_host(rendezvous), counts)
        secret_of = _secret_of(rendezvous)
        self._runner = NodeRunner(loop, node, program, self._dispatcher.report, secret_of, console)

    def run(self, signals: SignalPipe, starter: NodeStarter | None = None) -> JobResult:
        """Runs the job to its end."""
        server = RendezvousServer(self._loop, self._rendezvous, self._dispatcher)

        def obey(order: Order) -> None:
            if isinstance(order, Rejoin):
                self._expect_nodes(order.attempt)
                if starter is not None:
                    starter.rejoin(server.lost_nodes)
            self._runner.obey(order)

        self._dispatcher.add_node(0, obey)
        # The starter exits last: its processes end after the nodes have received the last order.
        with starter or contextlib.nullcontext(), server, self._runner, signals:
            signals.attach(self._loop, self._dispatcher.report)
            self._expect_nodes(0)
            self._runner.join()
            if starter is not None:
                starter.start(self._loop, self._give_up)
            return finish(self._loop, self._runner)

    def _give_up(self, reason: str) -> None:
        if self._runner.finished is None:
            order = Finish(1, reason)
            self._record(order)
            self._runner.obey(order)

    def _expect_nodes(self, attempt: int) -> None:
        moment = time.monotonic() + self._rendezvous.timeout_seconds
        self._loop.call_at(moment, lambda: self._dispatcher.report(DeadlinePassed(attempt)))
        self._show_missing_nodes(attempt, WaitingNotice())

    def _show_missing_nodes(self, attempt: int, notice: WaitingNotice) -> None:
        if self._state.phase is not JobPhase.GATHERING or self._state.attempt != attempt:
            return
        if notice.is_due():
            missing = self._state.missing_names
            self._console.message(f"{notice.seconds:.0f} s: waiting for {missing}")
        self._loop.call_at(notice.next_moment, lambda: self._show_missing_nodes(attempt, notice))


def _own_host(rendezvous: Rendezvous) -> str:
    return rendezvous.own_host or rendezvous.endpoint.host


def _monitor(
    monitoring: MonitoringOptions, rendezvous: Rendezvous, console: Console
) -> AbstractContextManager[JobMonitor]:
    return monitor_job(
        monitoring,
        _own_host(rendezvous),
        _secret_of(rendezvous),
        console,
        rendezvous.name_of_node,
    )


def _secret_of(rendezvous: Rendezvous) -> Callable[[str], str]:
    return lambda job_id: job_secret(rendezvous.secret, job_id)
