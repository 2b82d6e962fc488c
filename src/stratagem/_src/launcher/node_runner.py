"""``NodeRunner``: starts and ends the processes of one node as the job orders."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass

from stratagem._src.cluster.held_ports import HeldPorts
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.cluster_plan import NodeOffer
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.events import (
    Finish,
    JoinAgain,
    NodeJoined,
    NodeStopped,
    Order,
    PassOn,
    Report,
    Start,
    StartAgain,
    Stop,
    TakeUpAgain,
    TaskEnded,
)
from stratagem._src.launcher.job_observer import OBSERVATION
from stratagem._src.launcher.supervised_process import SupervisedProcess
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_ending import TaskEnding
from stratagem._src.launcher.task_environment import task_environment
from stratagem._src.launcher.task_loop import TaskLoop
from stratagem._src.launcher.task_output import TaskOutput, log_file_name
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.telemetry.monitoring.collector_address import collector_variables

__all__ = ["JobNode", "NodeRunner"]


@dataclass(frozen=True)
class JobNode:
    """One machine of a job: its number, the host others reach it at, and its tasks."""

    rank: int
    host: str
    counts: TaskCounts


class NodeRunner:
    """Runs the tasks of one node.

    Args:
        loop: The event loop that drives it.
        node: Which node this is.
        program: What its tasks run.
        report: Called with everything that the job should know.
        secret_of: Gives the secret of an attempt from its id, or of what observes all of them.
        console: Where output is shown.

    Attributes:
        finished: The job's last order, once it was given.
        endings: How the tasks of this node ended in the last attempt, in the order they ended.
    """

    def __init__(
        self,
        loop: TaskLoop,
        node: JobNode,
        program: TaskProgram,
        report: Callable[[Report], None],
        secret_of: Callable[[str], str],
        console: Console,
    ) -> None:
        self.finished: Finish | None = None
        self.endings: list[TaskEnding] = []
        self._loop = loop
        self._node = node
        self._program = program
        self._report = report
        self._secret_of = secret_of
        self._console = console
        self._ports = HeldPorts(0)
        self._running: dict[Task, SupervisedProcess] = {}
        self._is_stopping = False
        self._attempt: Start | None = None
        self._secret = ""
        self._logs_lack_something = False

    def join(self) -> None:
        """Offers this node to the job, with ports that are free now."""
        self._ports.close()
        self._ports = HeldPorts(self._node.counts.num_ports, self._node.host)
        self._report(
            NodeJoined(
                NodeOffer(self._node.rank, self._node.host, self._node.counts, tuple(self._ports))
            )
        )

    def obey(self, order: Order) -> None:
        """Does what the job orders."""
        match order:
            case Start() if self._node.rank in order.plan.tasks:
                self._start(order)
            case Start():  # its offer came too late, and has it let in later
                self._attempt = order
            case StartAgain():
                self._console.message(f"{order.reason}; it is started again")
                assert self._attempt is not None
                if order.task in self._attempt.plan.tasks[self._node.rank]:
                    self._start_task(order.task, self._attempt, again=True)
            case PassOn():
                for task in self._running.keys() & set(order.tasks):
                    self._running[task].process.send_signal(order.signal)
            case TakeUpAgain():
                self._console.message(f"{order.reason}; its tasks are started again")
                if order.node == self._node.rank:
                    self._start(order.start)
                else:
                    self._attempt = order.start
            case Stop():
                self._stop(order)
            case JoinAgain():
                self._console.message(f"{order.reason}; restart {order.attempt} of the job")
                self.join()
            case Finish():
                if order.message:
                    self._console.message(order.message)
                self.finished = order

    def close(self) -> None:
        """Ends whatever still runs at once, and lets go of the ports."""
        for running in self._running.values():
            running.process.stop(signal.SIGKILL, 0.0)
        for task in list(self._running):
            self._forget(task)
        self._ports.close()

    def _start(self, order: Start) -> None:
        self.endings, self._is_stopping = [], False
        self._attempt, self._secret = order, self._secret_of(order.job_id)
        self._console.expect(order.plan.all_tasks)
        for task in order.plan.tasks[self._node.rank]:
            self._start_task(task, order)
        self._ports.tasks_have_started()

    def _start_task(self, task: Task, order: Start, again: bool = False) -> None:
        environment = task_environment(
            self._program.environment,
            order.plan.tf_config(task),
            self._secret,
            self._program.num_devices,
        )
        if order.collector:
            secret = self._secret_of(OBSERVATION)
            environment |= collector_variables(order.collector, secret, str(task))
        log_dir = self._program.log_dir
        is_shown = not self._program.quiet or task == order.plan.shown_when_quiet
        output = TaskOutput(
            task,
            self._console if is_shown else None,
            None if log_dir is None else log_dir / log_file_name(task, order.attempt),
            append=again,
            when_incomplete=self._logs_are_incomplete,
        )
        self._running[task] = SupervisedProcess(
            self._program.command, environment, self._loop, output, lambda: self._ended(task)
        )

    def _logs_are_incomplete(self, error: OSError) -> None:
        if not self._logs_lack_something:
            self._logs_lack_something = True
            self._console.own_message(
                f"The files in {self._program.log_dir} lack output of tasks, which could not be written: "
                f"{error.strerror}. The job goes on."
            )

    def _ended(self, task: Task) -> None:
        ending = self._forget(task)
        self.endings.append(ending)
        self._report(TaskEnded(ending))
        self._report_if_stopped()

    def _forget(self, task: Task) -> TaskEnding:
        running = self._running.pop(task)
        printed = running.close()
        return TaskEnding(task, running.returncode, running.process.ended_as_told, printed)

    def _stop(self, order: Stop) -> None:
        self._is_stopping = True
        for running in self._running.values():
            running.process.stop(order.signal, order.seconds)
        self._report_if_stopped()

    def _report_if_stopped(self) -> None:
        if self._is_stopping and not self._running:
            self._ports.close()
            self._report(NodeStopped(self._node.rank))

    def __enter__(self) -> NodeRunner:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.close()
