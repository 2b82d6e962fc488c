"""``run_rendezvous_job`` and ``lead_job``: one node's part of a job of several nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.events import DeadlinePassed, Finish, JoinAgain, Order
from stratagem._src.launcher.job_host import JobHost
from stratagem._src.launcher.job_observer import JobObserver, observe_job
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobPhase, JobState
from stratagem._src.launcher.local_job import JobResult, finish, new_job_id
from stratagem._src.launcher.node_runner import JobNode, NodeRunner
from stratagem._src.launcher.node_starter import NodeStarter
from stratagem._src.launcher.observation_options import NOT_OBSERVED, ObservationOptions
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_client import RendezvousClient
from stratagem._src.launcher.rendezvous_server import RendezvousServer
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_loop import TaskLoop
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
    observation: ObservationOptions = NOT_OBSERVED,
) -> JobResult:
    """Runs this node's tasks, in step with the other nodes, until the job is over everywhere.

    Node 0 decides for all: its rules count.

    Args:
        rendezvous: Where the nodes meet.
        counts: How many tasks of each job this node runs.
        program: What they run.
        console: Where their output is shown.
        signals: Signals that end the job.
        rules: What happens when a task fails.
        observation: How node 0 observes the job.

    Raises:
        RendezvousError: If this node cannot take part.
    """
    with TaskLoop() as loop:
        if rendezvous.node_rank == 0:
            with _observe(observation, rendezvous, console) as observer:
                leader = _Leader(loop, rendezvous, counts, program, console, rules, observer)
                return leader.run(signals)
        # Until node 0 has answered, signals end this process as they end any other.
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
    observation: ObservationOptions = NOT_OBSERVED,
) -> JobResult:
    """Leads a job as a node 0 without tasks, whose other nodes a scheduler starts.

    Args:
        rendezvous: Where the nodes meet.
        starter: Has the other nodes started.
        console: Where messages are shown.
        signals: Signals that end the job.
        rules: What happens when a task fails.
        observation: How the job is observed.
    """
    nothing, nobody = TaskProgram((), {}), TaskCounts(workers=0)
    with TaskLoop() as loop, _observe(observation, rendezvous, console) as observer:
        leader = _Leader(loop, rendezvous, nobody, nothing, console, rules, observer)
        return leader.run(signals, starter)


class _Leader:
    """Node 0: decides for all nodes, and runs its own tasks if it has some."""

    def __init__(
        self,
        loop: TaskLoop,
        rendezvous: Rendezvous,
        counts: TaskCounts,
        program: TaskProgram,
        console: Console,
        rules: JobRules,
        observer: JobObserver,
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
            rendezvous.nodes_come_back,
            observer.address,
        )
        self._observe = observer.observe
        self._host = JobHost(self._state, self._observe)
        node = JobNode(0, _own_host(rendezvous), counts)
        secret_of = _secret_of(rendezvous)
        self._runner = NodeRunner(loop, node, program, self._host.report, secret_of, console)

    def run(self, signals: SignalPipe, starter: NodeStarter | None = None) -> JobResult:
        """Runs the job to its end."""
        server = RendezvousServer(self._loop, self._rendezvous, self._host)

        def obey(order: Order) -> None:
            if isinstance(order, JoinAgain):
                self._expect_nodes(order.attempt)
                if starter is not None:
                    starter.join_again(server.lost_nodes)
            self._runner.obey(order)

        self._host.add_node(0, obey)
        # What the starter has started ends after the nodes have heard the last order.
        with starter or contextlib.nullcontext(), server, self._runner, signals:
            signals.attach(self._loop, self._host.report)
            self._expect_nodes(0)
            self._runner.join()
            if starter is not None:
                starter.start(self._loop, self._give_up)
            return finish(self._loop, self._runner)

    def _give_up(self, reason: str) -> None:
        if self._runner.finished is None:
            order = Finish(1, reason)
            self._observe(order)
            self._runner.obey(order)

    def _expect_nodes(self, attempt: int) -> None:
        moment = time.monotonic() + self._rendezvous.timeout_seconds
        self._loop.call_at(moment, lambda: self._host.report(DeadlinePassed(attempt)))
        self._say_who_is_missing(attempt, WaitingNotice())

    def _say_who_is_missing(self, attempt: int, notice: WaitingNotice) -> None:
        if self._state.phase is not JobPhase.GATHERING or self._state.attempt != attempt:
            return
        if notice.is_due():
            missing = self._state.missing_names
            self._console.message(f"{notice.seconds:.0f} s: waiting for {missing}")
        self._loop.call_at(notice.next_moment, lambda: self._say_who_is_missing(attempt, notice))


def _own_host(rendezvous: Rendezvous) -> str:
    return rendezvous.own_host or rendezvous.endpoint.host


def _observe(
    observation: ObservationOptions, rendezvous: Rendezvous, console: Console
) -> AbstractContextManager[JobObserver]:
    return observe_job(
        observation,
        _own_host(rendezvous),
        _secret_of(rendezvous),
        console,
        rendezvous.name_of_node,
    )


def _secret_of(rendezvous: Rendezvous) -> Callable[[str], str]:
    return lambda job_id: job_secret(rendezvous.secret, job_id)
