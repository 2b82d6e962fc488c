"""``NodeRunner``: starts and stops the processes of one node as the job orders."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.cluster.visible_devices import divide_devices, find_devices
from stratagem._src.launcher.cluster_plan import NodeOffer
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.events import (
    Finish,
    ForwardSignal,
    NodeJoined,
    NodeStopped,
    Order,
    Rejoin,
    Report,
    RestartNode,
    RestartTask,
    Start,
    Stop,
    TaskEnded,
)
from stratagem._src.launcher.job_monitor import MONITORING_SECRET_ID
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_exit import TaskExit
from stratagem._src.launcher.task_output import TaskOutput, log_file_name
from stratagem._src.launcher.task_process import TaskProcess
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.telemetry.monitoring.collector_address import collector_variables
from stratagem._src.telemetry.monitoring.log_sender import LogSender
from stratagem._src.transport.secret import FILE_VARIABLE, SECRET_VARIABLE

__all__ = ["JobNode", "NodeRunner", "task_environment"]


@dataclass(frozen=True)
class JobNode:
    """One machine of a job: its rank, the host at which others reach it, and its tasks."""

    rank: int
    host: str
    counts: TaskCounts


class NodeRunner:
    """Runs the tasks of one node.

    Args:
        loop: The event loop that drives it.
        node: The node.
        program: What its tasks run.
        report: Called with every report for the job.
        secret_of: Returns the secret of an attempt, or of monitoring, from its id.
        console: Shows the output of tasks.

    Attributes:
        finished: The job's last order, once received.
        exits: How the tasks of this node exited in the last attempt, in the order they exited.
    """

    def __init__(
        self,
        loop: EventLoop,
        node: JobNode,
        program: TaskProgram,
        report: Callable[[Report], None],
        secret_of: Callable[[str], str],
        console: Console,
    ) -> None:
        self.finished: Finish | None = None
        self.exits: list[TaskExit] = []
        self._loop = loop
        self._node = node
        self._program = program
        self._report = report
        self._secret_of = secret_of
        self._console = console
        self._ports = ReservedPorts(0)
        self._running: dict[Task, TaskProcess] = {}
        self._is_stopping = False
        self._attempt: Start | None = None
        self._secret = ""
        self._logs_are_incomplete = False
        self._log_sender: LogSender | None = None
        # Before anything starts: raises if the devices of this host cannot be divided.
        devices = find_devices(program.environment)
        self._devices = divide_devices(devices, list(node.counts.jobs()))

    def join(self) -> None:
        """Offers this node to the job, with newly reserved ports."""
        self._ports.close()
        self._ports = ReservedPorts(self._node.counts.num_ports, self._node.host)
        self._report(
            NodeJoined(
                NodeOffer(self._node.rank, self._node.host, self._node.counts, tuple(self._ports))
            )
        )

    def obey(self, order: Order) -> None:
        """Carries out an order of the job."""
        match order:
            case Start() if self._node.rank in order.plan.tasks:
                self._start(order)
            case Start():  # this node's offer came too late; RestartNode follows
                self._attempt = order
            case RestartTask():
                self._console.message(f"{order.reason}; restarting it")
                assert self._attempt is not None
                if order.task in self._attempt.plan.tasks[self._node.rank]:
                    self._start_task(order.task, self._attempt, again=True)
            case ForwardSignal():
                for task in self._running.keys() & set(order.tasks):
                    self._running[task].process.send_signal(order.signal)
            case RestartNode():
                self._console.message(f"{order.reason}; restarting its tasks")
                if order.node == self._node.rank:
                    self._start(order.start)
                else:
                    self._attempt = order.start
            case Stop():
                self._stop(order)
            case Rejoin():
                self._console.message(f"{order.reason}; restart {order.attempt} of the job")
                self.join()
            case Finish():
                if order.message:
                    self._console.message(order.message)
                self.finished = order

    def close(self) -> None:
        """Kills the tasks that still run, and releases the ports."""
        for running in self._running.values():
            running.process.stop(signal.SIGKILL, 0.0)
        for task in list(self._running):
            self._forget(task)
        self._ports.close()
        if self._log_sender is not None:
            self._log_sender.close()

    def _start(self, order: Start) -> None:
        self.exits, self._is_stopping = [], False
        self._attempt, self._secret = order, self._secret_of(order.job_id)
        self._console.expect(order.plan.all_tasks)
        for task in order.plan.tasks[self._node.rank]:
            self._start_task(task, order)
        self._ports.release_if_exclusive()

    def _start_task(self, task: Task, order: Start, again: bool = False) -> None:
        environment = task_environment(
            self._program.environment,
            order.plan.tf_config(task),
            self._secret,
            self._program.num_devices,
        )
        position = order.plan.tasks[self._node.rank].index(task)
        environment |= self._devices[position]
        send: Callable[[str, bool], None] | None = None
        if order.collector:
            secret = self._secret_of(MONITORING_SECRET_ID)
            environment |= collector_variables(order.collector, secret, str(task))
            if self._log_sender is None:
                self._log_sender = LogSender(order.collector, secret)
            send = functools.partial(self._log_sender.line, str(task))
        log_dir = self._program.log_dir
        is_shown = not self._program.quiet or task == order.plan.shown_when_quiet
        output = TaskOutput(
            task,
            self._console if is_shown else None,
            None if log_dir is None else log_dir / log_file_name(task, order.attempt),
            append=again,
            send=send,
            when_incomplete=self._warn_incomplete_logs,
        )
        self._running[task] = TaskProcess(
            self._program.command, environment, self._loop, output, lambda: self._ended(task)
        )

    def _warn_incomplete_logs(self, error: OSError) -> None:
        if not self._logs_are_incomplete:
            self._logs_are_incomplete = True
            self._console.own_message(
                f"The log files in {self._program.log_dir} are incomplete, because writing failed: "
                f"{error.strerror}. The job continues."
            )

    def _ended(self, task: Task) -> None:
        task_exit = self._forget(task)
        self.exits.append(task_exit)
        self._report(TaskEnded(task_exit))
        self._report_if_stopped()

    def _forget(self, task: Task) -> TaskExit:
        running = self._running.pop(task)
        printed = running.close()
        return TaskExit(task, running.returncode, running.process.stopped_by_launcher, printed)

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


def task_environment(
    inherited: Mapping[str, str], tf_config: str, secret: str, num_devices: int | None
) -> dict[str, str]:
    """Returns the environment of a task's process.

    >>> from stratagem._src.launcher.node_runner import task_environment
    >>> environment = task_environment({"HOME": "/root"}, "{}", "secret", num_devices=2)
    >>> sorted(environment)  # doctest: +NORMALIZE_WHITESPACE
    ['GLIBC_TUNABLES', 'HOME', 'JAX_NUM_CPU_DEVICES', 'PYTHONUNBUFFERED', 'STRATAGEM_CLUSTER_SECRET',
     'TF_CONFIG']

    Args:
        inherited: The launcher's own environment.
        tf_config: The value of ``TF_CONFIG``.
        secret: The secret of this attempt of the job.
        num_devices: The number of virtual CPU devices; ``None`` leaves it to JAX.
    """
    environment = {name: value for name, value in inherited.items() if name != FILE_VARIABLE}
    environment["TF_CONFIG"] = tf_config
    environment[SECRET_VARIABLE] = secret
    # With buffering, lines arrive late, and the last lines of a killed process are lost.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # Large arrays use huge pages where the system allows it: every result of 100 MB is newly allocated
    # memory, and faulting it in with small pages takes longer than sending it to another process.
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    if num_devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(num_devices)
    return environment
