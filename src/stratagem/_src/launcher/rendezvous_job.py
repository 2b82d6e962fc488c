"""``run_rendezvous_job``: one node's part of a cluster on several machines."""

from __future__ import annotations

import secrets
import time

from stratagem._src.launcher.console import Console
from stratagem._src.launcher.events import DeadlinePassed, JoinAgain, Order
from stratagem._src.launcher.job_host import JobHost
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobState
from stratagem._src.launcher.local_job import JobResult, finish
from stratagem._src.launcher.node_runner import JobNode, NodeRunner
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_client import RendezvousClient
from stratagem._src.launcher.rendezvous_server import RendezvousServer
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_loop import TaskLoop
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.transport.secret import job_secret

__all__ = ["run_rendezvous_job"]


def run_rendezvous_job(
    rendezvous: Rendezvous,
    counts: TaskCounts,
    program: TaskProgram,
    console: Console,
    signals: SignalPipe,
    rules: JobRules,
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

    Raises:
        RendezvousError: If this node cannot take part.
    """
    with TaskLoop() as loop:
        if rendezvous.node_rank == 0:
            state = JobState(rendezvous.num_nodes, rules, _new_job_id)
            return _run_as_node_0(loop, rendezvous, counts, program, console, signals, state)
        # Until node 0 has answered, signals end this process as they end any other.
        with RendezvousClient(loop, rendezvous, rules.grace_seconds) as client:
            return _run_as_another_node(loop, rendezvous, counts, program, console, signals, client)


def _run_as_node_0(
    loop: TaskLoop,
    rendezvous: Rendezvous,
    counts: TaskCounts,
    program: TaskProgram,
    console: Console,
    signals: SignalPipe,
    state: JobState,
) -> JobResult:
    host = JobHost(state)
    runner = NodeRunner(
        loop,
        JobNode(0, rendezvous.endpoint.host, counts),
        program,
        host.report,
        lambda job_id: job_secret(rendezvous.secret, job_id),
        console,
    )

    def expect_nodes(attempt: int) -> None:
        moment = time.monotonic() + rendezvous.timeout_seconds
        loop.call_at(moment, lambda: host.report(DeadlinePassed(attempt)))

    def obey(order: Order) -> None:
        if isinstance(order, JoinAgain):
            expect_nodes(order.attempt)
        runner.obey(order)

    host.add_node(0, obey)
    with RendezvousServer(loop, rendezvous, host), runner, signals:
        signals.attach(loop, host.report)
        expect_nodes(0)
        runner.join()
        return finish(loop, runner)


def _run_as_another_node(
    loop: TaskLoop,
    rendezvous: Rendezvous,
    counts: TaskCounts,
    program: TaskProgram,
    console: Console,
    signals: SignalPipe,
    client: RendezvousClient,
) -> JobResult:
    runner = NodeRunner(
        loop,
        JobNode(rendezvous.node_rank, client.own_host, counts),
        program,
        client.report,
        lambda job_id: job_secret(rendezvous.secret, job_id),
        console,
    )
    client.obey_with(runner.obey)
    with runner, signals:
        signals.attach(loop, client.report)
        runner.join()
        return finish(loop, runner)


def _new_job_id() -> str:
    return secrets.token_hex(16)
