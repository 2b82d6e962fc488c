"""``JobState``: the state machine of a job: reports in, orders out, no I/O."""

from __future__ import annotations

import enum
import math
import signal
from collections import Counter
from collections.abc import Callable
from functools import singledispatchmethod

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.cluster_plan import ClusterPlan, NodeOffer, add_node, plan_cluster
from stratagem._src.launcher.completion import (
    awaited_tasks,
    can_be_replaced,
    elastic_job_is_done,
    is_loss,
    job_is_done,
    trains,
    workers_succeeded,
)
from stratagem._src.launcher.events import (
    DeadlinePassed,
    Finish,
    ForwardSignal,
    Interrupted,
    NodeJoined,
    NodeLost,
    NodeStopped,
    Order,
    Rejoin,
    Report,
    RestartNode,
    RestartTask,
    ShutdownNotice,
    Start,
    Stop,
    TaskEnded,
)
from stratagem._src.launcher.failure_report import failure_report
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.task_exit import TaskExit, exit_code_of

__all__ = ["JobPhase", "JobState"]

_USAGE_ERROR = 2


class JobPhase(enum.Enum):
    """The phase of a job."""

    GATHERING = "waiting for nodes"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


class JobState:
    """Decides what the nodes of a job do next. Every order goes to all nodes.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.cluster_plan import NodeOffer
    >>> from stratagem._src.launcher.events import NodeJoined, NodeStopped, TaskEnded
    >>> from stratagem._src.launcher.job_rules import JobRules
    >>> from stratagem._src.launcher.job_state import JobState
    >>> from stratagem._src.launcher.task_counts import TaskCounts
    >>> from stratagem._src.launcher.task_exit import TaskExit
    >>> job = JobState(num_nodes=1, rules=JobRules())
    >>> offer = NodeOffer(0, "localhost", TaskCounts(workers=2), (7001, 7002))
    >>> [type(order).__name__ for order in job.handle(NodeJoined(offer))]
    ['Start']
    >>> job.handle(TaskEnded(TaskExit(Task("worker", 1), returncode=3)))
    [Stop(signal=15, seconds=5.0)]
    >>> job.handle(NodeStopped(0))[0].exit_code
    3

    Args:
        num_nodes: The number of nodes.
        rules: What happens when a task fails.
        new_job_id: Returns a new id for each attempt.
        name_of_node: Returns the name of a node in messages.
        nodes_are_restarted: Whether a scheduler restarts a lost node.
        collector: The address to which tasks send samples; empty if the job is not monitored.
    """

    def __init__(
        self,
        num_nodes: int,
        rules: JobRules,
        new_job_id: Callable[[], str] = str,
        name_of_node: Callable[[int], str] = "node {}".format,
        nodes_are_restarted: bool = False,
        collector: str = "",
    ) -> None:
        self.phase = JobPhase.GATHERING
        self.attempt = 0
        self._num_nodes = num_nodes
        self._rules = rules
        self._new_job_id = new_job_id
        self._name_of_node = name_of_node
        self._nodes_come_back = nodes_are_restarted
        self._collector = collector
        self._task_restarts: Counter[Task] = Counter()
        self._chief_restarts = 0
        self._away: set[int] = set()
        self._job_id = ""
        self._offers: dict[int, NodeOffer] = {}
        self._plan = ClusterPlan({}, {})
        self._exits: dict[Task, TaskExit] = {}
        self._stopped: set[int] = set()
        self._failure: TaskExit | NodeLost | None = None
        self._interrupted_by: int | None = None
        self._is_shutdown_announced = False

    @property
    def missing_nodes(self) -> list[int]:
        """The nodes that have not joined this attempt."""
        return [node for node in range(self._num_nodes) if node not in self._offers]

    @property
    def missing_names(self) -> str:
        """The names of the missing nodes."""
        return ", ".join(map(self._name_of_node, self.missing_nodes))

    def tasks_of(self, node: int) -> tuple[Task, ...]:
        """Returns the tasks that a node runs in this attempt."""
        return self._plan.tasks.get(node, ())

    @singledispatchmethod
    def handle(self, report: Report) -> list[Order]:
        """Handles a report and returns the orders for all nodes."""
        raise TypeError(f"report must be one of {Report}, got {report!r}.")

    @handle.register
    def _joined(self, report: NodeJoined) -> list[Order]:
        if self.phase is not JobPhase.GATHERING:
            return self._readmit(report.offer) if self.expects(report.offer.node) else []
        self._offers[report.offer.node] = report.offer
        return [] if self.missing_nodes else self._begin()

    def _begin(self) -> list[Order]:
        try:
            self._plan = plan_cluster(self._offers.values())
        except LaunchError as error:
            return self._finish(_USAGE_ERROR, str(error))
        self._exits, self._stopped, self._failure = {}, set(self.missing_nodes), None
        self._task_restarts.clear()
        self._away.clear()
        self.phase = JobPhase.RUNNING
        self._job_id = self._new_job_id()
        return [self._start()]

    def _start(self) -> Start:
        return Start(self.attempt, self._job_id, self._plan, self._collector)

    @handle.register
    def _ended(self, report: TaskEnded) -> list[Order]:
        task = report.ending.task
        self._exits[task] = report.ending
        if self.phase is not JobPhase.RUNNING:
            return []
        if report.ending.returncode != 0:
            if self._can_be_replaced(report.ending) and self._may_restart(task):
                del self._exits[task]
                return [RestartTask(task, report.ending.describe())]
            if not self._can_continue_without(report.ending):
                self._failure = report.ending
                return self._stop(signal.SIGTERM)
        # Every recorded exit is a success or tolerated, or the phase would have changed.
        return self._stop(signal.SIGTERM) if self._is_done() else []

    def _may_restart(self, task: Task) -> bool:
        """Returns whether a task may be restarted alone, and counts the restart."""
        if task.task_type == "chief" and self._rules.min_workers is None:
            # The chief drives the training: its restart counts as a restart of the job.
            if self._num_restarts >= self._rules.max_restarts or self._is_shutdown_announced:
                return False
            self._chief_restarts += 1
            return True
        if self._task_restarts[task] >= self._rules.max_worker_restarts:
            return False
        self._task_restarts[task] += 1
        return True

    @property
    def _num_restarts(self) -> int:
        return self.attempt + self._chief_restarts

    @handle.register
    def _node_stopped(self, report: NodeStopped) -> list[Order]:
        if self.phase is not JobPhase.STOPPING:
            return []
        self._stopped.add(report.node)
        return self._conclude() if len(self._stopped) == self._num_nodes else []

    @handle.register
    def _lost(self, report: NodeLost) -> list[Order]:
        may_come_back = self._nodes_come_back and not report.for_good
        if self.phase is JobPhase.RUNNING and may_come_back and self._can_wait_for(report.node):
            self._away.add(report.node)
            return []
        self._away.discard(report.node)
        self._offers.pop(report.node, None)
        if self.phase is JobPhase.RUNNING:
            self._stopped.add(report.node)
            if self._has_enough_workers():
                # Counts as restarted: elastic_job_is_done does not wait for tasks of a lost node.
                self._task_restarts.update(self.tasks_of(report.node))
                return self._stop(signal.SIGTERM) if self._is_done() else []
            self._failure = report
            return self._stop(signal.SIGTERM)
        return self._node_stopped(NodeStopped(report.node))

    @handle.register
    def _interrupted(self, report: Interrupted) -> list[Order]:
        was_interrupted, self._interrupted_by = self._interrupted_by is not None, report.signal
        # A scheduler sends SIGTERM to every node at once, so a repeated SIGTERM is not an order to kill.
        # A second SIGINT is a user who presses Ctrl-C again.
        is_insisting = was_interrupted and report.signal == signal.SIGINT
        if self.phase is JobPhase.GATHERING:
            return self._conclude()
        if self.phase is JobPhase.FINISHED:
            return []
        if is_insisting:
            return [Stop(signal.SIGKILL, 0.0)]
        return [] if was_interrupted else self._stop(report.signal)

    @handle.register
    def _announced(self, report: ShutdownNotice) -> list[Order]:
        # The scheduler is about to end the job, so restarts are pointless.
        self._is_shutdown_announced = True
        if self.phase is not JobPhase.RUNNING:
            return []
        return [ForwardSignal(report.signal, tuple(awaited_tasks(self._tasks)))]

    @handle.register
    def _deadline(self, report: DeadlinePassed) -> list[Order]:
        if self.phase is not JobPhase.GATHERING or report.attempt != self.attempt:
            return []
        offered = sum(offer.counts.chief + offer.counts.workers for offer in self._offers.values())
        if 0 in self._offers and offered >= (self._rules.min_workers or math.inf):
            return self._begin()
        return self._finish(
            1,
            f"all {self._num_nodes} nodes must join before the deadline, but {self.missing_names} did "
            "not. Start 'stratagem run' there, and check that it reaches --rdzv-endpoint.",
        )

    def expects(self, node: int) -> bool:
        """Returns whether a node may join now."""
        if self.phase is JobPhase.RUNNING:
            return node in (self._away if self._rules.min_workers is None else self.missing_nodes)
        return self.phase is JobPhase.GATHERING

    def _can_wait_for(self, node: int) -> bool:
        tasks = self._plan.tasks[node]
        return all(can_be_replaced(task, self._tasks) for task in tasks) and all(
            map(self._may_restart, tasks)
        )

    def _readmit(self, offer: NodeOffer) -> list[Order]:
        """Lets a node join a running job and start its tasks."""
        name = self._name_of_node(offer.node)
        if self._rules.min_workers is not None:
            self._offers[offer.node] = offer
            self._stopped.discard(offer.node)
            self._plan = add_node(self._plan, offer)
            tasks = self.tasks_of(offer.node)
            for task in tasks:
                self._exits.pop(task, None)
            # The tasks of a lost node were counted when it was lost.
            self._task_restarts.update(set(tasks) - self._task_restarts.keys())
        else:  # the other tasks were started with this node's addresses, so the host must be the same
            self._away.discard(offer.node)
            if offer.host != self._offers[offer.node].host:
                self._failure = NodeLost(offer.node)
                return self._stop(signal.SIGTERM)
        return [RestartNode(offer.node, self._start(), f"the launcher of {name} is back")]

    @property
    def _tasks(self) -> list[Task]:
        return self._plan.all_tasks

    def _can_be_replaced(self, task_exit: TaskExit) -> bool:
        if self._rules.min_workers is None:
            return can_be_replaced(task_exit.task, self._tasks)
        return is_loss(task_exit) and not workers_succeeded(self._exits.values())

    def _can_continue_without(self, task_exit: TaskExit) -> bool:
        if self._rules.min_workers is None:
            return False
        is_over = workers_succeeded(self._exits.values())
        return is_loss(task_exit) and (is_over or self._has_enough_workers())

    def _has_enough_workers(self) -> bool:
        """Returns whether an elastic job can continue with the workers of the connected nodes."""
        here = [task for node in self._offers for task in self.tasks_of(node)]
        left = [task for task in here if trains(task) and task not in self._exits]
        return self._rules.min_workers is not None and len(left) >= self._rules.min_workers

    def _is_done(self) -> bool:
        if self._rules.min_workers is None:
            return job_is_done(self._tasks, self._exits)
        return elastic_job_is_done(self._tasks, self._exits, +self._task_restarts)

    def _stop(self, number: int) -> list[Order]:
        self.phase = JobPhase.STOPPING
        self._stopped |= self._away
        return [Stop(int(number), self._rules.grace_seconds)]

    def _conclude(self) -> list[Order]:
        if self._interrupted_by is not None:
            name = signal.Signals(self._interrupted_by).name
            return self._finish(exit_code_of(-self._interrupted_by), f"stopped by {name}")
        if self._failure is None:
            return self._finish(0, "")
        if self._num_restarts < self._rules.max_restarts and not self._is_shutdown_announced:
            self.attempt += 1
            self.phase = JobPhase.GATHERING
            self._offers = {}
            return [Rejoin(self.attempt, self._reason())]
        if isinstance(self._failure, NodeLost):
            return self._finish(1, self._reason())
        first = self._failure
        others = [e for e in self._exits.values() if e is not first and e.returncode != 0]
        return self._finish(first.exit_code, failure_report(first, others))

    def _reason(self) -> str:
        if isinstance(self._failure, TaskExit):
            return self._failure.describe()
        assert self._failure is not None
        return f"the launcher of {self._name_of_node(self._failure.node)} is gone"

    def _finish(self, exit_code: int, message: str) -> list[Order]:
        self.phase = JobPhase.FINISHED
        return [Finish(exit_code, message)]
